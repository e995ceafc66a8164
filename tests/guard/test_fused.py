"""Inductor compiles the graphs of the eager rest's trace: the same code, nothing traced anew."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from kforge_nb.guard.ahead import Ahead
from kforge_nb.guard.measure import Model, Timer
from kforge_nb.guard.switch import SwitchBackend
from kforge_nb.workload.capture import watch


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Inductor's cache is empty, and the test's own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


@pytest.fixture
def traces(monkeypatch):
    """The rest of each trace by Dynamo, in order."""
    real, found = SwitchBackend.__call__, []

    def counted(self, gm, example_inputs, **more):
        found.append(self.rest)
        return real(self, gm, example_inputs, **more)

    monkeypatch.setattr(SwitchBackend, "__call__", counted)
    return found


def answer(model, enabled):
    """The result of a variant of a model."""
    model.backend.enabled = enabled
    return model.calls[0].run(model.runner(model.calls[0]))


def test_what_the_children_compiled_is_found_after_the_trace(workload, block, x, accept, traces):
    """With, without and with some kernels the compile is read from Inductor's cache.

    And what runs is what a trace of its own would run, to the bit.
    """
    kernels = accept(block, x)
    every = frozenset(k.target_fingerprint for k in kernels)
    some = frozenset([kernels[0].target_fingerprint])
    plain = Model.of(workload.calls, kernels, "eager")
    before = {kept: answer(plain, kept) for kept in (every, frozenset[str]())}
    assert plain.backend.fixed
    assert Ahead().compile(plain.backend.sites, every, Timer.of(200), some) == ""
    counters.clear()
    fused = plain.fused(kernels, "inductor")
    for kept in (every, frozenset[str](), some):
        fused.backend.build(kept)
    found = counters["inductor"]
    assert found["fxgraph_cache_hit"] == 3, dict(found)
    assert not found["fxgraph_cache_miss"]
    assert traces == ["eager"]
    results = {kept: answer(fused, kept) for kept in (every, frozenset[str](), some)}
    assert traces == ["eager"]
    for kept, result in before.items():  # the eager rest is as it was
        torch.testing.assert_close(answer(plain, kept), result, rtol=0, atol=0)
    torch._dynamo.reset()
    anew = Model.of(workload.calls, kernels, "inductor", early=[some])
    for kept, result in results.items():
        torch.testing.assert_close(answer(anew, kept), result, rtol=0, atol=0)
    assert traces == ["eager", "inductor"]


def test_graphs_with_gradients_or_changing_sizes_are_traced_anew(block, x):
    """What such a graph is compiled to hangs on guards that only a trace of its own can set."""
    workload = watch(lambda: block(x))
    model = Model.of(workload.calls, [], "eager")
    model.run(frozenset())
    assert not model.backend.fixed
    with torch.no_grad():
        sizes = [torch.randn(n, 64) for n in (3, 5, 7, 9)]
        workload = watch(lambda: [block(given) for given in sizes])
    model = Model.of(workload.calls, [], "eager")
    model.run(frozenset())
    assert not model.backend.fixed


def test_a_recording_of_compiled_graphs_runs_what_was_compiled(
    workload, block, x, accept, traces, monkeypatch
):
    """Two rests away from the trace it still records Inductor's code, not the eager graph."""
    from tests.guard.pretend import pretend

    pretend(monkeypatch)
    kernels = accept(block, x)
    plain = Model.of(workload.calls, kernels, "eager")
    answer(plain, frozenset())
    fused = plain.fused(kernels, "inductor")
    expected = answer(fused, frozenset())
    recorded = fused.recorded(kernels, "inductor-cudagraphs")
    torch.testing.assert_close(answer(recorded, frozenset()), expected, rtol=0, atol=0)
    (site,) = recorded.backend.sites
    assert site.base is fused.backend.sites[0]
    assert traces == ["eager"]
