"""Gated delta rules as linear attentions write them, in chunks and by tokens, and their targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from kforge_nb.targets.build import find_targets
from kforge_nb.targets.target import Target
from kforge_nb.workload.capture import capture_graphs, watch

__all__ = ["Rule", "by_chunks", "by_tokens", "delta_inputs", "delta_target"]


class Rule(nn.Module):
    """A module without parameters around a function, so that Dynamo captures it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def _unit(x: Any) -> Any:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def _heads_first(x: Any) -> Any:
    return x.transpose(1, 2).contiguous().to(torch.float32)


def by_tokens(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any = None) -> Any:
    """One token after the other; with a state the last one is handed out as well."""
    kept = v.dtype
    if q.shape[2] != v.shape[2]:
        q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    q, k, v, g, beta = (_heads_first(x) for x in (q, k, v, g, beta))
    q, k = _unit(q) / q.shape[-1] ** 0.5, _unit(k)
    batch, heads, length, size = v.shape
    given = state is not None
    state = state.to(v) if given else v.new_zeros(batch, heads, k.shape[-1], size)
    out = torch.zeros_like(v)
    for t in range(length):
        state = state * g[:, :, t].exp()[..., None, None]
        seen = (state * k[:, :, t].unsqueeze(-1)).sum(-2)
        change = (v[:, :, t] - seen) * beta[:, :, t].unsqueeze(-1)
        state = state + k[:, :, t].unsqueeze(-1) * change.unsqueeze(-2)
        out[:, :, t] = (state * q[:, :, t].unsqueeze(-1)).sum(-2)
    out = out.transpose(1, 2).contiguous().to(kept)
    return (out, state) if given else out


def by_chunks(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any = None, size: int = 16) -> Any:
    """Chunk after chunk, each by a triangular system; with a state the last one comes as well."""
    kept, length, given = v.dtype, v.shape[1], state is not None
    if q.shape[2] != v.shape[2]:
        q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    q, k, v, g, beta = (_heads_first(x) for x in (q, k, v, g, beta))
    q, k = _unit(q) * q.shape[-1] ** -0.5, _unit(k)
    more = -length % size
    q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (q, k, v))
    g, beta = (F.pad(x, (0, more)) for x in (g, beta))
    strong = (v * beta.unsqueeze(-1)).unflatten(2, (-1, size))
    weighed = (k * beta.unsqueeze(-1)).unflatten(2, (-1, size))
    q, k = (x.unflatten(2, (-1, size)) for x in (q, k))
    g = g.unflatten(2, (-1, size)).cumsum(-1)
    later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    between = (g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()
    system = (weighed @ k.transpose(-1, -2)) * between
    inner = (q @ k.transpose(-1, -2)) * between
    news = torch.linalg.solve_triangular(system, strong, upper=False, unitriangular=True)
    decayed = weighed * g.exp().unsqueeze(-1)
    olds = torch.linalg.solve_triangular(system, decayed, upper=False, unitriangular=True)
    batch, heads = q.shape[:2]
    state = state.to(v) if given else v.new_zeros(batch, heads, k.shape[-1], v.shape[-1])
    out = torch.zeros_like(news)
    for c in range(news.shape[2]):
        change = news[:, :, c] - olds[:, :, c] @ state
        reach = q[:, :, c] * g[:, :, c].exp().unsqueeze(-1)
        out[:, :, c] = reach @ state + inner[:, :, c] @ change
        rest = (g[:, :, c, -1:] - g[:, :, c]).exp().unsqueeze(-1)
        total = g[:, :, c, -1].exp()[..., None, None]
        state = state * total + (k[:, :, c] * rest).transpose(-1, -2) @ change
    out = out.flatten(2, 3)[:, :, :length].transpose(1, 2).contiguous().to(kept)
    return (out, state) if given else out


def delta_inputs(
    batch: int, length: int, key_heads: int, heads: int, key_size: int, value_size: int,
    dtype: torch.dtype = torch.float32, *, turned: bool = False, state: bool = False,
) -> list[torch.Tensor]:  # fmt: skip
    """Queries, keys, values, decay, strength and maybe a state; ``turned``: tokens side by side."""
    chance = torch.Generator().manual_seed(5)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance)

    rows = [randn(batch, length, key_heads, key_size).to(dtype) for _ in range(2)]
    rows.append(randn(batch, length, heads, value_size).to(dtype))
    if turned:
        rows = [x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in rows]
    decay = -F.softplus(randn(batch, length, heads)) * torch.rand(heads, generator=chance) * 4
    beta = randn(batch, length, heads).sigmoid().to(dtype)
    states = [randn(batch, heads, key_size, value_size) * 0.3] if state else []
    return [*rows, decay, beta, *states]


def delta_target(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> Target:
    """The one target that holds all of ``fn``, with these inputs captured."""
    module = Rule(fn)
    with torch.no_grad():
        found = find_targets(capture_graphs(watch(lambda: module(*inputs))))
    (target,) = [t for t in found if t.family == "delta_rule"]
    return target
