"""Patterns that no row domain holds: norms before rotary embeddings, causal convolutions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kforge_nb.targets import patterns
from kforge_nb.targets.partition import cut


@pytest.fixture
def fuses(monkeypatch):
    """The CPU counts as a device on which the patterns pay."""
    monkeypatch.setattr(patterns, "FUSES", ("cuda", "cpu"))


def names(graph: Any) -> list[str]:
    return [c.name for c in cut(graph.gm, graph.example_inputs)]


def halves(x: Any) -> Any:
    middle = x.shape[-1] // 2
    return torch.cat((-x[..., middle:], x[..., :middle]), dim=-1)


def turned(x: Any, w: Any, cos: Any, sin: Any) -> Any:
    h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    return h * cos + halves(h) * sin


def test_a_norm_and_the_rotary_embedding_behind_it_are_one(captured, same_bits, fuses):
    """Queries are normalised and turned in one pass."""
    inputs = torch.randn(1, 5, 2, 16), torch.randn(16), torch.randn(5, 1, 16), torch.randn(5, 1, 16)
    graph = captured(turned, *inputs)
    (found,) = cut(graph.gm, graph.example_inputs)
    assert found.family == "rms_norm"
    assert len(found.nodes) == sum(n.op.startswith("call") for n in graph.gm.graph.nodes)
    same_bits(graph, [found])


def test_apart_where_it_does_not_pay(captured):
    """On a CPU the tuned kernels of both are better than one for both."""
    inputs = torch.randn(1, 5, 2, 16), torch.randn(16), torch.randn(5, 1, 16), torch.randn(5, 1, 16)
    graph = captured(turned, *inputs)
    assert [c.family for c in cut(graph.gm, graph.example_inputs)] == ["rms_norm", "rotary"]


@pytest.mark.parametrize("groups", [6, 2])
def test_a_causal_convolution_of_single_channels(groups, captured, same_bits, fuses):
    """With its slice and its activation it is one cut; one that mixes channels stays torch's."""

    def fn(x: Any, w: Any) -> Any:
        return F.silu(F.conv1d(x, w, None, padding=3, groups=groups)[:, :, :9])

    graph = captured(fn, torch.randn(2, 6, 9), torch.randn(6, 6 // groups, 4))
    cuts = cut(graph.gm, graph.example_inputs, vendor=True)
    assert [c.name for c in cuts] == (["conv1d·silu"] if groups == 6 else ["conv1d", "silu"])
    same_bits(graph, cuts)


def test_large_concatenations_are_targets(captured, same_bits, fuses):
    """A large one has a cut of its own, a small one has none."""
    for size, found in ((256, ["cat"]), (2, [])):
        graph = captured(lambda x, y: torch.cat([x, y], dim=1) @ y.mT, *torch.randn(2, 3, size, 64))
        assert names(graph) == found
        same_bits(graph, cut(graph.gm, graph.example_inputs))
