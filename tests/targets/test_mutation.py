"""Writes and aliases: a cut is made only where replacing it cannot change a result."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import fx

from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.partition import cut
from kforge_nb.targets.schedule import contracted_order


def names(cuts):
    return [[n.name for n in c.nodes] for c in cuts]


def test_an_input_written_between_first_and_last_node_splits_the_region(captured, same_bits):
    """``relu(x)``, then ``x += 1``, then a product with x: fused by edges it would be wrong."""

    def fn(x):
        h = torch.exp(x)
        x.add_(1)
        return torch.tanh(h * x)

    graph = captured(fn, torch.randn(4, 8))
    cuts = cut(graph.gm, graph.example_inputs)
    assert len(cuts) == 2
    same_bits(graph, cuts)


def test_a_region_writes_only_to_what_it_made(captured, same_bits):
    """``out = batch_norm(x); out += x; relu(out)`` is one region, although it works in place."""

    def fn(x, mean, var):
        out = F.batch_norm(x, mean, var)
        out += x
        return F.relu(out, inplace=True)

    graph = captured(fn, torch.randn(2, 3, 4, 4), torch.zeros(3), torch.ones(3))
    cuts = cut(graph.gm, graph.example_inputs)
    assert [len(c.nodes) for c in cuts] == [3]
    same_bits(graph, cuts)


def test_a_write_to_an_argument_is_never_inside_a_cut(captured, same_bits):
    """In place on the caller's tensor: the write stays, only what follows may be cut."""

    def fn(x):
        x.mul_(2)
        return torch.exp(x) + 1

    graph = captured(fn, torch.randn(4, 8))
    for granularity in ("op", "region"):
        cuts = cut(graph.gm, graph.example_inputs, granularity)
        assert cuts
        assert all("mul_" not in str(n.target) for c in cuts for n in c.nodes)
        same_bits(graph, cuts)


def test_a_write_through_a_view_is_seen(captured, same_bits):
    """The write goes to a slice of the value; the whole value's later readers come after it."""

    def fn(x):
        y = torch.exp(x)
        z = torch.tanh(y)
        y[:, 0] = 0.0
        return z * y

    graph = captured(fn, torch.randn(4, 8))
    flow = analyse(graph.gm, graph.example_inputs)
    write = next(i for i, op in enumerate(flow.operators) if op.name == "setitem")
    made = next(i for i, op in enumerate(flow.operators) if op.name == "exp")
    assert flow.mutated[write] == flow.roots[made]
    same_bits(graph, cut(graph.gm, graph.example_inputs))


def test_outputs_never_share_storage_with_inputs_or_each_other(captured, same_bits):
    """What hands its input back (dropout in eval, a cast to the same dtype) stays outside."""

    def fn(x):
        y = F.dropout(x, 0.5, training=False)
        z = y.to(torch.float32)
        w = torch.exp(z) * 2
        return z, w, w.view(-1), w.contiguous()

    graph = captured(fn, torch.randn(4, 8))
    cuts = cut(graph.gm, graph.example_inputs)
    assert len(cuts) == 1
    flow = cuts[0].flow
    roots = [flow.roots[flow.index[n]] for n in (*cuts[0].inputs, *cuts[0].outputs)]
    assert len(roots) == len(set(roots))
    rewritten = same_bits(graph, cuts)
    x = torch.randn(4, 8)
    out = rewritten(x)
    assert out[0].data_ptr() == x.data_ptr()
    assert out[2].data_ptr() == out[1].data_ptr()


def test_arguments_that_share_a_storage_are_one_storage(captured):
    """Two views of one tensor passed as two arguments: a write to one orders the other."""

    def fn(a, b):
        h = torch.exp(b)
        a.add_(1)
        return h * torch.tanh(b)

    base = torch.randn(4, 8)
    graph = captured(fn, base[:2], base[:2])
    flow = analyse(graph.gm, graph.example_inputs)
    write = next(i for i, roots in enumerate(flow.mutated) if roots)
    later = next(i for i, op in enumerate(flow.operators) if op.name == "tanh")
    assert write in flow.deps[later]


def test_random_calls_keep_their_order(captured, same_bits):
    """A region never holds a random call, and two of them are never swapped."""

    def fn(x):
        a = torch.rand_like(x)
        b = torch.rand_like(x)
        return torch.exp(a * 2) - torch.exp(b * 2)

    graph = captured(fn, torch.randn(4, 8))
    cuts = cut(graph.gm, graph.example_inputs)
    flow = cuts[0].flow
    first, second = [i for i, op in enumerate(flow.operators) if op.kind == "random"]
    assert first in flow.deps[second]
    assert all(flow.operators[flow.index[n]].kind != "random" for c in cuts for n in c.nodes)


def test_observing_changes_neither_inputs_nor_the_random_state(captured):
    """The graph is run once to see what it does; nobody notices."""

    def fn(x, noise):
        x.add_(torch.rand_like(x))
        return x * noise

    graph = captured(fn, torch.zeros(4), torch.ones(4))
    before = [t.clone() for t in graph.example_inputs]
    state = torch.random.get_rng_state()
    analyse(graph.gm, graph.example_inputs)
    assert all(torch.equal(a, b) for a, b in zip(before, graph.example_inputs, strict=True))
    assert torch.equal(state, torch.random.get_rng_state())


def test_two_regions_never_need_each_other(same_bits):
    """Each convex alone, together a cycle: only one of them may be formed."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    a1 = graph.call_function(torch.exp, (x,))
    b1 = graph.call_function(torch.tanh, (x,))
    wall = graph.call_function(torch.linalg.matrix_exp, (a1,))
    wall2 = graph.call_function(torch.linalg.matrix_exp, (b1,))
    a2 = graph.call_function(torch.mul, (a1, wall2))
    b2 = graph.call_function(torch.mul, (b1, wall))
    graph.output((a2, b2))
    gm = fx.GraphModule({}, graph)
    cuts = cut(gm, [torch.randn(4, 4)])
    flow = cuts[0].flow
    groups = [[flow.index[n] for n in c.nodes] for c in cuts]
    order = contracted_order(flow.deps, groups)
    assert sorted(i for item in order for i in item) == list(range(len(flow.nodes)))
    assert not any({"exp", "mul"} <= set(map(str, n)) and len(n) == 4 for n in names(cuts))


def test_fake_and_traced_observation_agree_with_the_real_one(captured):
    """Three ways to see a graph, one answer: aliases, writes, order."""

    def fn(x, w):
        h = F.layer_norm(x.float(), (8,), w)
        view = h.transpose(0, 1).contiguous().transpose(0, 1)
        part, rest = view.chunk(2, dim=-1)
        part = F.dropout(part, 0.1, training=False)
        rest = rest * 2
        rest += part
        h[:, 0] = 1.0
        return F.relu(rest, inplace=True), h.expand(1, 4, 8), part

    graph = captured(fn, torch.randn(4, 8), torch.ones(8))
    real = analyse(graph.gm, graph.example_inputs)
    fakes = [n.meta["example_value"] for n in graph.gm.graph.nodes if n.op == "placeholder"]
    traced = analyse(graph.gm, fakes)
    bare = fx.Graph()
    made = {}
    for node in graph.gm.graph.nodes:
        made[node] = bare.node_copy(node, made.__getitem__)
        made[node].meta = {}
    symbolic = [torch.empty_like(t, device="meta") for t in graph.example_inputs]
    fake = analyse(fx.GraphModule({}, bare), symbolic)
    for other in (traced, fake):
        assert _partition(other.roots) == _partition(real.roots)
        assert _partition(other.mutated) == _partition(real.mutated)
        assert other.deps == real.deps
        assert other.aliases == real.aliases


def _partition(rows):
    seen: dict[int, int] = {}
    return [tuple(seen.setdefault(r, len(seen)) for r in row) for row in rows]


def test_a_module_that_writes_to_its_input_is_not_cut_whole(captured, same_bits):
    """Its body writes to a tensor that is not its own, though only the product leaves it."""

    class Doubles(torch.nn.Module):
        def forward(self, x):
            x.mul_(2)
            return torch.exp(x)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Doubles()

        def forward(self, x):
            return self.inner(x) + x

    graph = captured(Outer(), torch.randn(4, 8))
    cuts = cut(graph.gm, graph.example_inputs, "module")
    assert all(n.target != "mul_" for c in cuts for n in c.nodes)
    same_bits(graph, cuts)


def test_one_tensor_under_two_names_is_handed_out_once(captured, same_bits):
    """``z = y.add_(1)`` and ``y`` are the same tensor for the caller, also after rewriting."""

    def fn(x):
        y = torch.exp(x) * 2
        z = y.add_(1)
        return y, z, torch.matmul(z, y)

    graph = captured(fn, torch.randn(4, 4))
    cuts = cut(graph.gm, graph.example_inputs)
    for found in cuts:
        flow = found.flow
        roots = [root for n in found.outputs for root in flow.roots[flow.index[n]]]
        assert len(roots) == len(set(roots))
    rewritten = same_bits(graph, cuts)
    calls = [n for n in rewritten.graph.nodes if n.op == "call_module"]
    outputs = rewritten(torch.randn(4, 4))
    assert calls
    assert outputs[0].data_ptr() == outputs[1].data_ptr()
