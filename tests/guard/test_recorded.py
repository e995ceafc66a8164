"""A rest with CUDA graphs records what another rest traced and compiled, and nothing anew."""

from __future__ import annotations

import pytest
import torch

from kforge_nb.guard.ahead import Ahead
from kforge_nb.guard.decider import Decider
from kforge_nb.guard.measure import Model, Timer
from kforge_nb.guard.switch import SwitchBackend
from tests.guard.pretend import pretend


@pytest.fixture
def traces(monkeypatch):
    """The rest of each trace by Dynamo, in order; CUDA graphs are pretended."""
    pretend(monkeypatch)
    real, found = SwitchBackend.__call__, []

    def counted(self, gm, example_inputs, **more):
        found.append(self.rest)
        return real(self, gm, example_inputs, **more)

    monkeypatch.setattr(SwitchBackend, "__call__", counted)
    return found


def answer(model, enabled):
    """The first call's result in a variant of a model."""
    model.run(enabled)
    return model.calls[0].run(model.runner(model.calls[0]))


@pytest.mark.parametrize(
    ("rest", "recorded"), [("eager", "cudagraphs"), ("inductor", "inductor-cudagraphs")]
)
def test_two_rests_share_one_trace(rest, recorded, workload, block, x, accept, traces):
    """Each runs its own variants, in turn, with the same results; only one of them replays."""
    kernels = accept(block, x)
    plain = Model.of(workload.calls, kernels, rest)
    every = frozenset(plain.backend.handles)
    expected = {kept: answer(plain, kept) for kept in (every, frozenset[str]())}
    other = plain.recorded(kernels, recorded)
    for kept, result in expected.items():
        torch.testing.assert_close(answer(other, kept), result, rtol=0, atol=0)
        torch.testing.assert_close(answer(plain, kept), result, rtol=0, atol=0)
    assert traces == [rest]
    assert len(other.backend.sites) == 1
    assert other.backend.replaced == plain.backend.replaced
    assert [r.recorded for r in other.backend.compile_rest.replays] == [True, True]
    assert plain.backend.compile_rest.replays == []


def test_a_recorded_rest_knows_only_its_own_kernels(workload, block, x, accept, traces):
    """What the first rest dropped runs its original in the other, whatever is asked for."""
    kernels = accept(block, x)
    plain = Model.of(workload.calls, kernels, "eager")
    expected = answer(plain, frozenset(plain.backend.handles))
    other = plain.recorded(kernels[:1], "cudagraphs")
    torch.testing.assert_close(answer(other, frozenset(plain.backend.handles)), expected)
    (site,) = other.backend.sites
    assert set(site.replaced) == {kernels[0].target_fingerprint}
    launches = [n for n in site.rewritten.graph.nodes if str(n.target) == "kforge.launch.default"]
    assert len(launches) == site.replaced[kernels[0].target_fingerprint]


def test_graphs_that_come_later_are_recorded_too(workload, block, accept, traces):
    """A shape that Dynamo first meets while the recorded rest runs gets a recording there."""
    plain = Model.of(workload.calls, [], "eager")
    plain.run(frozenset())
    other = plain.recorded([], "cudagraphs")
    call, longer = other.calls[0], torch.randn(16, 64)
    with torch.no_grad():
        other.backend.enabled = frozenset()
        assert torch.equal(other.runner(call)(longer), block(longer))
    assert traces == ["eager", "eager"]
    assert [r.recorded for r in other.backend.compile_rest.replays] == [True]


def test_a_decision_traces_once_for_eager_and_cuda_graphs(
    workload, block, x, accept, traces, monkeypatch
):
    """The stage of the recorded rest chooses among the kernels that the eager rest has kept."""
    kernels = accept(block, x)
    decider = Decider(workload.calls, kernels, Timer.of(600), None, (), 0)
    for step in ("weigh", "verify"):
        monkeypatch.setattr(Decider, step, lambda self, stage: None)
    decider.prepare("eager", kernels)
    kept = frozenset(k.target_fingerprint for k in kernels[1:])
    stage = decider.other_rest("cudagraphs", kept)
    assert traces == ["eager"]
    assert set(stage.model.backend.replaced) == kept
    assert stage.kept <= kept
    assert all(replay.recorded for replay in stage.model.backend.compile_rest.replays)


def test_time_for_a_trace_is_asked_only_where_there_is_one(workload, block, x, accept, traces):
    """With too little time for one more trace a recording of what is there is still tried."""
    decider = Decider(workload.calls, [], Timer.of(60), None, (), 0)
    decider.ahead = Ahead()
    decider.prepare("eager", [])
    decider.compile_reserve = 1e9
    assert decider.time_for("cudagraphs")
    assert not decider.time_for("inductor")
    assert not decider.time_for("inductor-cudagraphs")


def test_graphs_that_inductor_records_itself_are_traced_anew(workload, traces):
    """Where the user has Inductor make CUDA graphs, a recording over these would be a second."""
    decider = Decider(workload.calls, [], Timer.of(60), None, (), 0)
    decider.prepare("eager", [])
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        decider.prepare("cudagraphs", [])
    assert traces == ["eager", "cudagraphs"]
