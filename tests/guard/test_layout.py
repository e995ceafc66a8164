"""Kernels that were searched in graphs laid out channels-last: what they are installed in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from kforge_nb.errors import DocumentError
from kforge_nb.guard.accepted import Accepted
from kforge_nb.guard.apply import apply
from kforge_nb.guard.backend import Backend
from kforge_nb.guard.decide import _layout_told
from kforge_nb.guard.decider import Decider
from kforge_nb.guard.laid_out import LAYOUT, wants_layout
from kforge_nb.guard.measure import Timer
from kforge_nb.guard.registry import Registry
from kforge_nb.guard.report import Whole
from kforge_nb.guard.stage import Stage
from kforge_nb.guard.stored import StoredBackend
from kforge_nb.judge.evaluation import Comparison
from kforge_nb.targets.build import target_of
from kforge_nb.targets.channels_last import is_turn, lay_out
from kforge_nb.targets.partition import cut
from kforge_nb.workload.capture import watch
from tests.guard.conftest import add_relu, captured
from tests.guard.test_registry import edit


class Images(nn.Module):
    """Two convolutions, the sum of their answers and its ReLU, and a convolution of that."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.end = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x):
        y = self.one(x)
        return self.end(torch.relu(self.two(y) + y))


@pytest.fixture
def model():
    """The model, seeded, in eval mode."""
    torch.manual_seed(0)
    return Images().eval()


@pytest.fixture
def x():
    """Images laid out as users have them."""
    return torch.randn(2, 8, 16, 16)


@pytest.fixture
def kernel(model, x, build):
    """The kernel of the sum, cut from the graph laid out channels-last."""
    ((gm, inputs),) = captured(model, x)
    (found,) = cut(lay_out(gm, inputs).gm, inputs)
    specs = (*found.input_specs, *found.output_specs)
    assert [spec.stride for spec in specs] == 3 * [(2048, 1, 128, 8)]
    candidate = add_relu()
    return Accepted.of_target(target_of(found), candidate, build(candidate), layout=LAYOUT)


@pytest.fixture
def seen(monkeypatch):
    """Graphs that backends hand to their eager rest."""
    graphs = []

    def compile_rest(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    monkeypatch.setattr("kforge_nb.guard.backend.rest_compiler", lambda rest: compile_rest)
    return graphs


def turns(gm):
    """How many tensors a graph turns."""
    return sum(is_turn(node) for node in gm.graph.nodes)


def run(model, backend, x):
    """One call of the compiled model."""
    with torch.no_grad():
        return torch.compile(model, backend=backend, dynamic=False)(x)


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_a_kernel_is_launched_in_the_layout_that_it_was_searched_in(model, x, kernel, rest):
    """The values and strides of the model's answer are those of before, and no call falls back."""
    with torch.no_grad():
        expected = model(x)
        calls = watch(lambda: model(x)).calls
    with apply([model], [kernel], rest, calls=calls) as applied:
        with torch.no_grad():
            got = model(x)
        counts = applied.counters()
        replaced = applied.report()["graphs"][-1]["replaced"]
    assert replaced == {kernel.target_fingerprint: 1}
    assert (counts["calls"]["compiled"], counts["fallbacks"]) == (1, {})
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)


def test_a_kernel_of_another_layout_leaves_the_graph_as_it_is(model, x, kernel, seen):
    """Nothing is turned for kernels that were searched in the model's own layout."""
    other = replace(kernel, layout="keep")
    assert wants_layout([other, kernel])
    assert not wants_layout([other])
    assert not wants_layout([])
    backend = Backend([other])
    run(model, backend, x)
    assert [turns(gm) for gm in seen] == [0]
    assert backend.graphs[0].replaced == {}
    torch._dynamo.reset()
    run(model, Backend([kernel]), x)
    assert [turns(gm) for gm in seen] == [0, 1]


def test_a_graph_that_needs_a_gradient_is_left_alone(model, x, kernel, seen):
    """What trains runs as the user wrote it, in its own layout."""
    torch.compile(model, backend=Backend([kernel]), dynamic=False)(x).sum().backward()
    assert [turns(gm) for gm in seen] == [0]
    assert model.one.weight.grad is not None


def test_the_layout_alone_is_a_side_of_the_measurement(model, x, kernel, monkeypatch):
    """Without kernels the model is measured as it is and laid out, also against one another."""
    with torch.no_grad():
        calls = watch(lambda: model(x)).calls
    decider = Decider(calls, [kernel], Timer.of(1.0), None, (), 0)
    switched = decider.prepare("eager", [kernel])
    (site,) = switched.backend.sites
    kept = frozenset({kernel.target_fingerprint})
    graphs = [site.graph(chosen) for chosen in (frozenset[str](), frozenset({LAYOUT}), kept)]
    assert [turns(gm) for gm in graphs] == [0, 1, 1]
    assert graphs[0] is site.gm
    stage = Stage("eager", switched, kept)
    monkeypatch.setattr(decider, "_left_out", lambda *_: None)  # whatever this machine is busy with
    monkeypatch.setattr(decider, "_loses", lambda *_: False)
    decider.weigh(stage)
    assert {row.against for row in stage.whole} == {"empty", "eager", "layout"}
    assert stage.laid_out is not None
    assert stage.laid_out.ours_samples_us == stage.against("layout").against_samples_us
    assert stage.laid_out.against_samples_us == stage.against("empty").against_samples_us
    assert frozenset({LAYOUT}) in site._built  # and not measured as the rest without kernels


def test_what_the_layout_brings_is_told():
    """The gain of a rest is split into the layout's part and the kernels'."""
    against = {
        side: Comparison(side, ratio, ratio - 0.1, ratio + 0.1, 9, 1, 1)
        for side, ratio in (("empty", 3.0), ("layout", 2.0), ("alone", 1.5))
    }
    rows = [Whole("guarded", "eager", side, against[side]) for side in ("empty", "layout")]
    stage = Stage("eager", None, frozenset(), rows, laid_out=against["alone"])
    (text,) = _layout_told([stage])
    assert "without any kernel, the model runs at 1.50× (1.40 to 1.60) of this rest" in text
    assert text.endswith("the kernels give 2.00× (1.90 to 2.10) on top of that")
    assert _layout_told([Stage("eager", None, frozenset(), rows[:1])]) == []


def test_a_registry_keeps_the_layout(model, x, kernel, seen, tmp_path):
    """A later process lays graphs out again for the kernels that want it, and for no others."""
    registry = Registry(tmp_path)
    folder = registry.add(kernel)
    assert registry.read(folder).layout == LAYOUT
    backend = StoredBackend(registry)
    torch.testing.assert_close(run(model, backend, x), model(x))
    assert not backend.refused
    assert backend.graphs[0].replaced == {kernel.target_fingerprint: 1}
    torch._dynamo.reset()
    edit(folder, evidence={"rests": {"eager": False}})  # its run kept it out of this rest
    run(model, StoredBackend(registry), x)
    assert [turns(gm) for gm in seen] == [1, 0]
    edit(folder, layout="sideways")
    with pytest.raises(DocumentError, match="layout"):
        registry.read(folder)
