"""The operators of the GPU table: what the four models compute outside of matrix products.

The list was fixed before any kernel was tuned. Sizes are those of the real models: ResNet-50 with
32 images of 224 px and with one, a step of Stable Diffusion 3.5 Medium at 1024 px, its VAE decoder,
Gemma 4 E2B and Qwen 3.5 with 1024 tokens of prefill and one token of decode; and the sizes that the
head-room table of the project quotes. ``bytes`` is the least that has to move: every input read
once, every output written once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["CASES", "SIZES", "Case", "make_target", "moved_bytes"]

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "float64": 8, "bool": 1}
"""Bytes of an element."""

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One operator of one model.

    ``inputs`` are (shape, dtype, layout) with layout ``""``, ``last`` (channels last), ``heads``
    (a transposed view, as attention makes it), ``ids:N`` (class labels below N) or ``positive``.
    """

    name: str
    model: str
    fn: Function
    inputs: tuple[tuple[tuple[int, ...], str, str], ...]

    def build(self, device: str, seed: int = 0) -> list[Any]:
        """Random inputs on a device; the same for the same seed."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        return [_tensor(*entry, device, generator) for entry in self.inputs]


def _tensor(shape: tuple[int, ...], dtype: str, layout: str, device: str, generator: Any) -> Any:
    import torch

    if layout.startswith("ids:"):
        high = int(layout[4:])
        return torch.randint(0, high, shape, device=device, generator=generator)
    if layout == "heads":
        turned = (shape[0], shape[2], shape[1], shape[3])
        dense = torch.randn(turned, device=device, generator=generator)
        return dense.to(getattr(torch, dtype)).transpose(1, 2)
    found = torch.randn(shape, device=device, generator=generator)
    if layout == "positive":
        found = found.abs() + 0.5
    found = found.to(getattr(torch, dtype))
    return found.to(memory_format=torch.channels_last) if layout == "last" else found


def make_target(fn: Function, inputs: Sequence[Any], name: str) -> Any:
    """The target that computes ``fn`` (straight-line code) on tensors like ``inputs``."""
    import torch
    from torch import fx, nn

    from kforge_nb.targets.target import Occurrence, Target, TensorSpec

    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    proxies = [fx.Proxy(graph.placeholder(f"in{i}"), tracer) for i in range(len(inputs))]
    found = fn(*proxies)
    values = found if isinstance(found, tuple) else (found,)
    graph.output(tuple(value.node for value in values))
    graph.eliminate_dead_code()
    graph.lint()
    gm = fx.GraphModule(nn.Module(), graph)
    with torch.no_grad():
        outputs = tuple(TensorSpec.of(t) for t in gm(*inputs))
    specs = tuple(TensorSpec.of(t) for t in inputs)
    digest = hashlib.sha256(f"{gm.code}{specs}".encode()).hexdigest()
    nodes = tuple(node.name for node in graph.nodes)
    places = [Occurrence(0, "", nodes, 1)]
    return Target(digest, name, "other", "region", gm, specs, outputs, places)


def moved_bytes(target: Any) -> int:
    """Bytes of all inputs and outputs; a broadcast input counts with what it really holds."""
    total = 0
    for spec in [*target.inputs, *target.outputs]:
        held = math.prod(n for n, s in zip(spec.shape, spec.stride, strict=True) if s)
        total += held * SIZES[spec.dtype]
    return total


# -- what models compute ---------------------------------------------------------------------------


def softmax(x: Any) -> Any:
    import torch

    return torch.softmax(x, -1)


def softmax_upcast(x: Any) -> Any:
    """As attention code writes it: to float32, softmax, back."""
    import torch

    return torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32).to(torch.bfloat16)


def masked_softmax(x: Any, mask: Any) -> Any:
    import torch

    scores = x * 0.0625 + mask
    return torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(torch.bfloat16)


def router_softmax(x: Any) -> Any:
    import torch

    return torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32)


def log_softmax(x: Any) -> Any:
    import torch

    return torch.log_softmax(x, -1)


def cross_entropy(x: Any, y: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(x.float(), y)


def _rms(x: Any, eps: float) -> Any:
    import torch

    h = x.to(torch.float32)
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)


def rms_norm(x: Any, w: Any) -> Any:
    """RMS norm as Hugging Face composes it."""
    import torch

    return w * _rms(x, 1e-6).to(torch.bfloat16)


def add_rms_norm(x: Any, y: Any, w: Any) -> Any:
    import torch

    total = x + y
    return total, w * _rms(total, 1e-6).to(torch.bfloat16)


def rms_norm_one(x: Any, w: Any) -> Any:
    """With 1 + weight, in float32 to the end (Qwen 3.5)."""
    import torch

    return (_rms(x, 1e-6) * (1.0 + w.float())).to(torch.bfloat16)


def gated_rms_norm(x: Any, gate: Any, w: Any) -> Any:
    """Norm, weight, then times silu of a gate (the delta rule's output norm)."""
    import torch

    h = w * _rms(x, 1e-6).to(torch.bfloat16)
    return (h * torch.nn.functional.silu(gate.to(torch.float32))).to(torch.bfloat16)


def l2_norm(x: Any) -> Any:
    import torch

    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def rms_builtin(x: Any, w: Any) -> Any:
    import torch

    return torch.nn.functional.rms_norm(x, (4096,), w, 1e-6)


def layer_norm(width: int) -> Function:
    def fn(x: Any, w: Any, b: Any) -> Any:
        import torch

        return torch.nn.functional.layer_norm(x, (width,), w, b, 1e-5)

    return fn


def modulated(x: Any, scale: Any, shift: Any) -> Any:
    """Layer norm without weights, then x (1 + scale) + shift."""
    import torch

    normal = torch.nn.functional.layer_norm(x, (1536,), None, None, 1e-6)
    return normal * (1 + scale[:, None]) + shift[:, None]


def gated_residual(x: Any, gate: Any, y: Any) -> Any:
    return x + gate.unsqueeze(1) * y


def join_heads(x: Any, y: Any) -> Any:
    import torch

    return torch.cat([x, y], dim=2)


def group_norm_silu(x: Any, w: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.silu(torch.nn.functional.group_norm(x, 32, w, b, 1e-6))


def group_norm(x: Any, w: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.group_norm(x, 32, w, b, 1e-6)


def batch_norm_relu(x: Any, m: Any, v: Any, w: Any, b: Any) -> Any:
    import torch

    f = torch.nn.functional
    return f.relu(f.batch_norm(x, m, v, w, b, False, 0.1, 1e-5))


def batch_norm_add_relu(x: Any, m: Any, v: Any, w: Any, b: Any, y: Any) -> Any:
    import torch

    f = torch.nn.functional
    return f.relu(f.batch_norm(x, m, v, w, b, False, 0.1, 1e-5) + y)


def relu(x: Any) -> Any:
    import torch

    return torch.relu(x)


def add(x: Any, y: Any) -> Any:
    return x + y


def silu(x: Any) -> Any:
    import torch

    return torch.nn.functional.silu(x)


def gelu_tanh(x: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(x, approximate="tanh")


def gelu(x: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(x)


def gelu_up(x: Any, up: Any) -> Any:
    return gelu_tanh(x) * up


def silu_up(x: Any, up: Any) -> Any:
    return silu(x) * up


def sigmoid_gate(x: Any, gate: Any) -> Any:
    import torch

    return x * torch.sigmoid(gate)


def softcap(x: Any) -> Any:
    import torch

    return torch.tanh(x / 30.0) * 30.0


def scaled(x: Any) -> Any:
    return x * 39.1918359


def decay(a: Any, dt: Any, log_a: Any) -> Any:
    """The delta rule's decay: -exp(A) softplus(a + dt)."""
    import torch

    return -log_a.float().exp() * torch.nn.functional.softplus(a.float() + dt)


def rotary(half: int) -> Function:
    def fn(x: Any, cos: Any, sin: Any) -> Any:
        import torch

        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)

    return fn


def partial_rotary(x: Any, cos: Any, sin: Any) -> Any:
    """The first 64 of 256 elements of a head are turned, the rest is handed on (Qwen 3.5)."""
    import torch

    head, rest = x[..., :64], x[..., 64:]
    turned = torch.cat((-head[..., 32:], head[..., :32]), dim=-1)
    return torch.cat([head * cos.unsqueeze(1) + turned * sin.unsqueeze(1), rest], dim=-1)


def norm_rotary(x: Any, w: Any, cos: Any, sin: Any) -> Any:
    """RMS norm of each head, then rotary embedding (Gemma 4's queries)."""
    import torch

    h = (_rms(x, 1e-6) * w.float()).to(torch.bfloat16)
    turned = torch.cat((-h[..., 128:], h[..., :128]), dim=-1)
    return h * cos.unsqueeze(2) + turned * sin.unsqueeze(2)


def max_pool(x: Any) -> Any:
    import torch

    return torch.nn.functional.max_pool2d(x, 3, 2, 1)


def avg_pool(x: Any) -> Any:
    import torch

    return torch.nn.functional.avg_pool2d(x, 2, 2)


def global_pool(x: Any) -> Any:
    import torch

    return torch.nn.functional.adaptive_avg_pool2d(x, (1, 1))


def row_mean(x: Any) -> Any:
    return x.mean(-1)


def row_max(x: Any) -> Any:
    return x.amax(-1)


BF, HALF, FULL = "bfloat16", "float16", "float32"


def _case(name: str, model: str, fn: Function, *inputs: tuple[Any, ...]) -> Case:
    """Inputs are (shape, dtype) or (shape, dtype, layout)."""
    return Case(name, model, fn, tuple((e[0], e[1], e[2] if len(e) > 2 else "") for e in inputs))


def _weights(dtype: str, *sizes: int) -> list[tuple[Any, ...]]:
    return [((size,), dtype) for size in sizes]


def _batch(c: int, dtype: str) -> list[tuple[Any, ...]]:
    return [((c,), dtype), ((c,), dtype, "positive"), ((c,), dtype), ((c,), dtype)]


def _group(shape: tuple[int, ...], fn: Function, layout: str = "") -> Case:
    size = "x".join(map(str, shape[1:]))
    name = f"{'group norm silu' if fn is group_norm_silu else 'group norm'} {size}"
    name += " channels last" if layout else ""
    return _case(name, "vae", fn, (shape, BF, layout), *_weights(BF, shape[1], shape[1]))


def _bn(n: int, c: int, h: int, dtype: str = HALF, *, add: bool = False, layout: str = "") -> Case:
    x = ((n, c, h, h), dtype, layout)
    what = "batch norm add relu" if add else "batch norm relu"
    name = f"{what} {n}x{c}x{h}x{h} {dtype}" + (" channels last" if layout else "")
    fn = batch_norm_add_relu if add else batch_norm_relu
    return _case(name, "resnet", fn, x, *_batch(c, dtype), *([x] if add else []))


_VAE = tuple(
    _group(shape, fn, layout)
    for shape, fn, layout in (
        ((1, 512, 128, 128), group_norm_silu, ""),
        ((1, 512, 256, 256), group_norm_silu, ""),
        ((1, 256, 512, 512), group_norm_silu, ""),
        ((1, 128, 1024, 1024), group_norm_silu, ""),
        ((1, 512, 128, 128), group_norm, ""),
        ((1, 512, 256, 256), group_norm_silu, "last"),
        ((1, 128, 1024, 1024), group_norm_silu, "last"),
    )
)
_RESNET = (
    _bn(32, 64, 112),
    _bn(32, 64, 56),
    _bn(32, 256, 56, add=True),
    _bn(32, 128, 28),
    _bn(32, 512, 28, add=True),
    _bn(32, 1024, 14, add=True),
    _bn(32, 2048, 7, add=True),
    _bn(1, 64, 112),
    _bn(1, 256, 56, add=True),
    _bn(32, 64, 112, FULL),
    _bn(32, 256, 56, add=True, layout="last"),
    _case("relu 32x64x112x112", "resnet", relu, ((32, 64, 112, 112), HALF)),
    _case("add 32x256x56x56", "resnet", add, *[((32, 256, 56, 56), HALF)] * 2),
    _case("max pool 32x64x112x112", "resnet", max_pool, ((32, 64, 112, 112), HALF)),
    _case("max pool channels last", "resnet", max_pool, ((32, 64, 112, 112), HALF, "last")),
    _case("adaptive average pool 32x2048x7x7", "resnet", global_pool, ((32, 2048, 7, 7), HALF)),
    _case("average pool 32x256x56x56", "resnet", avg_pool, ((32, 256, 56, 56), HALF)),
)
_SD3 = (
    _case("layer norm modulated 2x4096x1536", "sd3", modulated,
          ((2, 4096, 1536), BF), ((2, 1536), BF), ((2, 1536), BF)),
    _case("layer norm modulated 2x333x1536", "sd3", modulated,
          ((2, 333, 1536), BF), ((2, 1536), BF), ((2, 1536), BF)),
    _case("qk rms norm 2x24x4096x64", "sd3", rms_norm,
          ((2, 24, 4096, 64), BF, "heads"), ((64,), BF)),
    _case("gated residual 2x4096x1536", "sd3", gated_residual,
          ((2, 4096, 1536), BF), ((2, 1536), BF), ((2, 4096, 1536), BF)),
    _case("gelu tanh 2x4096x6144", "sd3", gelu_tanh, ((2, 4096, 6144), BF)),
    _case("gelu tanh 2x333x6144", "sd3", gelu_tanh, ((2, 333, 6144), BF)),
    _case("silu 2x1536", "sd3", silu, ((2, 1536), BF)),
    _case("cat 2x24x(4096+333)x64", "sd3", join_heads,
          ((2, 24, 4096, 64), BF, "heads"), ((2, 24, 333, 64), BF, "heads")),
    _case("add 512x256x256", "vae", add, *[((1, 512, 256, 256), BF)] * 2),
    _case("silu 128x1024x1024", "vae", silu, ((1, 128, 1024, 1024), BF)),
)  # fmt: skip
_GEMMA = (
    _case("rms norm composed 1024x1536", "gemma", rms_norm, ((1, 1024, 1536), BF), ((1536,), BF)),
    _case("add rms norm 1024x1536", "gemma", add_rms_norm,
          ((1, 1024, 1536), BF), ((1, 1024, 1536), BF), ((1536,), BF)),
    _case("head rms norm 1024x8x256", "gemma", rms_norm, ((1, 1024, 8, 256), BF), ((256,), BF)),
    _case("head rms norm rotary 1024x8x256", "gemma", norm_rotary, ((1, 1024, 8, 256), BF),
          ((256,), BF), ((1, 1024, 256), BF), ((1, 1024, 256), BF)),
    _case("rotary 1x8x1024x256", "gemma", rotary(128),
          ((1, 8, 1024, 256), BF, "heads"), ((1, 1024, 256), BF), ((1, 1024, 256), BF)),
    _case("gelu tanh x up 1024x6144", "gemma", gelu_up, *[((1, 1024, 6144), BF)] * 2),
    _case("gelu tanh x up 1024x12288", "gemma", gelu_up, *[((1, 1024, 12288), BF)] * 2),
    _case("masked softmax 8x1024x1024", "gemma", masked_softmax,
          ((1, 8, 1024, 1024), BF), ((1, 1, 1024, 1024), BF)),
    _case("softcap 1024x262144", "gemma", softcap, ((1, 1024, 262144), BF)),
    _case("embedding scale 1024x1536", "gemma", scaled, ((1, 1024, 1536), BF)),
    _case("rms norm decode 1x1536", "gemma", rms_norm, ((1, 1, 1536), BF), ((1536,), BF)),
    _case("gelu tanh x up decode 1x6144", "gemma", gelu_up, *[((1, 1, 6144), BF)] * 2),
)  # fmt: skip
_QWEN = (
    _case("rms norm 1+w 1024x2048", "qwen", rms_norm_one, ((1, 1024, 2048), BF), ((2048,), BF)),
    _case("rms norm 1+w 1024x2560", "qwen", rms_norm_one, ((1, 1024, 2560), BF), ((2560,), BF)),
    _case("gated rms norm 32768x128", "qwen", gated_rms_norm,
          ((32768, 128), BF), ((32768, 128), BF), ((128,), BF)),
    _case("l2 norm 1024x16x128", "qwen", l2_norm, ((1, 1024, 16, 128), FULL)),
    _case("silu x up 1024x9216", "qwen", silu_up, *[((1, 1024, 9216), BF)] * 2),
    _case("sigmoid gate 1024x4096", "qwen", sigmoid_gate, *[((1, 1024, 4096), BF)] * 2),
    _case("shared expert gate 1024x2048", "qwen", sigmoid_gate,
          ((1024, 2048), BF), ((1024, 1), BF)),
    _case("partial rotary 1x16x1024x256", "qwen", partial_rotary,
          ((1, 16, 1024, 256), BF, "heads"), ((1, 1024, 64), BF), ((1, 1024, 64), BF)),
    _case("router softmax 1024x256", "qwen", router_softmax, ((1024, 256), BF)),
    _case("decay 1024x32", "qwen", decay, ((1, 1024, 32), BF), ((32,), FULL), ((32,), FULL)),
)  # fmt: skip
_TABLE = (
    _case("softmax 65536x4096", "table", softmax, ((65536, 4096), BF)),
    _case("softmax 8192x1024", "table", softmax, ((8192, 1024), BF)),
    _case("softmax upcast 65536x4096", "table", softmax_upcast, ((65536, 4096), BF)),
    _case("rms norm composed 8192x4096", "table", rms_norm, ((8192, 4096), BF), ((4096,), BF)),
    _case("F.rms_norm 8192x4096", "table", rms_builtin, ((8192, 4096), BF), ((4096,), BF)),
    _case("layer norm 8192x4096", "table", layer_norm(4096),
          ((8192, 4096), BF), *_weights(BF, 4096, 4096)),
    _case("layer norm 8192x1024 fp32", "table", layer_norm(1024),
          ((8192, 1024), FULL), *_weights(FULL, 1024, 1024)),
    _case("gelu 8192x4096", "table", gelu, ((8192, 4096), BF)),
    _case("log softmax 8192x32000", "table", log_softmax, ((8192, 32000), BF)),
    _case("cross entropy 8192x32000", "table", cross_entropy,
          ((8192, 32000), BF), ((8192,), "int64", "ids:32000")),
    _case("row mean 8192x4096", "table", row_mean, ((8192, 4096), BF)),
    _case("row max 8192x4096", "table", row_max, ((8192, 4096), BF)),
)  # fmt: skip

CASES: tuple[Case, ...] = (*_VAE, *_TABLE, *_RESNET, *_SD3, *_GEMMA, *_QWEN)
"""All cases, those of the head-room table first."""
