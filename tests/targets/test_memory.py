"""Memory of a GPU is bounded while inputs are captured, and running out of it loses nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from kforge_nb.targets import build, observe
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.float64 import Float64Interpreter, reference
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.workload.capture import capture_graphs, watch
from tests.helpers import trace

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has none left.")


@pytest.fixture
def workload():
    """Two soft-maxes of other sizes, captured."""
    model = nn.Sequential(nn.Softmax(-1), nn.Linear(8, 4), nn.Softmax(-1))
    x = torch.randn(3, 8)
    with torch.no_grad():
        return capture_graphs(watch(lambda: model(x)))


def fails_first(monkeypatch, times):
    """``capture_inputs`` keeps one cut, then runs out of memory, so many times."""
    real, left = build.capture_inputs, [times]

    def capture(gm, inputs, cuts, keep, is_state):
        if left[0]:
            left[0] -= 1
            real(gm, inputs, cuts[:1], keep, is_state)
            raise FULL
        return real(gm, inputs, cuts, keep, is_state)

    monkeypatch.setattr(build, "capture_inputs", capture)


def test_a_full_gpu_is_tried_again_with_everything_in_files(workload, monkeypatch):
    """After running out of memory once every target has its inputs, none of them in memory."""
    fails_first(monkeypatch, 1)
    targets = find_targets(workload)
    assert [len(t.captured) for t in targets] == [1, 1]
    assert [t.captured.nbytes for t in targets] == [0, 0]
    assert targets[0].captured.sets()[0][0].shape == (3, 8)
    assert not any("memory" in note for note in workload.notes)


def test_a_gpu_that_stays_full_is_told_and_the_rest_comes(workload, monkeypatch):
    """What was captured stays, what was not is a target without inputs, and a note says so."""
    real = build.capture_inputs

    def capture(gm, inputs, cuts, keep, is_state):
        real(gm, inputs, [c for c in cuts if c.inputs[0].op == "placeholder"], keep, is_state)
        raise FULL

    monkeypatch.setattr(build, "capture_inputs", capture)
    targets = find_targets(workload)
    assert [t.captured is not None for t in targets] == [True, False]
    (note,) = [n for n in workload.notes if "memory did not suffice" in n]
    assert "1 targets" in note
    assert "Tried to allocate" not in note


def test_every_target_gets_its_inputs_where_only_four_copies_fit(monkeypatch):
    """Of eight targets: the copies made before memory ran out are let go of before it goes on."""
    model = nn.Sequential(*(nn.Softmax(-1), nn.Linear(8, 8)) * 8)
    x, live, real = torch.randn(3, 8), [], build.compact_copy

    def copy(source):
        live[:] = [ref for ref in live if not ref.expired()]
        if len(live) == 4:
            raise FULL
        made = real(source)
        live.append(StorageWeakRef(made.untyped_storage()))
        return made

    monkeypatch.setattr(build, "compact_copy", copy)
    monkeypatch.setattr(build, "MAX_SETS", 8)
    with torch.no_grad():
        found = capture_graphs(watch(lambda: model(x)))
    (target,) = find_targets(found)
    assert len(target.captured) == 8
    assert not any("memory" in note for note in found.notes)


@pytest.mark.parametrize("how", [(), ("own",)], ids=["copied", "handed over"])
def test_what_is_in_files_holds_no_memory(how):
    """Before capturing is over too: a GPU that was full needs the room for the next inputs."""
    captured, x = CapturedInputs(), torch.arange(12.0).reshape(3, 4)
    captured.add([x], how)
    held = StorageWeakRef(x.untyped_storage())
    expected = x.clone()
    del x
    assert not held.expired()
    captured.spill()
    assert held.expired()
    captured.add([torch.zeros(3, 4)], how)  # may lie where the first one lay
    (first,), (second,) = captured.sets()
    assert torch.equal(first, expected)
    assert not second.any()


@pytest.mark.parametrize("where", ["_own_copy", "_call"])
def test_without_room_for_a_real_run_fake_tensors_tell(workload, monkeypatch, where):
    """Running out of memory while a graph is looked at says nothing about its nodes."""
    real, full = getattr(observe._Run, where), []

    def step(self, *args):
        if self.mode == "real":
            full.append(where)
            raise FULL
        return real(self, *args)

    monkeypatch.setattr(observe._Run, where, step)
    assert [t.name for t in find_targets(workload)] == ["softmax", "softmax"]
    assert full


def test_targets_over_several_devices_are_left_out_and_named():
    """A move between devices is no kernel; it is named with its devices (meta: no GPU needed)."""

    class Moves(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1), x.to("meta")

    model, x = Moves(), torch.randn(2, 8)
    with torch.no_grad():
        workload = capture_graphs(watch(lambda: model(x)))
    assert [t.name for t in find_targets(workload, "op")] == ["softmax"]
    (note,) = [n for n in workload.notes if "several devices" in n]
    assert "cpu and meta" in note


def test_inputs_left_in_their_folder_come_from_there(tmp_path):
    """After ``leave_in`` copies take no memory, weights stay shared, and values are the same."""
    weight, x = torch.randn(4), torch.randn(5, 4).t()
    inputs = CapturedInputs()
    inputs.add([x, weight], ["copy", "reference"])
    inputs.save(tmp_path)
    inputs.leave_in(tmp_path)
    assert inputs.nbytes == 0
    (got,) = inputs.sets()
    assert torch.equal(got[0], x)
    assert got[0].stride() == x.stride()
    assert got[1].data_ptr() == weight.data_ptr()


def test_float64_that_does_not_fit_a_gpu_runs_on_the_cpu(monkeypatch):
    """The exact result comes all the same, with devices of the graph renamed."""
    gm = trace(lambda x: torch.softmax(x.to(device="cpu"), -1), torch.randn(2, 3))
    for node in gm.graph.nodes:
        if node.target == "to":
            node.kwargs = {"device": torch.device("cuda:0")}
    gm.recompile()
    x = torch.randn(2, 3)
    expected = torch.softmax(x.double(), -1)
    real = Float64Interpreter.run

    def run(self, *args):
        if not self._on_cpu:
            raise FULL
        return real(self, *args)

    monkeypatch.setattr(Float64Interpreter, "run", run)
    (got,) = reference(gm, [x])
    assert torch.equal(got, expected)
