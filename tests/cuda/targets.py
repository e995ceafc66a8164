"""Targets said to be on a GPU, for tests that have none: the shared cases and the generator's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from kforge_nb.candidates.recipes.cuda import cuda_families
from kforge_nb.candidates.recipes.family import Family, Match
from kforge_nb.targets.target import Target
from tests.helpers import make_target
from tests.recipes.cases import CASES, randn

__all__ = ["CASES", "GENERATED", "case", "find", "on_cuda"]


def on_cuda(target: Target) -> Target:
    """The same target with its tensors on ``cuda:0``."""
    return dataclasses.replace(
        target,
        inputs=tuple(dataclasses.replace(s, device="cuda:0") for s in target.inputs),
        outputs=tuple(dataclasses.replace(s, device="cuda:0") for s in target.outputs),
    )


def find(target: Target) -> tuple[Family, Match]:
    """The first CUDA family that takes the target."""
    for family in cuda_families():
        match = family.match(target)
        if match is not None:
            return family, match
    raise AssertionError(f"no CUDA family takes {target.graph.code}")


def case(name: str, dtype: torch.dtype) -> tuple[Target, list[torch.Tensor]]:
    """A shared or generated case in a dtype: the target (on the CPU) and its inputs."""
    if name in CASES:
        _, fn, build = CASES[name]
    else:
        fn, build = GENERATED[name]
    inputs = [t.to(dtype) if t.is_floating_point() else t for t in build()]
    return make_target(fn, *inputs, name=name), inputs


def partial_rotary(x: Any, cos: Any, sin: Any) -> Any:
    head, rest = x[..., :16], x[..., 16:]
    turned = torch.cat((-head[..., 8:], head[..., :8]), dim=-1)
    return torch.cat([head * cos + turned * sin, rest], dim=-1)


def norm_rotary(x: Any, w: Any, cos: Any, sin: Any) -> Any:
    h = x.float()
    h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w.float()).type_as(x)
    turned = torch.cat((-h[..., 16:], h[..., :16]), dim=-1)
    return h * cos + turned * sin


def decay(a: Any, dt: Any, log_a: Any) -> Any:
    return -log_a.float().exp() * F.softplus(a.float() + dt)


def l2_norm(x: Any) -> Any:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(3))


def causal_silu(x: Any, w: Any, b: Any) -> Any:
    """As the delta rule's short convolution: padded on both sides, cut, activated."""
    return F.silu(F.conv1d(x, w, b, padding=3, groups=24)[:, :, :32])


def last(x: Any) -> Any:
    """The same values with the channels last in memory."""
    return x.contiguous(memory_format=torch.channels_last)


GENERATED: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "cat-heads": (
        lambda x, y: torch.cat([x, y], dim=2),
        lambda: [randn(2, 7, 3, 32).transpose(1, 2), randn(2, 3, 5, 32, seed=1)],
    ),
    "cat-odd": (
        lambda x, y: torch.cat([x * 2, y], dim=-1),
        lambda: [randn(5, 13), randn(5, 24, seed=1)],
    ),
    "partial-rotary": (
        partial_rotary,
        lambda: [randn(2, 5, 3, 48).transpose(1, 2), randn(1, 1, 5, 16), randn(1, 1, 5, 16)],
    ),
    "norm-rotary": (
        norm_rotary,
        lambda: [randn(3, 7, 32), randn(32, seed=1), randn(3, 1, 32), randn(3, 1, 32, seed=2)],
    ),
    "decay": (decay, lambda: [randn(3, 7, 6) * 9, randn(6, seed=1), randn(6, seed=2)]),
    "l2-norm": (l2_norm, lambda: [randn(9, 3, 40)]),
    "row-mean": (lambda x: x.mean(-1), lambda: [randn(11, 1000)]),
    "row-extremes": (
        lambda x: (x.amax(-1), x.amin(-1, keepdim=True) * 2),
        lambda: [randn(7, 333)],
    ),
    "column-sum": (lambda x: x.sum(1), lambda: [randn(3, 50, 24)]),
    "where-clamp": (
        lambda x, y: torch.where(x > 0, x.clamp(max=1.0), y.abs() - 0.5),
        lambda: [randn(6, 90), randn(6, 90, seed=1)],
    ),
    "pad": (lambda x: F.pad(x, (3, 0)) + 1, lambda: [randn(4, 5, 17)]),
    "gated-residual": (
        lambda x, g, y: x + g.unsqueeze(1) * y,
        lambda: [randn(2, 9, 48), randn(2, 48, seed=1), randn(2, 9, 48, seed=2)],
    ),
    "embedding": (lambda i, w: F.embedding(i, w), lambda: [ids(50, 3, 7), randn(50, 48)]),
    "embedding-scale": (
        lambda i, w, s: F.embedding(i, w, padding_idx=0) * 3.5 + s,
        lambda: [ids(9, 5), randn(9, 40), randn(40, seed=1)],
    ),
    "conv1d": (
        lambda x, w: F.conv1d(x, w, padding=3, groups=10),
        lambda: [randn(2, 10, 33), randn(10, 1, 4, seed=1)],
    ),
    "conv1d-dilated": (
        lambda x, w, b: F.conv1d(x, w, b, dilation=2, groups=16),
        lambda: [randn(3, 16, 48), randn(16, 1, 5, seed=1), randn(16, seed=2)],
    ),
    "causal-conv1d": (
        causal_silu,
        lambda: [randn(2, 24, 32), randn(24, 1, 4, seed=1), randn(24, seed=2)],
    ),
    "causal-conv1d-turned": (
        causal_silu,
        lambda: [randn(2, 32, 24).transpose(1, 2), randn(24, 1, 4, seed=1), randn(24, seed=2)],
    ),
    "conv1d-turned": (
        lambda x, w: F.conv1d(x, w, padding=3, groups=72),
        lambda: [randn(1, 70, 72).transpose(1, 2), randn(72, 1, 4, seed=1)],
    ),
    "max-pool-last": (
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda: [randn(2, 24, 9, 14).to(memory_format=torch.channels_last)],
    ),
    "last-bias-group-norm": (  # as a graph laid out channels-last holds it
        lambda x, c, w, b: last(F.silu(F.group_norm(x + c, 4, w, b, 1e-6))),
        lambda: [
            last(randn(2, 24, 9, 11)) + 3,
            randn(1, 24, 1, 1, seed=3),
            randn(24, seed=1),
            randn(24, seed=2),
        ],
    ),
    "last-bias-residual": (
        lambda x, c, y: (y + (x + c)) / 1.5,
        lambda: [
            last(randn(2, 16, 9, 7)),
            randn(1, 16, 1, 1, seed=3),
            last(randn(2, 16, 9, 7, seed=1)),
        ],
    ),
    "last-batch-norm-add-relu": (
        lambda x, m, v, w, b, y: F.relu(F.batch_norm(x, m, v, w, b, False, 0.1, 1e-5) + y),
        lambda: [
            last(randn(2, 48, 7, 9)),
            randn(48, seed=1),
            randn(48, seed=2).abs() + 0.5,
            randn(48, seed=3),
            randn(48, seed=4),
            last(randn(2, 48, 7, 9, seed=5)),
        ],
    ),
    "bias-group-norm": (
        lambda x, c, w, b: F.silu(F.group_norm(x + c, 4, w, b, 1e-6)),
        lambda: [
            randn(2, 16, 9, 8),
            randn(1, 16, 1, 1, seed=3),
            randn(16, seed=1),
            randn(16, seed=2),
        ],
    ),
    "bias-residual": (
        lambda x, c, y: (y + (x + c)) / 1.0,
        lambda: [randn(2, 16, 9, 8), randn(1, 16, 1, 1, seed=3), randn(2, 16, 9, 8, seed=1)],
    ),
    "large-group-norm": (
        lambda x, w, b: F.silu(F.group_norm(x, 4, w, b, 1e-6)),
        lambda: [randn(2, 16, 24, 16), randn(16, seed=1), randn(16, seed=2)],
    ),
}
"""Graphs that only the CUDA families are asked for, most of them the generator's."""
