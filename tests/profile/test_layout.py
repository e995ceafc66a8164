"""The choice of a layout: what is timed, what is said, and what it does to the targets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kforge_nb.errors import BadInput
from kforge_nb.options import OptimizeOptions
from kforge_nb.profile import layout
from kforge_nb.profile.layout import choose_layout, lay_out_graphs
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.channels_last import is_turn
from kforge_nb.workload.capture import capture_graphs, watch

CHANNELS_LAST = (1024, 1, 64, 4)


@pytest.fixture
def workload():
    """Two equal convolutions with a GELU between them, called twice, captured."""
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))).eval()
    model.insert(1, nn.GELU())
    x = torch.randn(2, 4, 16, 16)

    def cell():
        with torch.no_grad():
            model(x)
            model(x)

    return capture_graphs(watch(cell))


@pytest.fixture
def times(monkeypatch):
    """Microseconds by side, instead of those of this machine."""
    sides = {"keep": 1000.0, "channels_last": 500.0, "turn": 50.0}
    monkeypatch.setattr(layout, "_timed", lambda works, _seconds: [sides[w.side] for w in works])
    return sides


def strides(workload):
    """Strides of the activation's input."""
    (target,) = (t for t in find_targets(workload) if t.name == "gelu")
    return target.inputs[0].stride


def test_a_layout_that_is_faster_is_taken_and_told(workload, times):
    """Two convolutions of two calls: 4 ms against 2, and a turn in and one out of each call."""
    choose_layout(workload, "auto", 20_000.0, 0.1)
    assert workload.layout == "channels_last"
    assert strides(workload) == CHANNELS_LAST
    told = "4 ms as they are and 2 ms channels-last, turning inputs and outputs 0.2 ms; the model"
    assert workload.notes[0] == f"convolutions take {told} is laid out channels-last"
    assert "eager on the same channels-last tensors" in workload.notes[1]


@pytest.mark.parametrize(
    ("changed", "whole_us", "why"),
    [
        (
            {"channels_last": 960.0, "turn": 0.0},
            1000.0,
            "the convolutions are not surely faster channels-last",
        ),
        ({"turn": 490.0}, 20_000.0, "less than 3% of a run would be saved (0.2%)"),
        ({"turn": 600.0}, 20_000.0, "turning inputs and outputs takes what it would save"),
        ({}, 200_000.0, "less than 3% of a run would be saved (0.9%)"),
    ],
    ids=["nothing gained", "the turns leave too little", "the turns take all", "a small part"],
)
def test_a_layout_without_a_sure_gain_is_left(workload, times, changed, whole_us, why):
    """Each condition alone keeps the model as it is; the figures and the reason are told."""
    times.update(changed)
    choose_layout(workload, "auto", whole_us, 0.1)
    assert workload.layout == "keep"
    assert strides(workload) == (1024, 256, 16, 1)
    assert workload.notes[-1].endswith(f"the model stays as it is laid out: {why}")


def test_timings_that_disagree_are_told_with_their_spread(workload, monkeypatch):
    """A gain that only one of two timings shows is not taken, and the figures say how far apart."""
    looks = iter(
        [{"keep": 2500.0, "channels_last": 500.0}, {"keep": 500.0, "channels_last": 500.0}]
    )

    def timed(works, _seconds):
        sides = next(looks)
        sides |= {"channels_last": 500.0, "turn": 50.0}
        return [sides[work.side] for work in works]

    monkeypatch.setattr(layout, "_timed", timed)
    choose_layout(workload, "auto", 20_000.0, 0.1)
    assert workload.layout == "keep"
    assert workload.notes == [
        "convolutions take 2 to 10 ms as they are and 2 ms channels-last, turning inputs and "
        "outputs 0.2 ms; the model stays as it is laid out: only 1 of 2 timings shows a gain worth "
        "having"
    ]


def test_auto_really_times_both_layouts(workload):
    """Equal convolutions are timed once, on an input as it lies and on a turned one."""
    (graph,) = workload.graphs
    works = {}
    layout._add_convolutions(works, graph)
    assert [(work.side, work.calls) for work in works.values()] == [
        ("keep", 4),
        ("channels_last", 4),
    ]
    with torch.no_grad():
        answers = [work.make()() for work in works.values()]
    assert [a.is_contiguous(memory_format=torch.channels_last) for a in answers] == [False, True]
    assert all(us > 0 for us in layout._timed(list(works.values()), 0.01))


def test_keep_touches_and_says_nothing(workload):
    """The graphs stay the very objects that were captured."""
    before = [graph.gm for graph in workload.graphs]
    choose_layout(workload, "keep", 1.0, 0.1)
    assert [graph.gm for graph in workload.graphs] == before
    assert (workload.layout, workload.notes) == ("keep", [])


def test_a_resumed_run_lays_its_graphs_out_again(workload):
    """Without timing; what has been laid out stays so when it is asked for once more."""
    lay_out_graphs(workload)
    lay_out_graphs(workload)
    assert workload.layout == "channels_last"
    (graph,) = workload.graphs
    assert sum(is_turn(node) for node in graph.gm.graph.nodes) == 1
    assert strides(workload) == CHANNELS_LAST


def test_what_cannot_be_laid_out_is_told(workload):
    """Asked for by name, a graph that stays says why."""
    x = torch.randn(2, 4, 16, 16, requires_grad=True)
    model = nn.Conv2d(4, 4, 3)
    needing = capture_graphs(watch(lambda: model(x)))
    choose_layout(needing, "channels_last", 0.0, 0.0)
    assert needing.layout == "keep"
    assert any("is not laid out channels-last: a gradient" in note for note in needing.notes)
    without = capture_graphs(watch(torch.no_grad()(lambda: nn.Linear(4, 4)(torch.randn(2, 4)))))
    choose_layout(without, "channels_last", 0.0, 0.0)
    assert without.notes == [
        "no convolution of images is called, so --layout channels_last does nothing"
    ]


def test_the_option_has_three_values():
    """``auto`` unless something else is said; a slip is named."""
    assert OptimizeOptions.of({}).layout == "auto"
    with pytest.raises(BadInput, match="--layout"):
        OptimizeOptions.of({"layout": "channelslast"})
