"""The backend: traps of cutting and replacing, with each rest."""

from __future__ import annotations

import pytest
import torch

from kforge_nb.errors import BadInput
from kforge_nb.guard import launch
from kforge_nb.guard.backend import Backend, gradients_block
from kforge_nb.guard.policy import dynamic_for, rest_compiler
from kforge_nb.workload.capture import capture_graphs, watch


def compiled(function, accepted, rest="eager", dynamic=False):
    """(callable, backend) of a function or module compiled with kernels."""
    backend = Backend(accepted, rest)
    return torch.compile(function, backend=backend, dynamic=dynamic), backend


def replaced(backend):
    """Occurrences replaced in each graph."""
    return [sum(g.replaced.values()) for g in backend.graphs]


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_kernels_run_and_the_result_is_right(block, accept, rest, device):
    """All three targets are launched with every rest; Inductor keeps the launches in its graph."""
    x = torch.randn(8, 64, device=device)
    accepted = accept(block, x)
    assert len(accepted) == 3
    run, backend = compiled(block, accepted, rest)
    before = [launch.counters(h)["launches"] for h in backend.handles.values()]
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), block(x))
    after = [launch.counters(h)["launches"] for h in backend.handles.values()]
    assert replaced(backend) == [3]
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 3, 3]
    assert backend.graphs[0].rest == rest
    assert backend.calls == 3


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_gradients_equal_eagers(block, accept, rest, device):
    """no_grad, grad, frozen weights, then an input that needs a gradient: always eager's."""
    x = torch.randn(8, 64, device=device)
    run, backend = compiled(block, accept(block, x), rest)
    with torch.no_grad():
        run(x)

    def gradients(call, value):
        block.zero_grad()
        call(value).square().sum().backward()
        return [p.grad.clone() for p in block.parameters() if p.grad is not None]

    for mine, theirs in zip(gradients(run, x), gradients(block, x), strict=True):
        torch.testing.assert_close(mine, theirs)
    block.requires_grad_(False)
    frozen = run(x)
    assert not frozen.requires_grad
    torch.testing.assert_close(frozen, block(x))
    results = []
    for call in (run, block):
        leaf = x.clone().requires_grad_()
        call(leaf).square().sum().backward()
        results.append(leaf.grad)
    torch.testing.assert_close(results[0], results[1])
    kinds = [count for count in replaced(backend) if count]
    assert kinds in ([3], [3, 3])  # no_grad; torch 2.11 does not compile anew for frozen weights
    plain = [graph for graph in backend.graphs if not graph.replaced]
    assert all("gradient" in graph.reasons[0] for graph in plain)
    assert plain


@pytest.mark.filterwarnings("ignore:kforge")
def test_weights_unfrozen_after_compiling(block, accept, device):
    """A graph compiled for frozen weights gives eager's gradients once they are trained."""
    x = torch.randn(8, 64, device=device)
    block.requires_grad_(False)
    run, backend = compiled(block, accept(block, x))
    run(x)
    assert replaced(backend) == [3]
    block.requires_grad_(True)
    gradients = []
    for call in (run, block):
        block.zero_grad()
        call(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in block.parameters()])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_grad_mode_switched_on_inside_the_graph(accept, device):
    """A graph that enables grad itself is left alone when an input needs a gradient."""

    class Inner(torch.nn.Module):
        def forward(self, x):
            with torch.enable_grad():
                return torch.relu(x + 1 + x)

    module, x = Inner(), torch.randn(8, 64, device=device)
    run, _ = compiled(module, accept(module, x))
    leaf = x.clone().requires_grad_()
    with torch.no_grad():
        out = run(leaf)
    out.sum().backward()
    other = x.clone().requires_grad_()
    module(other).sum().backward()
    assert torch.equal(leaf.grad, other.grad)


class Mutating(torch.nn.Module):
    """Reads before and after a write in place."""

    def forward(self, x, y):
        h = torch.relu(x + y)
        x.add_(1)
        return h * x, torch.relu(x + y)


class Aliasing(torch.nn.Module):
    """Outputs that alias inputs, and the same value handed out twice."""

    def forward(self, x, y):
        h = torch.relu(x + y)
        return h, h.view(-1), x.contiguous(), h


class InPlaceOnOwn(torch.nn.Module):
    """Writes into what it made itself."""

    def forward(self, x, y):
        h = x + y
        h.relu_()
        return h.mul_(2)


class SeveralOutputs(torch.nn.Module):
    """A region whose inner value is needed outside too, before and after its end."""

    def forward(self, x, y):
        h = x + y
        return torch.relu(h), h @ h.t()


@pytest.mark.parametrize(
    ("make", "choose", "count"),
    [
        (Mutating, None, 1),
        (Aliasing, None, 1),
        (InPlaceOnOwn, "doubled", 1),
        (SeveralOutputs, "both", 1),
    ],
)
def test_mutation_order_aliases_and_several_outputs(accept, kernels, make, choose, count, device):
    """Results, in-place changes and aliasing are eager's, with kernels really installed."""
    module = make()
    x, y = torch.randn(8, 64, device=device), torch.randn(8, 64, device=device)
    source = kernels["add_relu"]().source.replace("v != v ? v : 0", "v != v ? 2 * v : 0")
    by_name = {"doubled": kernels["add_relu"](source), "both": kernels["both"]()}
    options = {} if choose is None else {"choose": lambda cut: by_name[choose]}
    accepted = accept(module, x.clone(), y, **options)
    run, backend = compiled(module, accepted)
    mine, theirs = x.clone(), x.clone()
    with torch.no_grad():
        got, expected = run(mine, y), module(theirs, y)
    assert torch.equal(mine, theirs)
    got = got if isinstance(got, tuple) else (got,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
    storages = [[t.untyped_storage()._cdata for t in ts] for ts in (got, expected)]
    groups = [[[a == b for b in row] for a in row] for row in storages]
    assert groups[0] == groups[1]
    assert sum(replaced(backend)) >= count


class WritesToOneInput(torch.nn.Module):
    """Reads one input before and after a write to another."""

    def forward(self, x, y):
        h = torch.relu(x + y)
        y.add_(1)
        return torch.relu(h + x)


def test_inputs_that_overlap_at_a_later_call(accept, device):
    """No guard sees two views of one memory, so kernels hold for these too: reads stay in order."""
    module, x = WritesToOneInput(), torch.randn(16, 64, device=device)
    accepted = accept(module, torch.randn(8, 64, device=device), torch.randn(8, 64, device=device))
    run, backend = compiled(module, accepted)
    with torch.no_grad():
        run(torch.randn(8, 64, device=device), torch.randn(8, 64, device=device))
        mine, theirs = x.clone(), x.clone()
        got = run(mine[:8], mine[4:12])
        torch.testing.assert_close(got, module(theirs[:8], theirs[4:12]))
    assert torch.equal(mine, theirs)
    assert len(backend.graphs) == 1
    assert sum(replaced(backend)) == 2


def test_two_instances_of_a_class(accept, make_block, device):
    """One backend serves both instances with their own weights: none is baked into a launch."""
    one, two, x = make_block(1), make_block(2), torch.randn(8, 64, device=device)
    accepted = accept(one, x)
    backend = Backend(accepted)
    for module in (one, two):
        with torch.no_grad():
            run = torch.compile(module, backend=backend, dynamic=False)
            torch.testing.assert_close(run(x), module(x))


def test_shapes_a_b_a_keep_the_kernels(block, accept, device):
    """With dynamic=False shape A still has its kernels after shape B was seen."""
    a, b = torch.randn(8, 64, device=device), torch.randn(5, 64, device=device)
    run, backend = compiled(block, accept(block, a), dynamic=dynamic_for(["a", "b"]))
    handles = list(backend.handles.values())
    with torch.no_grad():
        for x in (a, b, a):
            torch.testing.assert_close(run(x), block(x))
    assert replaced(backend) == [3, 0]
    before = [launch.counters(h)["launches"] for h in handles]
    with torch.no_grad():
        run(a)
    assert [launch.counters(h)["launches"] - n for h, n in zip(handles, before, strict=True)] == [
        1, 1, 1,
    ]  # fmt: skip


def test_a_symbolic_graph_keeps_regions_of_static_size(accept, device):
    """With dynamic=None the region whose own sizes stand still keeps its kernel in both rests."""

    class Grows(torch.nn.Module):
        def forward(self, x, cache):
            h = torch.relu(x + x.flip(-1))
            return h @ torch.cat([cache, h]).t()

    module, x = Grows().eval(), torch.randn(8, 64, device=device)
    accepted = accept(module, x, torch.randn(3, 64, device=device))
    assert len(accepted) == 1
    for rest in ("eager", "inductor"):
        torch._dynamo.reset()
        run, backend = compiled(module, accepted, rest, dynamic=None)
        with torch.no_grad():
            for rows in (3, 4, 5, 6, 7, 8, 9, 10, 11):
                cache = torch.randn(rows, 64, device=device)
                torch.testing.assert_close(run(x, cache), module(x, cache))
        assert replaced(backend) == [1, 1]


def test_views_that_the_guards_do_not_see(accept, device):
    """A misaligned and an offset input do not recompile; the launch copies where it must."""
    x, y = torch.randn(8, 64, device=device), torch.randn(8, 64, device=device)

    class First(torch.nn.Module):
        def forward(self, x, y):
            return torch.relu(x + y)

    module = First()
    run, backend = compiled(module, accept(module, x, y))
    handle = next(iter(backend.handles.values()))
    start = launch.counters(handle)["copies"]
    odd = torch.randn(8 * 64 + 1, device=device)[1:].view(8, 64)
    offset = torch.randn(9, 64, device=device)[1:]
    with torch.no_grad():
        for value in (x, odd, offset):
            assert torch.equal(run(value, y), module(value, y))
    assert len(backend.graphs) == 1
    assert launch.counters(handle)["copies"] - start == 1


def test_a_failing_rest_falls_back_to_eager(block, accept, monkeypatch):
    """Where Inductor cannot compile a graph, that graph runs with an eager rest and says so."""
    x = torch.randn(8, 64)
    run, backend = compiled(block, accept(block, x), "inductor")

    def broken(gm, example_inputs):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(backend, "compile_rest", broken)
    with torch.no_grad():
        torch.testing.assert_close(run(x), block(x))
    assert backend.graphs[0].rest == "eager"
    assert "no such luck" in backend.graphs[0].reasons[-1]


def test_bad_choices_are_refused(accept, block):
    """Unknown rests, CUDA graphs without CUDA, and two kernels for one target are BadInput."""
    with pytest.raises(BadInput, match="rest"):
        rest_compiler("fast")
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="CUDA"):
            rest_compiler("cudagraphs")
    accepted = accept(block, torch.randn(8, 64))
    with pytest.raises(BadInput, match="two kernels"):
        Backend([accepted[0], accepted[0]])


def test_shape_policy():
    """Few shapes are compiled one by one, many make the graph symbolic."""
    assert dynamic_for(["a"]) is False
    assert dynamic_for("abc") is False
    assert dynamic_for("abcd") is None
    assert dynamic_for([]) is False


def test_gradients_block_only_where_every_graph_needs_one(block):
    """Trainable calls with grad mode on leave no place for a kernel; one call without is enough."""
    x = torch.randn(8, 64)

    def without():
        with torch.no_grad():
            return block(x)

    def inference():
        with torch.inference_mode():
            return block(x)

    def both():
        return block(x), without()

    cells = [lambda: block(x), without, inference, both]
    for found in (watch, lambda cell: capture_graphs(watch(cell))):
        assert [gradients_block(found(cell)) for cell in cells] == [True, False, False, False]
    block.requires_grad_(False)
    leaf = x.clone().requires_grad_()
    for found in (watch, lambda cell: capture_graphs(watch(cell))):
        assert not gradients_block(found(lambda: block(x)))
        assert gradients_block(found(lambda: block(leaf)))
