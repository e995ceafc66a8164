"""Targets that the recipe tests share: one function and its inputs for every family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[..., Any]
CL = torch.channels_last


def rms(x: Any, w: Any) -> Any:
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype) if isinstance(x, torch.Tensor) else w * h.type_as(x)


def gemma_rms(x: Any, w: Any) -> Any:
    h = x.float()
    h = h * torch.pow(h.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5)
    return (h * (1.0 + w.float())).type_as(x)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    half = 16
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def residual_norm(x: Any, y: Any, w: Any, b: Any) -> Any:
    total = x + y
    return total, F.layer_norm(total, (130,), w, b, 1e-5)


def modulated(x: Any, scale: Any, shift: Any) -> Any:
    return F.layer_norm(x, (96,), None, None, 1e-6) * (1 + scale) + shift


def bn_add_relu(x: Any, m: Any, v: Any, w: Any, b: Any, y: Any) -> Any:
    return F.relu(F.batch_norm(x, m, v, w, b, False, 0.1, 1e-5) + y)


def gn_silu(x: Any, w: Any, b: Any) -> Any:
    return F.silu(F.group_norm(x, 4, w, b, 1e-6))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def channel_stats(c: int) -> list[torch.Tensor]:
    return [randn(c, seed=2), randn(c, seed=3).abs() + 0.5, randn(c, seed=4), randn(c, seed=5)]


CASES: dict[str, tuple[str, Function, Callable[[], list[torch.Tensor]]]] = {
    "softmax": ("softmax", lambda x: torch.softmax(x, -1), lambda: [randn(3, 5, 77)]),
    "softmax-scale-mask": (
        "softmax",
        lambda x, m: F.softmax(x * 0.125 + m, dim=-1),
        lambda: [randn(2, 3, 9, 64), randn(2, 1, 9, 64, seed=1)],
    ),
    "softmax-upcast": (
        "softmax",
        lambda x: F.softmax(x, dim=-1, dtype=torch.float32).type_as(x),
        lambda: [randn(4, 130)],
    ),
    "log-softmax": ("log_softmax", lambda x: x.log_softmax(-1), lambda: [randn(6, 1001)]),
    "layer-norm": (
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, (5, 26), w, b),
        lambda: [randn(7, 5, 26), randn(5, 26, seed=1), randn(5, 26, seed=2)],
    ),
    "residual-layer-norm": (
        "layer_norm",
        residual_norm,
        lambda: [randn(3, 7, 130), randn(3, 7, 130, seed=1), randn(130, seed=2), randn(130)],
    ),
    "modulated-layer-norm": (
        "layer_norm",
        modulated,
        lambda: [randn(2, 7, 96), randn(2, 1, 96, seed=1), randn(2, 1, 96, seed=2)],
    ),
    "rms-norm": ("rms_norm", rms, lambda: [randn(3, 5, 100), randn(100, seed=1)]),
    "gemma-rms-norm": ("rms_norm", gemma_rms, lambda: [randn(9, 96), randn(96, seed=1)]),
    "strided-rms-norm": (
        "rms_norm",
        rms,
        lambda: [randn(2, 7, 3, 48).transpose(1, 2), randn(48, seed=1)],
    ),
    "builtin-rms-norm": (
        "rms_norm",
        lambda x, w: F.rms_norm(x, (100,), w, 1e-5),
        lambda: [randn(3, 5, 100), randn(100, seed=1)],
    ),
    "group-norm-silu": (
        "group_norm",
        gn_silu,
        lambda: [randn(2, 12, 33, 9), randn(12, seed=1), randn(12, seed=2)],
    ),
    "group-norm-last": (
        "group_norm",
        gn_silu,
        lambda: [
            randn(2, 36, 13, 11).to(memory_format=CL),
            randn(36, seed=1),
            randn(36, seed=2),
        ],
    ),
    "batch-norm-add-relu": (
        "batch_norm",
        bn_add_relu,
        lambda: [randn(2, 6, 7, 9), *channel_stats(6), randn(2, 6, 7, 9, seed=6)],
    ),
    "batch-norm-last": (
        "batch_norm",
        lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)),
        lambda: [randn(2, 24, 7, 9).to(memory_format=CL), *channel_stats(24)],
    ),
    "gelu": ("activation", lambda x: F.gelu(x), lambda: [randn(5, 333) * 3]),
    "gelu-tanh": ("activation", lambda x: F.gelu(x, approximate="tanh"), lambda: [randn(999) * 3]),
    "silu-up": (
        "activation",
        lambda g, u: F.silu(g) * u,
        lambda: [randn(3, 7, 90), randn(3, 7, 90, seed=1)],
    ),
    "tanh-sigmoid": (
        "activation",
        lambda x, y: torch.tanh(x / 30.0) * 30.0 + torch.sigmoid(y),
        lambda: [randn(4, 50) * 40, randn(1, 50, seed=1)],
    ),
    "rotary": (
        "rotary",
        rotate,
        lambda: [randn(2, 5, 3, 32).transpose(1, 2), randn(2, 1, 5, 32), randn(1, 1, 5, 32)],
    ),
    "max-pool": ("pooling", lambda x: F.max_pool2d(x, 3, 2, 1), lambda: [randn(2, 3, 21, 38)]),
    "avg-pool": (
        "pooling",
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda: [randn(2, 3, 20, 37)],
    ),
    "adaptive-pool": (
        "pooling",
        lambda x: F.adaptive_avg_pool2d(x, (1, 1)),
        lambda: [randn(2, 5, 7, 7)],
    ),
}


def inputs_of(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """The case's inputs in a dtype (strides kept)."""
    return [t.to(dtype) for t in CASES[name][2]()]


def with_first(name: str, dtype: torch.dtype, change: Callable[[torch.Tensor], Any]) -> Any:
    """The case's inputs with the first one changed in place."""
    inputs = inputs_of(name, dtype)
    change(inputs[0])
    return inputs
