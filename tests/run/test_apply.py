"""From decisions to a faster model: a run's kernels are applied, counted, and taken back."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import kforge_nb
from kforge_nb.api import load_run
from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.errors import BadInput, StoreError
from kforge_nb.options import OptimizeOptions
from kforge_nb.run.conductor import Conductor
from kforge_nb.run.handle import Run
from kforge_nb.run.record import Record
from kforge_nb.run.source import StoreSource
from kforge_nb.run.work import Work
from kforge_nb.search.tree import Tree
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.document import target_to_document
from kforge_nb.workload.capture import capture_graphs, watch

PATIENCE_S = 60
SOURCE = """
#include <cmath>
#include <cstdint>
extern "C" void rows(const float* in0, float* out0, int64_t rows, int64_t c, int32_t nthreads) {
  for (int64_t r = 0; r < rows; ++r) {
    float top = in0[r * c], sum = 0;
    for (int64_t i = 1; i < c; ++i) top = std::fmax(top, in0[r * c + i]);
    for (int64_t i = 0; i < c; ++i) sum += out0[r * c + i] = std::exp(in0[r * c + i] - top);
    for (int64_t i = 0; i < c; ++i) out0[r * c + i] /= sum;
  }
}
"""
ARGS = ("in0", "out0", "i64:numel(in0) // in0.shape[-1]", "i64:in0.shape[-1]", "i32:nthreads")
SOFTMAX = Candidate("cpp", SOURCE, LaunchPlan((Kernel("rows", ARGS),)), "rows")


@pytest.fixture
def model():
    """A model whose softmax becomes a target."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1), nn.Linear(16, 16))
    return made.eval().requires_grad_(False)


@pytest.fixture
def decided(stage, model):
    """A run over the model whose one kernel the (fake) guard decided to install."""
    x = torch.randn(4, 16)
    workload = capture_graphs(watch(lambda: model(x)))
    (target,) = [t for t in find_targets(workload) if t.family == "softmax"]
    options = OptimizeOptions.of({"name": "soft", "budget": 1})
    record = Record(stage.store, stage.store.create_run("soft", options=options.to_document()))
    document = target_to_document(target, record.folder / "inputs")
    row = {"fingerprint": target.fingerprint, "name": target.name, "family": target.family}
    record.store.add_target(record.id, 0, {**row, "state": "waiting"}, {"document": document})
    stage.proposer.propose = lambda request: SOFTMAX
    work = Work(0, target, Tree(0), record, share=0.5, headroom=3.0)
    conductor = Conductor(record, [work], options, workload, stage.tools())
    conductor.tools = type(conductor.tools)(
        stage.judge.session, stage.proposer, _install, {"name": "test"}
    )
    conductor.start()
    assert conductor.join(PATIENCE_S)
    return Run(StoreSource(record)), x


def _install(conductor):
    decision = {"target": 0, "node": "0.0", "installed": True, "reason": "for the test"}
    decision |= {"fingerprint": conductor.works[0].target.fingerprint}
    decision |= dict.fromkeys(("isolated", "in_model", "fidelity"))
    conductor.record.store.set_decision(conductor.record.id, 0, decision)
    return "1 of 1 targets are replaced"


def test_apply_runs_the_kernel_and_undo_brings_the_original_back(decided, model):
    """The applied model launches the kernel with eager's result; undo restores the very object."""
    run, x = decided
    before, expected = model._compiled_call_impl, model(x)

    applied = run.apply(rest="eager")
    launched = applied.counters()["launches"]
    result = model(x)

    torch.testing.assert_close(result, expected)
    assert applied.counters()["launches"] == launched + 1
    Run(StoreSource(run.record)).undo()
    assert run.counters() == {}
    assert model._compiled_call_impl is before
    assert torch.equal(model(x), expected)


def test_undo_takes_back_what_cannot_be_counted(decided, model, monkeypatch):
    """A failure to count is told, but no kernel stays in the model without a way to take it out."""
    run, x = decided
    before, expected = model._compiled_call_impl, model(x)
    applied = run.apply(rest="eager")

    def broken():
        raise RuntimeError("no counters")

    monkeypatch.setattr(applied, "counters", broken)
    with pytest.raises(RuntimeError, match="no counters"):
        run.undo()
    assert model._compiled_call_impl is before
    assert torch.equal(model(x), expected)
    assert run.counters() == {}


def test_undo_and_apply_work_where_counters_cannot_be_stored(decided, model, monkeypatch, caplog):
    """A full disk costs the counters, which is a warning, and neither undo() nor a new apply()."""
    run, _ = decided
    before = model._compiled_call_impl
    run.apply(rest="eager")

    def full(*_args, **_fields):
        raise StoreError("the disk is full")

    monkeypatch.setattr(run.record.store, "update_run", full)
    with caplog.at_level(logging.WARNING, "kforge_nb.run"):
        run.apply(rest="eager")
        run.undo()
    assert model._compiled_call_impl is before
    assert caplog.text.count("the disk is full") == 2


def test_what_applied_kernels_do_is_in_the_document_then_and_later(decided, model, tmp_path):
    """Launches stand with the decision while applied, in a saved file, and after undo()."""
    run, x = decided
    assert run.document["decisions"][0].get("counters") is None

    run.apply(rest="eager")
    before = run.decisions["launches"][0]
    model(x)
    assert run.decisions["launches"][0] == before + 1
    saved = load_run(run.save(tmp_path / "run.kforge.json"))
    run.undo()

    later = Run(StoreSource(run.record))
    for handle in (saved, later):
        assert handle.document["decisions"][0]["counters"]["launches"] == before + 1
        assert handle.document["counters"]["calls"]["compiled"] > 0
    assert saved.counters()["calls"] == later.document["counters"]["calls"]
    for handle in (saved, later):
        assert "no fallback" in handle._repr_mimebundle_()["text/html"]


def test_a_new_handle_applies_what_another_session_decided(decided, stage, model):
    """Kernels come back from the store alone: a fresh model gets them after a kernel restart."""
    run, x = decided
    again = Run(StoreSource(Record(stage.store, run.id)))
    fresh = nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1), nn.Linear(16, 16)).eval()
    fresh.requires_grad_(False)
    expected = fresh(x)

    again.apply(fresh, rest="eager")

    torch.testing.assert_close(fresh(x), expected)
    again.undo()


def test_a_compiled_copy_leaves_the_model_alone(decided, model):
    """``run.compile`` gives a copy with the kernels; the model itself is not touched."""
    run, x = decided

    fast = run.compile(model, rest="eager")

    assert fast is not model
    assert model._compiled_call_impl is None
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize(
    ("rest", "said"),
    [("inductor", "that is torch.compile(model)"), ("none", "the model stays as it is")],
)
def test_without_a_kernel_apply_says_what_to_do_instead(decided, model, rest, said):
    """A gain of the compiler alone is had from the compiler; and resume speaks of no kernels."""
    run, _ = decided
    (decision,) = run.record.store.decisions(run.record.id)
    run.record.store.set_decision(run.record.id, 0, {**decision, "installed": False})
    advice = {"rest": rest, "reason": "for the test"}
    run.record.store.update_run(run.record.id, recommendation=advice)

    for use in (run.apply, lambda: run.compile(model)):
        with pytest.raises(BadInput, match="installs no kernel") as caught:
            use()
        assert said in str(caught.value)
    with pytest.raises(BadInput, match="it installs no kernel, and a new"):
        kforge_nb.resume(run)


def test_what_is_not_decided_cannot_be_applied(stage, model):
    """Before the guard has decided, apply says so instead of installing unmeasured kernels."""
    run = Run(StoreSource(stage.conductor().record))

    with pytest.raises(BadInput) as caught:
        run.apply(model)

    assert "nothing is decided yet" in str(caught.value)


def test_a_run_without_targets_does_not_ask_to_wait(tmp_path):
    """A workload in which nothing can be replaced ends at once; waiting longer changes nothing."""
    model, x = torch.nn.Identity(), torch.ones(2)
    run = kforge_nb.optimize(lambda: model(x), store=str(tmp_path / "store"), wait=True)

    assert run.state == "done"
    with pytest.raises(BadInput, match="had no target to search, so it installs no kernel"):
        run.apply()


def _says(record, rests):
    """Let the decision of a run say what each measured rest does with its kernel."""
    (decision,) = record.store.decisions(record.id)
    said = [{"rest": r, "installed": on, "reason": "measured"} for r, on in rests.items()]
    record.store.set_decision(record.id, 0, {**decision, "rests": said})


def test_a_rest_gets_the_kernels_that_were_decided_for_it(decided, model, recwarn):
    """A kernel that wins under eager and loses under Inductor is installed with eager only."""
    run, x = decided
    _says(run.record, {"eager": True, "inductor": False})

    for use in (run.apply, lambda rest: run.compile(model, rest=rest)):
        with pytest.raises(BadInput, match="installs no kernel with rest='inductor'") as caught:
            use(rest="inductor")
        assert "that rest is torch.compile(model)" in str(caught.value)
        assert "decided for rest='eager'" in str(caught.value)
    assert model._compiled_call_impl is None
    with run.apply(rest="eager") as applied:
        model(x)
        assert applied.counters()["launches"] > 0
        assert applied.report()["notes"] == []
    run.undo()
    assert not [w for w in recwarn if "nobody has measured" in str(w.message)]


def test_a_kernel_of_another_rest_than_the_best_is_still_to_be_had(decided, model):
    """The best rest has no kernel; the one that has some can be asked for."""
    run, _ = decided
    (decision,) = run.record.store.decisions(run.record.id)
    run.record.store.set_decision(run.record.id, 0, {**decision, "installed": False})
    _says(run.record, {"eager": True, "inductor": False})
    advice = {"rest": "inductor", "reason": "for the test"}
    run.record.store.update_run(run.record.id, recommendation=advice)

    with pytest.raises(BadInput, match="that rest is torch"):
        run.apply()
    run.apply(rest="eager")
    assert run.counters()["kernels"][0]["name"]
    run.undo()


def test_a_rest_that_nobody_measured_says_so_when_it_is_applied(decided, model, monkeypatch):
    """The nearest measured rest lends its kernels, with a warning that the report repeats."""
    from kforge_nb.guard import policy

    monkeypatch.setattr(policy, "_compiler", lambda rest: lambda gm, inputs: gm.forward)
    run, x = decided
    _says(run.record, {"eager": True})

    with pytest.warns(RuntimeWarning, match="decided with rest='eager'; with rest='inductor'"):
        applied = run.apply(rest="inductor")
    model(x)
    assert applied.counters()["launches"] > 0
    (note,) = applied.report()["notes"]
    assert "nobody has measured" in note
    run.undo()
