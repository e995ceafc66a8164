"""Biases of convolutions go into the region behind them, and back where no kernel takes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kforge_nb.targets import biases
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.partition import cut
from kforge_nb.targets.rewrite import replace
from kforge_nb.targets.target import TensorSpec
from kforge_nb.workload.capture import capture_graphs, watch


class Block(nn.Module):
    """As in an image decoder: norm behind one convolution, a residual behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 3, 1)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: Any) -> Any:
        h = nn.functional.silu(self.norm(self.first(x)))
        return self.last((x + self.second(h)) / 1.0)


@pytest.fixture
def split(monkeypatch):
    """Biases are split on the CPU as on a GPU."""
    monkeypatch.setattr(biases, "DEVICES", ("cuda", "cpu"))


def convolutions(gm: Any) -> list[Any]:
    """The biases of the convolutions of a graph, None where there is none, in order."""
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and n.target is torch.conv2d]
    return [n.kwargs.get("bias", n.args[2] if len(n.args) > 2 else None) for n in nodes]


def test_norm_and_residual_take_the_bias_before_them(captured, split):
    """The norm's cut and the residual's begin with the convolution's bare answer and the bias."""
    graph = captured(Block(), torch.randn(1, 8, 6, 6))
    norm, residual = cut(graph.gm, graph.example_inputs)
    assert (norm.name, residual.name) == ("add·group_norm·silu", "add·div")
    assert [s.shape for s in norm.input_specs[:2]] == [(1, 16, 6, 6), (1, 16, 1, 1)]
    assert len(residual.inputs) == 3
    before = {n.name for n in graph.gm.graph.nodes}
    assert {n.name for n in norm.flow.nodes if n.target is torch.conv2d} <= before


def test_taken_biases_leave_the_convolution_and_others_stay(captured, split):
    """A replaced region computes the same; a convolution before no region keeps its bias."""
    graph = captured(Block(), torch.randn(1, 8, 6, 6))
    cuts = cut(graph.gm, graph.example_inputs)
    expected = graph.gm(*graph.example_inputs)[0]
    for chosen, bare in ((cuts, [True, True, False]), (cuts[1:], [False, True, False])):
        rewritten = replace(graph.gm, [(c, c.to_graph()) for c in chosen])
        assert [b is None for b in convolutions(rewritten)] == bare
        torch.testing.assert_close(rewritten(*graph.example_inputs)[0], expected)


def test_a_rewritten_graph_can_be_cut_again(captured, split):
    """What stood for a split bias once does not do so in the graph that comes out."""
    graph = captured(Block(), torch.randn(1, 8, 6, 6))
    cuts = cut(graph.gm, graph.example_inputs)
    once = replace(graph.gm, [(cuts[1], cuts[1].to_graph())])
    again = cut(once, graph.example_inputs)
    assert again[0].fingerprint == cuts[0].fingerprint
    twice = replace(once, [(c, c.to_graph()) for c in again])
    expected = graph.gm(*graph.example_inputs)[0]
    torch.testing.assert_close(twice(*graph.example_inputs)[0], expected)


def test_without_a_choice_nothing_changes(captured, split):
    """No replacement: the same bits, and convolutions with their biases."""
    graph = captured(Block(), torch.randn(1, 8, 6, 6))
    only = [c for c in cut(graph.gm, graph.example_inputs) if c.family == "none of them"]
    rewritten = replace(graph.gm, only)
    assert torch.equal(rewritten(*graph.example_inputs)[0], graph.gm(*graph.example_inputs)[0])
    assert None not in convolutions(rewritten)


def test_captured_inputs_are_bare_answers(split):
    """A target with a bias gets the convolution's answer without it, and the bias by itself."""
    model, x = Block(), torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        norm = find_targets(capture_graphs(watch(lambda: model(x))))[0]
        bare = nn.functional.conv2d(x, model.first.weight, padding=1)
    (inputs,) = norm.captured.sets()
    torch.testing.assert_close(inputs[0], bare)
    assert torch.equal(inputs[1].reshape(-1), model.first.bias)
    assert tuple(TensorSpec.of(t) for t in inputs) == norm.inputs


class Plain(nn.Module):
    """A convolution with a bias, and arithmetic behind it."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=groups)

    def forward(self, x: Any) -> Any:
        return nn.functional.silu(self.conv(x)) * 2.0


@pytest.mark.parametrize(
    ("groups", "shape", "split_off"),
    [(1, (1, 8, 8, 8), True), (1, (8, 8, 8), False), (8, (1, 8, 8, 8), False)],
    ids=["batch", "single image", "depthwise"],
)
def test_only_batches_in_one_group_are_split(groups, shape, split_off, captured, split):
    """A single image's bias would meet its height, and kernels for groups add it for nothing."""
    graph = captured(Plain(groups), torch.randn(shape))
    gm = biases.split_biases(graph.gm)
    assert (gm is not graph.gm) is split_off
    torch.testing.assert_close(gm(*graph.example_inputs), graph.gm(*graph.example_inputs))


def test_on_a_cpu_convolutions_stay_whole(captured):
    """Libraries for the CPU add a bias on the way: nothing to gain there."""
    graph = captured(Block(), torch.randn(1, 8, 6, 6))
    assert cut(graph.gm, graph.example_inputs)[0].flow.gm is graph.gm


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_on_a_gpu_the_split_computes_the_same_bits(captured, same_bits, dtype, layout):
    """The library's own addition of a bias is the one that the split writes down."""
    model = Block().to("cuda", dtype, memory_format=layout)
    x = torch.randn(1, 8, 64, 64, device="cuda", dtype=dtype).to(memory_format=layout)
    graph = captured(model, x)
    cuts = cut(graph.gm, graph.example_inputs)
    assert [c.name for c in cuts] == ["add·group_norm·silu", "add·div"]
    same_bits(graph, cuts)
