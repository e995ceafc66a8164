"""How targets on a GPU are measured: one after the other, and what fails costs only itself."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from kforge_nb.profile import measuring
from kforge_nb.profile.measuring import measure
from kforge_nb.profile.profile import profile
from tests.cuda.targets import on_cuda
from tests.helpers import make_target


class Timer:
    """Stands for the cold timer: 7 µs for everything, except for what ``fails`` names."""

    fails: ClassVar[dict[int, Exception]] = {}
    devices: ClassVar[list[str]] = []

    def __init__(self, device):
        self.devices.append(device)

    def us(self, call, *, seconds):
        size = call.args[0].shape[0]
        if size in self.fails:
            raise self.fails[size]
        call()
        return 7.0


@pytest.fixture
def timer(monkeypatch):
    monkeypatch.setattr(Timer, "fails", {})
    monkeypatch.setattr(Timer, "devices", [])
    monkeypatch.setattr(measuring, "ColdTimer", Timer)
    return Timer


def targets(*sizes):
    """Soft-maxes of so many rows, said to be on a GPU (their inputs are on the CPU)."""
    made = [make_target(lambda x: torch.softmax(x, -1), torch.randn(n, 4)) for n in sizes]
    return [on_cuda(target) for target in made]


def test_targets_on_a_gpu_are_timed_cold_and_counted(timer):
    """Each target has its time and its operations, with one timer for the device."""
    notes = []
    found = measure(targets(2, 3), notes.append, 1.0)
    assert [m.mean_us for m in found] == [7.0, 7.0]
    assert [m.flops for m in found] == [8, 12]
    assert timer.devices == ["cuda:0"]
    assert notes == []


def test_a_target_that_does_not_fit_or_fails_is_told_and_the_others_come(timer):
    """Out of memory and errors each cost their own target only, in words of their own."""
    notes = []
    timer.fails = {2: torch.OutOfMemoryError("full"), 3: RuntimeError("no kernel image")}
    found = measure(targets(2, 3, 4), notes.append, 1.0)
    assert [m.mean_us for m in found] == [None, None, 7.0]
    assert len(notes) == 2
    assert "the memory of cuda:0 did not suffice" in notes[0]
    assert "could not be run alone: no kernel image" in notes[1]


def test_targets_without_inputs_are_left_out(timer):
    """What could not be captured is not timed, on either kind of device."""
    without = [make_target(lambda x: x.exp(), torch.randn(2)), *targets(2)]
    for target in without:
        target.captured = None
    found = measure(without, lambda text: None, 1.0)
    assert [m.mean_us for m in found] == [None, None]
    assert timer.devices == []


def test_a_profiler_that_sees_no_kernels_is_told(calibrated, monkeypatch):
    """Without the profiler's times those of the targets stand for what the device computes."""
    monkeypatch.setattr("kforge_nb.profile.profile.device_us", lambda workload: None)
    model, x = nn.Softmax(-1), torch.randn(64, 512)
    found = profile(lambda: model(x), "op", seconds=0.1)
    assert any("profiler told no device times" in note for note in found.notes)
    (row,) = found.rows
    assert found.device_us == pytest.approx(min(row.mean_us, found.wall_us))
