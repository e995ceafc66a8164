"""Each rest decides by itself which kernels it keeps, and the report says so; times are pretended.

Real clocks would make these tests a matter of luck: here a sample is a figure of a table.
"""

from __future__ import annotations

import pytest
import torch

from kforge_nb.guard import decider as steps
from kforge_nb.guard import measure, policy
from kforge_nb.guard.decide import decide
from kforge_nb.guard.decider import Decider
from kforge_nb.guard.stored import not_for
from kforge_nb.workload.capture import watch

UNTOUCHED = 110.0
TIMES = {"eager": (80.0, 100.0), "inductor": (60.0, 50.0)}
"""Of each rest the model's time with any kernel and without, in microseconds."""


@pytest.fixture
def workload(block):
    """One recorded call under no_grad."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(3))

    def cell():
        with torch.no_grad():
            return block(x)

    return watch(cell)


@pytest.fixture
def pretended(monkeypatch):
    """Times by rest and kernels from the table; nothing is compiled, and all outputs are right."""

    def sample_of(model, enabled):
        return lambda: TIMES[model.backend.rest][0 if enabled else 1]

    monkeypatch.setattr(steps, "sample_of", sample_of)
    monkeypatch.setattr(measure, "raw", lambda calls, pace=None: UNTOUCHED * 1e-6)
    monkeypatch.setattr(policy, "_compiler", lambda rest: lambda gm, inputs: gm.forward)
    monkeypatch.setattr(Decider, "screen", lambda self, model: frozenset(model.backend.replaced))
    monkeypatch.setattr(Decider, "verify", lambda self, stage: None)
    monkeypatch.setattr(Decider, "compile_ahead", lambda self, rest, *kept: None)


@pytest.mark.parametrize("rest", ["auto", "inductor"])
def test_a_winner_under_eager_that_loses_under_inductor_is_not_in_inductor(
    rest, workload, block, accept, pretended
):
    """Both rests are in each decision; the best rest's word is the one that counts for the run."""
    x = workload.calls[0].args[0]
    kernels = accept(block, x)
    report = decide(workload, kernels, rest, time_limit=60)
    every = [kernel.target_fingerprint for kernel in kernels]
    assert report.by_rest == {"eager": every, "inductor": []}
    assert report.best_rest == "inductor"
    assert report.installed == []
    for decision in report.to_document()["decisions"]:
        eager, inductor = decision["rests"]
        assert (eager["rest"], eager["installed"]) == ("eager", True)
        assert "runs at 1.25×" in eager["reason"]
        assert (inductor["rest"], inductor["installed"]) == ("inductor", False)
        assert "not faster with it (0.83× (0.83 to 0.84)" in inductor["reason"]
    assert "kernels of 3 that each rest keeps: eager 3, inductor 0" in report.notes


def test_a_rest_that_was_not_asked_for_is_named_as_not_measured(workload, block, accept, pretended):
    """Only eager was to be measured: nothing is said of Inductor but that."""
    report = decide(workload, accept(block, workload.calls[0].args[0]), "eager", time_limit=60)
    assert list(report.by_rest) == ["eager"]
    assert len(report.installed) == 3
    assert "kernels of 3 that each rest keeps: eager 3; not measured: inductor" in report.notes


def test_a_rest_whose_output_is_off_installs_nothing(workload, block, accept, pretended):
    """However fast: its kernels are not applied by name either."""
    x = workload.calls[0].args[0]
    decider = Decider(workload.calls, accept(block, x), measure.Timer.of(60), None, (), 0)
    off = type("Off", (), {"good": False, "figure": "3.000× eager's own error"})()
    model = decider.prepare("eager", [])
    decider.measured = [
        steps.Stage("inductor", model, frozenset(decider.accepted), fidelity=off),
    ]
    for decision in decider.decisions(None):
        (found,) = decision.rests
        assert not found.installed
        assert "3.000× eager's own error" in found.reason


def test_under_inductor_all_kernels_go_at_once(workload, block, accept, pretended, monkeypatch):
    """A smaller set would be one more compile, which nothing can break off, for no reason."""
    kernels = accept(block, workload.calls[0].args[0])
    decider = Decider(workload.calls, kernels, measure.Timer.of(60), None, (), 0)
    model = decider.prepare("inductor", kernels)
    stage = steps.Stage("inductor", model, frozenset(decider.accepted))
    asked, real = set(), steps.sample_of

    def sample_of(model, enabled):
        asked.add(enabled)
        return real(model, enabled)

    monkeypatch.setattr(steps, "sample_of", sample_of)
    decider.weigh(stage)
    assert stage.kept == frozenset()
    assert asked == {frozenset(), frozenset(decider.accepted)}
    assert "with all kernels 0.83×" in stage.reasons[kernels[0].target_fingerprint]


def test_measuring_leaves_time_to_a_compile_that_is_still_to_come(workload, monkeypatch):
    """Else Inductor, which comes last and takes longest, would never be decided."""
    decider = Decider(workload.calls, [], measure.Timer.of(1000), None, (), 0)
    decider.reserve = 500.0
    assert 90 < decider.part(0.2).left <= 100
    asked = []
    monkeypatch.setattr(
        decider.ahead, "compile", lambda sites, kept, timer, *more: asked.append(timer.left) or ""
    )
    decider.compile_ahead("inductor", frozenset())
    assert 600 < asked[0] <= 700
    assert 190 < decider.part(0.2).left <= 200


def test_the_registry_keeps_a_kernel_out_of_rests_that_are_faster_without_it():
    """Recordings follow what they record; what was not measured, and old entries, are as ever."""
    evidence = {"rests": {"eager": True, "inductor": False}}
    assert not not_for(evidence, "eager")
    assert not not_for(evidence, "cudagraphs")
    assert "rest='inductor'" in not_for(evidence, "inductor")
    assert not_for(evidence, "inductor-cudagraphs")
    assert not not_for({}, "inductor")
    assert not not_for({"rests": {"eager": True}}, "inductor")
