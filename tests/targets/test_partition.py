"""Granularities, determinism, growth with the graph, and what the rewriter refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from kforge_nb.errors import BadInput
from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.partition import cut
from kforge_nb.targets.regions import find_regions
from kforge_nb.targets.rewrite import Replacement, replace
from kforge_nb.targets.schedule import Schedule, contracted_order


class Norm(nn.Module):
    """An RMS norm as models compose it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """Norm, projection, activation, residual."""

    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.up = nn.Linear(8, 8)
        self.act = nn.GELU()

    def forward(self, x):
        return x + self.act(self.up(self.norm(x)))


@pytest.fixture
def model():
    return nn.Sequential(Block(), Block(), Norm())


def test_module_granularity_takes_bodies_of_vendor_free_modules(model, captured, same_bits):
    """Both norms of the blocks, the last norm, and the activations; never the linear layer."""
    graph = captured(model, torch.randn(2, 4, 8))
    cuts = cut(graph.gm, graph.example_inputs, "module")
    assert [c.module_path for c in cuts] == ["0.norm", "0.act", "1.norm", "1.act", "2"]
    assert cuts[0].fingerprint == cuts[2].fingerprint == cuts[4].fingerprint
    assert len(cuts[0].inputs) == 2
    same_bits(graph, cuts)


def test_op_granularity_takes_each_operator_alone(model, captured, same_bits):
    """Every computing operator but the vendor ones, each as one cut."""
    graph = captured(model, torch.randn(2, 4, 8))
    cuts = cut(graph.gm, graph.example_inputs, "op")
    assert all(len(c.nodes) == 1 for c in cuts)
    assert [c.name for c in cuts][:6] == ["pow", "mean", "add", "rsqrt", "mul", "mul"]
    assert all(not c.vendor for c in cuts)
    same_bits(graph, cuts)


def test_an_unknown_granularity_is_told_the_known_ones(captured):
    """The message lists what there is."""
    graph = captured(lambda x: torch.exp(x), torch.randn(2, 2))
    with pytest.raises(BadInput, match="op, module or region"):
        cut(graph.gm, graph.example_inputs, "layer")


def test_cutting_twice_gives_the_same_cuts(model, captured):
    """Profile and guard cut at different times and must agree."""
    one = captured(model, torch.randn(2, 4, 8))
    two = captured(model, torch.randn(2, 4, 8))
    first, second = (cut(g.gm, g.example_inputs) for g in (one, two))
    assert [c.fingerprint for c in first] == [c.fingerprint for c in second]
    assert [[n.name for n in c.nodes] for c in first] == [[n.name for n in c.nodes] for c in second]


def test_a_subset_of_the_cuts_can_be_replaced(model, captured):
    """Only what was accepted is swapped; results stay the same."""
    graph = captured(model, torch.randn(2, 4, 8))
    cuts = cut(graph.gm, graph.example_inputs)
    expected = graph.gm(*graph.example_inputs)[0]
    for keep in range(len(cuts)):
        chosen = [(cuts[keep], cuts[keep].to_graph())]
        rewritten = replace(graph.gm, chosen)
        assert torch.equal(rewritten(*graph.example_inputs)[0], expected)
        assert len(rewritten.graph.nodes) < len(graph.gm.graph.nodes) + 1
    assert torch.equal(graph.gm(*graph.example_inputs)[0], expected)


def test_calls_get_inputs_in_order_then_constants(captured):
    """A packed call gets one list and the extra arguments, as the launch op does."""
    graph = captured(lambda x, y: torch.exp(x - y) * 2, torch.randn(4), torch.randn(4))
    (found,) = cut(graph.gm, graph.example_inputs)
    seen = []

    def launch(inputs, handle):
        seen.append((len(inputs), handle))
        return [torch.exp(inputs[0] - inputs[1]) * 2]

    rewritten = replace(graph.gm, [Replacement(found, launch, (7,), packed=True)])
    assert torch.equal(rewritten(*graph.example_inputs)[0], graph.gm(*graph.example_inputs)[0])
    assert seen == [(2, 7)]
    call = next(n for n in rewritten.graph.nodes if n.target is launch)
    assert call.meta["kforge"] == found.fingerprint


def test_foreign_and_overlapping_cuts_are_refused(captured):
    """A cut of another graph, or the same cut twice, is a mistake of the caller."""
    one = captured(lambda x: torch.exp(x) * 2, torch.randn(4))
    two = captured(lambda x: torch.exp(x) * 2, torch.randn(4))
    (cut_one,), (cut_two,) = (cut(g.gm, g.example_inputs) for g in (one, two))
    call = cut_one.to_graph()
    with pytest.raises(BadInput, match="another graph"):
        replace(one.gm, [(cut_two, call)])
    with pytest.raises(BadInput, match="overlap"):
        replace(one.gm, [(cut_one, call), (cut_one, call)])


def test_symbolic_sizes_are_never_taken_for_static_ones():
    """Compiled with dynamic shapes, only regions of static size are cut."""
    graphs = []

    def backend(gm, inputs):
        graphs.append((gm, inputs))
        return gm.forward

    def fn(x, w):
        return F.softmax(x * 2, -1), torch.exp(w) * w

    compiled = torch.compile(fn, backend=backend, dynamic=True)
    with torch.no_grad():
        torch._dynamo.mark_dynamic(x := torch.randn(5, 8), 0)
        weight = torch.nn.Parameter(torch.randn(8))
        compiled(x, weight)
    gm, inputs = graphs[-1]
    cuts = cut(gm, inputs)
    assert [c.name for c in cuts] in ([["exp·mul"]], ["exp·mul"], [])
    assert all("softmax" not in c.name for c in cuts)


def long_graph(layers):
    """A transformer-like chain of ``layers`` × 10 nodes."""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    h = x
    for _ in range(layers):
        square = graph.call_method("pow", (h, 2))
        mean = graph.call_method("mean", (square, -1), {"keepdim": True})
        eps = graph.call_function(torch.add, (mean, 1e-6))
        scale = graph.call_function(torch.rsqrt, (eps,))
        normed = graph.call_function(torch.mul, (h, scale))
        gate = graph.call_function(F.linear, (normed, w))
        up = graph.call_function(F.linear, (normed, w))
        act = graph.call_function(F.silu, (gate,))
        both = graph.call_function(torch.mul, (act, up))
        h = graph.call_function(torch.add, (h, both))
    graph.output((h,))
    return fx.GraphModule({}, graph)


def steps_for(layers):
    gm = long_graph(layers)
    flow = analyse(gm, [torch.randn(4, 4), torch.randn(4, 4)])
    schedule = Schedule(flow.deps)
    groups = find_regions(flow, schedule)
    contracted_order(flow.deps, groups)
    return schedule.steps, sum(len(d) for d in flow.deps), len(groups)


def test_work_grows_linearly_with_the_graph():
    """Four times the nodes cost at most a little over four times the steps (no clock involved)."""
    small, small_edges, groups = steps_for(100)
    large, large_edges, many = steps_for(400)
    assert (groups, many) == (101, 401)
    assert large_edges <= 4.1 * small_edges
    assert large <= 4.5 * small


@pytest.mark.slow
def test_twenty_thousand_nodes_are_cut_and_rewritten():
    """A graph of an unrolled model's size: 20,000 nodes, every layer's regions found."""
    gm = long_graph(2000)
    inputs = [torch.randn(4, 4) * 0.1, torch.randn(4, 4) * 0.1]
    cuts = cut(gm, inputs)
    assert len(cuts) == 2001
    assert len({c.fingerprint for c in cuts}) <= 5
    rewritten = replace(gm, [(c, c.to_graph().forward) for c in cuts])
    with torch.no_grad():
        assert torch.equal(rewritten(*inputs)[0], gm(*inputs)[0])
