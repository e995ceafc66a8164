"""The operators of the head-room table: what is computed, on which shapes, and what can be won.

``headroom`` is what hand-written AVX-512 kernels reached over eager on a quiet two-core machine,
with one and with two threads. Recipes are held to nine tenths of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from kforge_nb.targets.target import Target

__all__ = ["CASES", "Case", "make_target"]

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One operator: ``build()`` gives the function and its inputs; figures for 1 and 2 threads."""

    name: str
    build: Callable[[], tuple[Function, list[torch.Tensor]]]
    headroom: dict[int, float]


def _softmax(*shape: int) -> Any:
    def build() -> tuple[Function, list[torch.Tensor]]:
        import torch

        return (lambda x: torch.softmax(x, -1)), [torch.randn(*shape)]

    return build


def _layer_norm() -> tuple[Function, list[torch.Tensor]]:
    import torch
    from torch.nn import functional

    def fn(x: Any, w: Any, b: Any) -> Any:
        return functional.layer_norm(x, (768,), w, b, 1e-5)

    return fn, [torch.randn(8, 512, 768), torch.randn(768), torch.randn(768)]


def _rms_norm(dtype: str) -> Any:
    def build() -> tuple[Function, list[torch.Tensor]]:
        import torch

        kind = getattr(torch, dtype)

        def fn(x: Any, w: Any) -> Any:
            h = x.to(torch.float32)
            variance = h.pow(2).mean(-1, keepdim=True)
            h = h * torch.rsqrt(variance + 1e-6)
            return w * h.to(kind)

        return fn, [torch.randn(2, 512, 2048).to(kind), torch.randn(2048).to(kind)]

    return build


def _group_norm(shape: tuple[int, ...], silu: bool) -> Any:
    def build() -> tuple[Function, list[torch.Tensor]]:
        import torch
        from torch.nn import functional

        def plain(x: Any, w: Any, b: Any) -> Any:
            return functional.group_norm(x, 32, w, b, 1e-6)

        def activated(x: Any, w: Any, b: Any) -> Any:
            return functional.silu(functional.group_norm(x, 32, w, b, 1e-6))

        inputs = [torch.randn(*shape), torch.randn(shape[1]), torch.randn(shape[1])]
        return (activated if silu else plain), inputs

    return build


def _gelu() -> tuple[Function, list[torch.Tensor]]:
    import torch
    from torch.nn import functional

    return (lambda x: functional.gelu(x, approximate="tanh")), [torch.randn(8, 512, 3072)]


def _silu_up() -> tuple[Function, list[torch.Tensor]]:
    import torch
    from torch.nn import functional

    inputs = [torch.randn(2, 512, 5632), torch.randn(2, 512, 5632)]
    return (lambda gate, up: functional.silu(gate) * up), inputs


def _rotary() -> tuple[Function, list[torch.Tensor]]:
    import torch

    def fn(q: Any, cos: Any, sin: Any) -> Any:
        rotated = torch.cat((-q[..., 32:], q[..., :32]), dim=-1)
        return q * cos.unsqueeze(1) + rotated * sin.unsqueeze(1)

    angles = torch.randn(2, 512, 64)
    return fn, [torch.randn(2, 32, 512, 64), angles.cos(), angles.sin()]


def _cross_entropy() -> tuple[Function, list[torch.Tensor]]:
    import torch
    from torch.nn import functional

    labels = torch.randint(0, 32000, (1024,))
    return (lambda x, y: functional.cross_entropy(x, y)), [torch.randn(1024, 32000), labels]


def _batch_norm() -> tuple[Function, list[torch.Tensor]]:
    import torch
    from torch.nn import functional

    def fn(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
        return functional.relu(functional.batch_norm(x, mean, var, w, b, False, 0.1, 1e-5))

    channel = [torch.randn(64), torch.rand(64) + 0.5, torch.randn(64), torch.randn(64)]
    return fn, [torch.randn(8, 64, 112, 112), *channel]


CASES: tuple[Case, ...] = (
    Case("softmax 8x16x512x512", _softmax(8, 16, 512, 512), {1: 1.93, 2: 1.25}),
    Case("softmax 1x16x512x512", _softmax(1, 16, 512, 512), {1: 1.95, 2: 1.85}),
    Case("layer norm 8x512x768", _layer_norm, {1: 1.48, 2: 1.77}),
    Case("rms norm fp32 2x512x2048", _rms_norm("float32"), {1: 3.03, 2: 3.15}),
    Case("rms norm bf16 2x512x2048", _rms_norm("bfloat16"), {1: 4.47, 2: 4.35}),
    Case("group norm 1x128x512x512", _group_norm((1, 128, 512, 512), False), {1: 1.02, 2: 0.92}),
    Case(
        "group norm silu 1x128x512x512", _group_norm((1, 128, 512, 512), True), {1: 2.03, 2: 1.71}
    ),
    Case("group norm 1x512x64x64", _group_norm((1, 512, 64, 64), False), {1: 1.36, 2: 1.49}),
    Case("group norm silu 1x512x64x64", _group_norm((1, 512, 64, 64), True), {1: 2.06, 2: 2.01}),
    Case("gelu tanh 8x512x3072", _gelu, {1: 4.73, 2: 4.67}),
    Case("silu x up 2x512x5632", _silu_up, {1: 2.10, 2: 1.94}),
    Case("rotary 2x32x512x64", _rotary, {1: 4.20, 2: 4.33}),
    Case("cross entropy 1024x32000", _cross_entropy, {1: 2.03, 2: 1.85}),
    Case("batch norm relu 8x64x112x112", _batch_norm, {1: 1.78, 2: 1.93}),
)


def make_target(fn: Function, inputs: list[torch.Tensor], name: str) -> Target:
    """The target that computes ``fn`` (straight-line code) on tensors like ``inputs``."""
    from torch import fx, nn

    from kforge_nb.targets.target import Occurrence, Target, TensorSpec

    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    proxies = [fx.Proxy(graph.placeholder(f"in{i}"), tracer) for i in range(len(inputs))]
    graph.output((fn(*proxies).node,))
    graph.lint()
    gm = fx.GraphModule(nn.Module(), graph)
    specs = tuple(TensorSpec.of(t) for t in inputs)
    outputs = tuple(TensorSpec.of(t) for t in gm(*inputs))
    nodes = tuple(n.name for n in graph.nodes)
    print_of = hashlib.sha256(f"{gm.code}{specs}".encode()).hexdigest()
    return Target(
        fingerprint=print_of,
        name=name,
        family="other",
        granularity="region",
        graph=gm,
        inputs=specs,
        outputs=outputs,
        occurrences=[Occurrence(0, "", nodes, 1)],
    )
