"""The guard keeps its time: what does not fit is not begun, and is told with its reason."""

from __future__ import annotations

import threading

import pytest

from kforge_nb.guard import ahead, measure, policy
from kforge_nb.guard import decider as steps
from kforge_nb.guard.ahead import Ahead, NotFinished
from kforge_nb.guard.decide import decide
from kforge_nb.guard.decider import Decider
from kforge_nb.guard.measure import Model, Stopped, Timer
from kforge_nb.guard.spending import FIDELITY_SECONDS, TIME_OVER
from kforge_nb.guard.stage import Late, Stage
from kforge_nb.guard.switch import SwitchBackend
from tests.guard.pretend import pretend


@pytest.fixture
def built(monkeypatch):
    """The variants that Inductor was to compile here; it hands graphs back as they are."""
    found = []

    def compiler(rest):
        def compile_(gm, inputs):
            if "inductor" in rest:
                found.append(sum("kforge" in str(n.target) for n in gm.graph.nodes))
            return gm.forward

        return compile_

    monkeypatch.setattr(policy, "_compiler", compiler)
    monkeypatch.setattr(ahead, "_run", lambda request, timer: [""] * len(request["graphs"]))
    monkeypatch.setattr(steps, "WHOLE_ROUNDS", 3)
    monkeypatch.setattr(steps, "PLACE_ROUNDS", 3)
    return found


def decider_of(workload, accepted, seconds=600.0):
    """A decider whose eager rest is ready."""
    found = Decider(workload.calls, accepted, Timer.of(seconds), None, (), 0)
    found.prepare("eager", accepted)
    return found


def test_a_compile_that_does_not_fit_is_not_begun(workload, block, x, accept, built):
    """It cannot be broken off; what the last one took is what the next one is taken to need."""
    kernels = accept(block, x)
    decider = decider_of(workload, kernels)
    decider.compile_reserve = 1e4
    with pytest.raises(Late, match=TIME_OVER):
        decider.prepare("inductor", kernels)
    assert built == []
    decider.compile_reserve = 0.0
    real = SwitchBackend.build

    def slow(self, enabled):
        real(self, enabled)
        decider.timer.deadline -= 1e3  # as if it had taken so long

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwitchBackend, "build", slow)
        with pytest.raises(Late):
            decider.prepare("inductor", kernels)
    assert built == [3]


def test_a_trace_that_does_not_fit_is_not_begun(workload, monkeypatch):
    """Where the eager rest's graphs cannot be shared one more trace has to fit as well."""
    decider = decider_of(workload, [])
    monkeypatch.setattr(SwitchBackend, "fixed", False)
    monkeypatch.setattr(Model, "of", lambda *args: pytest.fail("traced"))
    decider.compile_reserve, decider.trace_seconds = 0.0, 1e4
    with pytest.raises(Late, match=TIME_OVER):
        decider.prepare("inductor", [])


def test_a_run_without_time_for_inductor_decides_the_rests_before_it(
    workload, block, x, accept, built, monkeypatch
):
    """Eager and CUDA graphs have their decisions; the others are told with what would do."""
    pretend(monkeypatch)
    monkeypatch.setattr("kforge_nb.guard.decide._on_cuda", lambda call: True)
    monkeypatch.setattr(Decider, "screen", lambda self, model: frozenset(model.backend.replaced))
    monkeypatch.setattr(Decider, "verify", lambda self, stage: None)
    real = Decider.prepare

    def prepare(self, rest, kernels, *early):
        found = real(self, rest, kernels, *early)
        if rest == "eager":
            self.compile_reserve = 1e3
        return found

    monkeypatch.setattr(Decider, "prepare", prepare)
    report = decide(workload, accept(block, x), time_limit=30)
    assert list(report.by_rest) == ["eager", "cudagraphs"]
    assert built == []
    for rest in ("inductor", "inductor-cudagraphs"):
        (note,) = [n for n in report.notes if n.startswith(f"rest={rest} was not tried: ")]
        assert f"{TIME_OVER} (--guard-time 30; about " in note
    assert any(
        note.endswith("not measured: inductor, inductor-cudagraphs") for note in report.notes
    )


def test_only_the_first_rests_fidelity_may_end_late(workload):
    """It decides what is installed at all; and it ends late once, not once for each check."""
    decider = Decider(workload.calls, [], Timer.of(0.0), None, (), 0)
    assert 0.9 * FIDELITY_SECONDS < decider.for_fidelity("eager").left <= FIDELITY_SECONDS
    assert decider.for_fidelity("cudagraphs").left <= 0
    decider.timer.deadline -= FIDELITY_SECONDS
    assert decider.for_fidelity("eager").left <= 0
    stage = Stage("cudagraphs", decider_of(workload, []), frozenset())
    for step in (decider.weigh, decider.verify):
        with pytest.raises(Late, match=TIME_OVER):
            step(stage)


def test_measuring_leaves_time_to_fidelity(workload):
    """A rest that was timed but could not be checked would be time spent for nothing."""
    decider = Decider(workload.calls, [], Timer.of(1000.0), None, (), 0)
    decider.fidelity_seconds = 500.0
    assert 90 < decider.part(0.2).left <= 100
    decider.compile_reserve = 200.0
    assert decider.for_compile().left <= 100
    decider.timer.deadline -= 200.0
    assert not decider.time_for("inductor")


def test_kernels_that_spoil_inductors_output_go_at_once(workload, block, x, accept, monkeypatch):
    """To ask about each alone would be as many compiles here, which nothing can break off."""
    kernels = accept(block, x)
    decider = Decider(workload.calls, kernels, Timer.of(600.0), None, (), 0)
    asked = []

    def fidelity(self, stage, kept, least=8):
        asked.append(kept)
        good = not kept
        return type("Found", (), {"good": good, "figure": "3.0× eager's own error"})()

    monkeypatch.setattr(Decider, "_fidelity", fidelity)
    monkeypatch.setattr(Decider, "weigh", lambda self, stage: None)
    monkeypatch.setattr(steps, "give_up", lambda *a, **k: pytest.fail("asked about single ones"))
    stage = Stage("inductor", None, frozenset(decider.accepted))
    decider.verify(stage)
    assert asked == [frozenset(decider.accepted), frozenset()]
    assert stage.kept == frozenset()
    assert stage.fidelity.good
    assert all("3.0× eager's own error" in why for why in stage.reasons.values())
    assert len(stage.reasons) == len(kernels)


@pytest.fixture
def beside(workload, monkeypatch):
    """The sites of a workload, on a machine with cores enough to compile beside."""
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: set(range(16)))
    return decider_of(workload, []).sites


def test_what_was_begun_beside_is_waited_for_and_not_compiled_again(beside, monkeypatch):
    """The processes stand back behind the notebook, and their answers count."""
    asked, go = [], threading.Event()

    def run(request, timer):
        asked.append(request.get("nice", 0))
        assert go.wait(60)
        return ["no such operator"]

    monkeypatch.setattr(ahead, "_run", run)
    one = Ahead()
    assert one.begin(beside, frozenset(), Timer.of(60))
    assert not one.begin(beside, frozenset(), Timer.of(60))
    go.set()
    assert one.compile(beside, frozenset(), Timer.of(60)) == "no such operator"
    assert asked == [ahead.BESIDE_NICE]


def test_with_few_cores_nothing_is_compiled_beside(beside, monkeypatch):
    """It would only disturb what goes on meanwhile."""
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(ahead, "_run", lambda *given: pytest.fail("compiled"))
    assert not Ahead().begin(beside, frozenset(), Timer.of(60))


@pytest.mark.parametrize("how", ["time", "stop", "end"])
def test_what_was_begun_beside_ends_with_the_guard(how, beside, monkeypatch):
    """Time and Stop end it while it is waited for; the guard's end does so in any case."""
    halted = threading.Event()

    def run(request, timer):
        while not timer.stopped:
            timer.stop.wait(0.05)
        halted.set()
        timer.check()

    monkeypatch.setattr(ahead, "_run", run)
    one, stop = Ahead(), threading.Event()
    assert one.begin(beside, frozenset(), Timer.of(60))
    if how == "end":
        one.stop()
    elif how == "stop":
        stop.set()
        with pytest.raises(Stopped):
            one.compile(beside, frozenset(), Timer.of(60, stop))
    else:
        with pytest.raises(NotFinished, match="did not finish"):
            one.compile(beside, frozenset(), Timer.of(0.0))
    assert halted.is_set()


def test_the_compile_beside_is_begun_once_kernels_are_known(
    workload, block, x, accept, built, monkeypatch
):
    """After the eager rest is timed, before its fidelity; and it is ended whatever comes."""
    order = []
    for owner, name in ((Decider, "weigh"), (Ahead, "begin"), (Decider, "verify"), (Ahead, "stop")):
        real = getattr(owner, name)

        def told(self, *given, _name=name, _real=real):
            order.append(_name)
            return None if _name == "verify" else _real(self, *given)

        monkeypatch.setattr(owner, name, told)
    kernels = accept(block, x)
    decide(workload, kernels, time_limit=60)
    assert order[:3] == ["weigh", "begin", "verify"]
    assert order[-1] == "stop"
    order.clear()
    monkeypatch.setattr(measure, "raw", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decide(workload, kernels, "eager", time_limit=60)
    assert order == ["weigh", "stop"]


def test_the_wanted_time_is_more_than_was_given(workload):
    """A note that asks for the time there was would help nobody."""
    decider = Decider(workload.calls, [], Timer.of(100.0), None, (), 0)
    assert decider.wanted() == 150
    decider.trace_seconds = 10.0
    decider.timer.deadline -= 75.0
    assert decider.wanted() == 230
