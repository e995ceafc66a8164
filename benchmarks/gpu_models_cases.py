"""The paper's four models at their real size, and each as a tiny copy of the same classes.

``build(name, size, device)`` gives a model with seeded random weights and the call that is timed.
Real size is in the paper's precision (the first dtype of a case); tiny is float32 and small enough
for a CPU in a test. Deep is in between: all layers of the real model, each a few numbers wide, so
that a CPU goes through graphs of the real number of nodes. Nothing is downloaded. A decode step
starts from the same position each time: the counters of its static cache are set back before the
call, by one small kernel on every side that is timed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from benchmarks.models import Case

__all__ = ["CASES", "Size", "Spec", "build", "size_for"]

Size = Literal["real", "deep", "tiny"]
PREFILL = 1024
DECODE_ROOM = 64
TINY_PREFILL = 96


@dataclass(frozen=True, slots=True)
class Spec:
    """One workload: the model it belongs to, its precision at real size, and how it is built.

    ``make(size)`` returns the model on the default device and the inputs of one call; it is run
    under that device and, where ``direct``, with the case's dtype as default dtype.
    """

    name: str
    model: str
    dtype: torch.dtype
    make: Callable[[Size], Case]
    direct: bool = False


def size_for(device: str, asked: Size | None = None) -> Size:
    """The size that was asked for; without one real on a GPU and tiny on a CPU."""
    return asked or ("real" if device.startswith("cuda") else "tiny")


def build(name: str, size: Size = "real", device: str = "cuda") -> Case:
    """The case on the device, in eval mode; KeyError with the known names for another name."""
    if name not in CASES:
        raise KeyError(f"no model {name!r}; known: {', '.join(CASES)}")
    spec = CASES[name]
    dtype = torch.float32 if size == "tiny" else spec.dtype
    torch.manual_seed(0)
    with torch.device(device), _default_dtype(dtype if spec.direct else torch.float32):
        case = spec.make(size)
    return Case(case.name, case.model.to(device=device, dtype=dtype).eval(), case.run)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _like_weights(model: nn.Module, drawn: torch.Tensor) -> torch.Tensor:
    weight = next(model.parameters())
    return drawn.to(weight.device, weight.dtype)


def _floats(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), device="cpu")


class _Inputs:
    """Tensors of a call, put on the model's device and dtype when it is first run."""

    def __init__(self, **drawn: torch.Tensor) -> None:
        self._drawn = drawn
        self._placed: dict[str, torch.Tensor] | None = None

    def on(self, model: nn.Module) -> dict[str, torch.Tensor]:
        if self._placed is None:
            self._placed = {k: _like_weights(model, v) for k, v in self._drawn.items()}
        return self._placed


def _resnet(batch: int, size: Size) -> Case:
    real = size == "real"
    model, images = _resnet_model(size), _floats(batch if real else 2, 3, *(224, 224))
    if not real:
        images = images[:, :, :64, :64].contiguous()
    _set_statistics(model, images)
    inputs = _Inputs(x=images)

    def run(m: Any) -> Any:
        out = m(inputs.on(m)["x"])
        return getattr(out, "logits", out)

    return Case(f"resnet50-b{batch}", model, run)


def _resnet_model(size: Size) -> nn.Module:
    """Torchvision's ResNet-50 where torchvision is there, else the same net of transformers."""
    try:
        from torchvision.models.resnet import Bottleneck, ResNet
    except ImportError:
        from transformers import ResNetConfig, ResNetForImageClassification

        small: dict[str, Any] = {"hidden_sizes": [16, 32, 48, 64], "embedding_size": 16}
        small |= {"depths": [1, 1, 1, 1]} if size == "tiny" else {}
        return ResNetForImageClassification(ResNetConfig(**({} if size == "real" else small)))
    return ResNet(Bottleneck, [1, 1, 1, 1] if size == "tiny" else [3, 4, 6, 3])


def _set_statistics(model: nn.Module, images: torch.Tensor) -> None:
    """Give the batch norms the statistics of these images, as a trained net's fit its data."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(_like_weights(model, images))
    for norm in norms:
        norm.momentum = 0.1


def _sd35(size: Size) -> Case:
    from diffusers import SD3Transformer2DModel

    real = size == "real"
    layers = 2 if size == "tiny" else 24
    heads, side, words = (24, 128, 333) if real else (2, 16, 24)
    model = SD3Transformer2DModel(
        sample_size=128 if real else 16,
        patch_size=2,
        in_channels=16,
        num_layers=layers,
        attention_head_dim=64,
        num_attention_heads=heads,
        joint_attention_dim=4096 if real else 96,
        caption_projection_dim=64 * heads,
        pooled_projection_dim=2048 if real else 64,
        out_channels=16,
        pos_embed_max_size=384 if real else 32,
        dual_attention_layers=(0,) if size == "tiny" else tuple(range(13)),
        qk_norm="rms_norm",
    )
    inputs = _Inputs(
        hidden_states=_floats(2, 16, side, side, seed=1),
        encoder_hidden_states=_floats(2, words, 4096 if real else 96, seed=2),
        pooled_projections=_floats(2, 2048 if real else 64, seed=3),
        timestep=torch.tensor([500.0, 500.0], device="cpu"),
    )
    return Case("sd35", model, lambda m: m(**inputs.on(m), return_dict=False)[0])


def _vae(size: Size) -> Case:
    from diffusers import AutoencoderKL

    real = size == "real"
    model = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        block_out_channels=(128, 256, 512, 512) if real else (32, 32, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1 if size == "tiny" else 2,
        latent_channels=16,
        norm_num_groups=32 if real else 8,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    side = 128 if real else 16
    inputs = _Inputs(z=_floats(1, 16, side, side))

    def run(m: Any) -> Any:
        return m.decode(inputs.on(m)["z"], return_dict=False)[0]

    return Case("vae", model, run)


def _gemma4(size: Size, attention: str, *, decode: bool = False) -> Case:
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    real = size == "real"
    layers, period, shared = (6, 3, 3) if size == "tiny" else (35, 5, 20)
    kinds = ["full_attention" if i % period == period - 1 else "sliding_attention"
             for i in range(layers)]  # fmt: skip
    config = Gemma4TextConfig(
        hidden_size=1536 if real else 64,
        intermediate_size=6144 if real else 128,
        num_hidden_layers=layers,
        num_attention_heads=8 if real else 2,
        num_key_value_heads=1,
        head_dim=256 if real else 32,
        global_head_dim=512 if real else 64,
        sliding_window=512 if real else 32,
        layer_types=kinds,
        num_kv_shared_layers=shared,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=256 if real else 16,
        vocab_size=262_144 if real else 512,
        vocab_size_per_layer_input=262_144 if real else 512,
        hidden_activation="gelu_pytorch_tanh",
        final_logit_softcapping=30.0,
        attn_implementation=attention,
    )
    name = f"gemma4-{'decode' if decode else 'prefill'}"
    if attention == "eager":
        name += "-eager"
    return _language(name, Gemma4ForCausalLM(config), size, decode=decode)


def _qwen35(size: Size, *, decode: bool = False) -> Case:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
             "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
             "linear_key_head_dim": 32, "linear_value_head_dim": 32}  # fmt: skip
    full = {"hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32,
            "num_attention_heads": 16, "num_key_value_heads": 4}  # fmt: skip
    sizes = {"real": full, "deep": small | {"num_hidden_layers": 32}, "tiny": small}
    config = Qwen3_5TextConfig(**sizes[size])
    name = f"qwen35-4b-{'decode' if decode else 'prefill'}"
    return _language(name, Qwen3_5ForCausalLM(config), size, decode=decode)


def _qwen35_moe(size: Size, *, decode: bool = False) -> Case:
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    small = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 32,
             "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
             "linear_value_head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
             "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}  # fmt: skip
    sizes = {"real": {}, "deep": small | {"num_hidden_layers": 40}, "tiny": small}
    config = Qwen3_5MoeTextConfig(**sizes[size])
    name = f"qwen35-35b-{'decode' if decode else 'prefill'}"
    return _language(name, Qwen3_5MoeForCausalLM(config), size, decode=decode)


def _language(name: str, model: Any, size: Size, *, decode: bool) -> Case:
    """Prefill of a prompt without a cache, or one step on a static cache that holds the prompt."""
    length = TINY_PREFILL if size == "tiny" else PREFILL
    vocabulary = int(model.config.vocab_size)
    drawn = torch.randint(
        0, vocabulary, (1, length + 1), generator=torch.Generator().manual_seed(1), device="cpu"
    )
    ids = drawn.to(next(model.parameters()).device)
    if not decode:
        prompt = ids[:, :length].contiguous()
        return Case(name, model, lambda m: m(input_ids=prompt, use_cache=False).logits)
    return Case(name, model, _Step(model, ids, length))


class _Step:
    """One decode step at a fixed position on a cache that holds the prompt.

    States that a step moves on (a full sliding window, a linear attention) go on from call to call.
    """

    def __init__(self, model: Any, ids: torch.Tensor, length: int) -> None:
        from transformers import StaticCache

        self._token = ids[:, length:].contiguous()
        cache = StaticCache(config=model.config, max_cache_len=length + DECODE_ROOM)
        keyword = _cache_keyword(model)
        with torch.no_grad():
            model.eval()(input_ids=ids[:, :length], use_cache=True, **{keyword: cache})
        counters = [getattr(layer, "cumulative_length", None) for layer in cache.layers]
        self._counters = [c for c in counters if isinstance(c, torch.Tensor)]
        self._start = [c.clone() for c in self._counters]
        self._plain = [(layer, layer.cumulative_length_int) for layer in cache.layers
                       if hasattr(layer, "cumulative_length_int")]  # fmt: skip
        self._given = {keyword: cache}

    def __call__(self, model: Any) -> Any:
        if self._counters:
            torch._foreach_copy_(self._counters, self._start)
        for layer, count in self._plain:
            layer.cumulative_length_int = count
        return model(input_ids=self._token, use_cache=True, **self._given).logits


def _cache_keyword(model: Any) -> str:
    """``past_key_values``, which newer versions of transformers call ``cache``."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _table() -> dict[str, Spec]:
    half, brain = torch.float16, torch.bfloat16
    return {
        spec.name: spec
        for spec in (
            Spec("resnet50-b32", "resnet50", half, lambda s: _resnet(32, s)),
            Spec("resnet50-b1", "resnet50", half, lambda s: _resnet(1, s)),
            Spec("vae", "sd35", brain, _vae),
            Spec("sd35", "sd35", brain, _sd35),
            Spec("gemma4-prefill", "gemma4", brain, lambda s: _gemma4(s, "sdpa"), True),
            Spec("gemma4-prefill-eager", "gemma4", brain, lambda s: _gemma4(s, "eager"), True),
            Spec("gemma4-decode", "gemma4", brain, lambda s: _gemma4(s, "sdpa", decode=True), True),
            Spec("qwen35-4b-prefill", "qwen35", brain, _qwen35, True),
            Spec("qwen35-4b-decode", "qwen35", brain, lambda s: _qwen35(s, decode=True), True),
            Spec("qwen35-35b-prefill", "qwen35", brain, _qwen35_moe, True),
            Spec("qwen35-35b-decode", "qwen35", brain, lambda s: _qwen35_moe(s, decode=True), True),
        )
    }


CASES: dict[str, Spec] = _table()
