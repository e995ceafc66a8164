"""Short forms of the launch op: the same launch without lists, chosen as the last step."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.guard import launch
from kforge_nb.guard.policy import Rest
from kforge_nb.guard.short import direct, shorten
from kforge_nb.targets.target import TensorSpec

SPEC = TensorSpec((8, 64), (64, 1), "float32", "cpu")


def lists(inputs, handle):
    """A launch as graphs are rewritten with it."""
    return torch.ops.kforge.launch.default(inputs, handle)


@pytest.fixture
def handle(build, kernels):
    """A fresh handle of add_relu at 8x64, with no shadow checks."""
    candidate = kernels["add_relu"]()
    graph = fx.symbolic_trace(lambda a, b: (torch.relu(a + b),))
    return launch.register(candidate, build(candidate), graph, [SPEC, SPEC], [SPEC], shadow=0)


@pytest.fixture
def single(build, kernels):
    """A handle of a kernel with one input: relu(x) as relu(x + 0)."""
    args = ("in0", "out0", "i64:numel(in0)", "i32:nthreads")
    source = (
        "#include <cstdint>\n"
        'extern "C" void relu(const float* a, float* o, int64_t n, int32_t) {'
        " for (int64_t i = 0; i < n; ++i) o[i] = a[i] > 0 ? a[i] : 0; }"
    )
    candidate = Candidate("cpp", source, LaunchPlan((Kernel("relu", args),)))
    graph = fx.symbolic_trace(lambda a: (torch.relu(a),))
    return launch.register(candidate, build(candidate), graph, [SPEC], [SPEC], shadow=0)


@pytest.fixture
def pair(build, kernels):
    """A handle of a kernel with two outputs."""
    candidate = kernels["both"]()
    graph = fx.symbolic_trace(lambda a, b: (a + b, torch.relu(a + b)))
    return launch.register(candidate, build(candidate), graph, [SPEC] * 2, [SPEC] * 2, shadow=0)


def test_a_short_launch_is_the_same_launch(handle):
    """Result, copies and counters are those of the form with lists."""
    a, b = torch.randn(64, 8).t(), torch.randn(8, 64)
    assert torch.equal(torch.ops.kforge.launch.in2(a, b, handle), torch.relu(a + b))
    assert launch.counters(handle) == {"launches": 1, "copies": 1, "shadowed": 0, "fallbacks": {}}


@pytest.mark.filterwarnings("ignore:kforge")
def test_fallbacks_of_a_short_launch(handle):
    """Gradients flow, other shapes and the kill switch give the original, each counted."""
    a, b = torch.randn(8, 64, requires_grad=True), torch.randn(8, 64)
    op = torch.ops.kforge.launch.in2
    op(a, b, handle).sum().backward()
    assert torch.equal(a.grad, ((a + b) > 0).float())
    assert torch.equal(op(b[:4], b[:4], handle), torch.relu(b[:4] + b[:4]))
    with launch.originals():
        assert torch.equal(op(b, b, handle), torch.relu(b + b))
    assert launch.counters(handle)["launches"] == 0
    assert launch.counters(handle)["fallbacks"] == {
        "a gradient is needed": 1, "another shape": 1, "the kill switch is on": 1,
    }  # fmt: skip


def test_a_shadow_check_gives_its_result_through_a_short_launch(handle):
    """What the check hands on is what the caller gets."""
    launch.shadow_calls(handle, 1)
    a = torch.randn(8, 64)
    assert torch.equal(torch.ops.kforge.launch.in2(a, a, handle), torch.relu(a + a))
    assert launch.counters(handle)["shadowed"] == 1


def test_a_form_with_other_outputs_is_refused(pair, handle):
    """In words, rather than answered with half of the result, or with more than there is."""
    a = torch.randn(8, 64)
    with pytest.raises(RuntimeError, match="2 outputs is called in a form with 1"):
        torch.ops.kforge.launch.in2(a, a, pair)
    with pytest.raises(RuntimeError, match="1 outputs is called in a form with 2"):
        torch.ops.kforge.launch.in2out2(a, a, handle)


@pytest.mark.filterwarnings("ignore:kforge")
def test_two_outputs_come_without_a_list(pair):
    """From the kernel, from the original and from a shadow check, with their gradients."""
    a, b = torch.randn(8, 64, requires_grad=True), torch.randn(8, 64)
    op = torch.ops.kforge.launch.in2out2
    total, clipped = op(a, b, pair)
    (total + clipped).sum().backward()
    assert torch.equal(a.grad, 1 + ((a + b) > 0).float())
    launch.shadow_calls(pair, 1)
    with torch.no_grad():
        for _ in range(2):
            for mine, theirs in zip(op(a, b, pair), (a + b, torch.relu(a + b)), strict=True):
                assert torch.equal(mine, theirs)
    found = launch.counters(pair)
    assert (found["launches"], found["shadowed"]) == (2, 1)
    assert found["fallbacks"] == {"a gradient is needed": 1}


def graph_of(function, *example):
    """A graph as the backend rewrites it, traced through fakes so that meta is filled in."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake")(*example)


def test_shorten_replaces_what_it_can(handle, pair):
    """Launches become short, with one output or two; one whose list is used stays; values hold."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)

    def function(x, y):
        first = lists([x, y], handle)[0]
        total, clipped = lists([first, y], pair)
        return lists([total, clipped], handle)[0] * 2

    traced = graph_of(function, a, b)
    short = shorten(traced)
    targets = [node.target for node in short.graph.nodes]
    assert targets.count(torch.ops.kforge.launch.in2) == 2
    assert targets.count(torch.ops.kforge.launch.in2out2) == 1
    assert torch.ops.kforge.launch.default not in targets
    assert torch.equal(short(a, b), function(a, b))
    assert torch.equal(shorten(traced, as_python=True)(a, b), function(a, b))
    whole = graph_of(lambda x, y: torch.stack(lists([x, y], pair)), a, b)
    for node in whole.graph.nodes:
        if node.target is torch.ops.aten.stack.default:
            node.args = (node.args[0][0].args[0],)  # the list itself
    whole.graph.eliminate_dead_code()
    assert shorten(whole) is whole
    launches = [n for n in short.graph.nodes if n.target is torch.ops.kforge.launch.in2]
    assert [tuple(node.meta["val"].shape) for node in launches] == [(8, 64), (8, 64)]
    assert torch.ops.kforge.launch.in2 not in [node.target for node in traced.graph.nodes]


@pytest.mark.filterwarnings("ignore:kforge")
def test_a_graph_that_runs_as_python_calls_the_c_function(handle):
    """The same results and counts, also with a gradient needed, without the op's Python object."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    traced = graph_of(lambda x, y: lists([lists([x, y], handle)[0], y], handle)[0], a, b)
    short = shorten(traced, as_python=True)
    assert [node.target for node in short.graph.nodes].count(direct(2)) == 2
    assert torch.equal(short(a, b), torch.relu(torch.relu(a + b) + b))
    assert launch.counters(handle)["launches"] == 2
    x, plain = a.clone().requires_grad_(), a.clone().requires_grad_()
    short(x, b).sum().backward()
    torch.relu(torch.relu(plain + b) + b).sum().backward()
    assert torch.equal(x.grad, plain.grad)
    assert launch.counters(handle)["fallbacks"] == {"a gradient is needed": 2}


def test_the_packet_takes_one_input_as_it_is(handle, single):
    """The op itself resolves a tensor and a handle to the short form, and lists to the other."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    op = torch.ops.kforge.launch
    assert op.overloads()[0] == "in1"  # the one that is tried first costs least
    assert torch.equal(op(a, single), torch.relu(a))
    assert torch.equal(op(a, b, handle), torch.relu(a + b))
    assert torch.equal(op([a, b], handle)[0], torch.relu(a + b))
    assert launch.counters(handle)["launches"] == 2
    assert launch.counters(single)["launches"] == 1


def test_the_eager_rest_runs_the_short_form(handle):
    """What apply() installs costs the host as little as the benchmark says."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    traced = graph_of(lambda x, y: lists([x, y], handle)[0], a, b)
    run = Rest("eager")(traced, [a, b])
    assert torch.equal(run(a, b), torch.relu(a + b))
    nodes = run.__self__.graph.nodes
    assert [node.target for node in nodes if node.op == "call_function"] == [direct(2)]


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_a_region_that_stands_still_is_short_in_a_graph_that_grows(handle, rest):
    """Sizes change around a kernel (decode): one symbolic graph, the kernel on every call."""
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return Rest(rest)(gm, example_inputs)

    def function(rows, x, y):
        return rows.sum(0) + lists([x, y], handle)[0], rows * 2

    compiled = torch.compile(function, backend=backend, dynamic=True)
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    torch._dynamo.mark_static(a)
    torch._dynamo.mark_static(b)
    with torch.no_grad():
        for count in (3, 5, 9):
            rows = torch.randn(count, 64)
            for mine, theirs in zip(
                compiled(rows, a, b), (rows.sum(0) + torch.relu(a + b), rows * 2), strict=True
            ):
                torch.testing.assert_close(mine, theirs)
    assert len(graphs) == 1
    assert launch.counters(handle)["launches"] == 3


def test_inductor_takes_two_outputs(pair):
    """Both come out of one opaque call, and what is around them is fused as ever."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)

    def function(x, y):
        total, clipped = lists([x * 2, y], pair)
        return total - 1, clipped + 1

    compiled = torch.compile(function, backend=Rest("inductor"), dynamic=False, fullgraph=True)
    expected = (a * 2 + b - 1, torch.relu(a * 2 + b) + 1)
    with torch.no_grad():
        for mine, theirs in zip(compiled(a, b), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert launch.counters(pair)["launches"] == 1


@pytest.mark.parametrize("count", [5, 8, 9])
def test_up_to_eight_inputs_are_short(build, count):
    """A sum of so many tensors; beyond eight the form with lists stays, and is right as well."""
    pointers = ", ".join(f"const float* a{i}" for i in range(count))
    total = " + ".join(f"a{i}[k]" for i in range(count))
    source = (
        f'#include <cstdint>\nextern "C" void sum({pointers}, float* o, int64_t n, int32_t) {{'
        f" for (int64_t k = 0; k < n; ++k) o[k] = {total}; }}"
    )
    names = tuple(f"in{i}" for i in range(count))
    args = (*names, "out0", "i64:numel(in0)", "i32:nthreads")
    candidate = Candidate("cpp", source, LaunchPlan((Kernel("sum", args),)))
    original = fx.Graph()
    inputs = [original.placeholder(name) for name in names]
    value = inputs[0]
    for other in inputs[1:]:
        value = original.call_function(torch.add, (value, other))
    original.output((value,))
    gm = fx.GraphModule({}, original)
    handle = launch.register(candidate, build(candidate), gm, [SPEC] * count, [SPEC], shadow=0)
    given = [torch.randn(8, 64) for _ in range(count)]
    traced = graph_of(lambda *tensors: lists(list(tensors), handle)[0], *given)
    short = shorten(traced, as_python=True)
    (call,) = [n for n in short.graph.nodes if n.op == "call_function" and n.args[-1] == handle]
    expected = direct(count) if count <= 8 else torch.ops.kforge.launch.default
    assert call.target is expected
    torch.testing.assert_close(short(*given), sum(given))
    assert launch.counters(handle)["launches"] == 1


def test_shorten_leaves_other_graphs_alone():
    """A graph without launches comes back as it is."""
    gm = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    assert shorten(gm) is gm


def test_inductor_is_given_the_short_form(handle, monkeypatch):
    """It stays one opaque call in Inductor's code, and the marks of weights reach Inductor."""
    from torch._dynamo import lookup_backend

    from kforge_nb.guard import policy

    taken = []

    def compiler(rest):
        def compile_graph(gm, example_inputs):
            taken.append(gm)
            return lookup_backend(rest)(gm, example_inputs)

        return compile_graph

    monkeypatch.setattr(policy, "_compiler", compiler)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 64))

        def forward(self, x):
            return lists([x * 2, self.weight], handle)[0] - 1

    model, x = Model(), torch.randn(8, 64)
    compiled = torch.compile(model, backend=Rest("inductor"), dynamic=False, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), torch.relu(x * 2 + model.weight) - 1)
    assert launch.counters(handle)["launches"] == 1
    (short,) = taken
    assert torch.ops.kforge.launch.in2 in [node.target for node in short.graph.nodes]
    assert short._param_name_to_source
    inputs = [node for node in short.graph.nodes if node.op == "placeholder"]
    assert all(hasattr(node, "_dynamo_source") for node in inputs)
