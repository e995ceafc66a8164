"""Timed calls of the CUDA runner: graphs, rotation, wiping, on a driver whose device is the CPU."""

from __future__ import annotations

import sys

import pytest
import torch

from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.protocol import HELD_CALLS
from kforge_nb.judge.runner_handle import RunnerFailed
from tests.judge_cuda.fakes import one, timed_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runners need Linux")

N = 1000


def test_replays_compute_on_their_own_slots(run, timed):
    """Call i of a graph reads slot i and writes set i modulo the sets; the last ones can be had."""
    loaded = run(one("scale", "f32:3"))
    loaded.load()
    calls = timed.slots + 2
    loaded.runner.upload(0, timed.slots)
    loaded.runner.prepare(calls)
    for replays in (1, 3):
        wall, device = loaded.runner.batch(replays)
        assert 0 < device <= wall
    for age in range(HELD_CALLS):
        (out,) = loaded.fetch(age)
        (given,) = timed.snapshot((calls - 1 - age) % timed.slots)
        assert torch.equal(out, given * 3)
    with pytest.raises(RunnerFailed, match="no such call"):
        loaded.fetch(HELD_CALLS)


def ready(run, slots):
    """A kernel that doubles, its slots on the device and its graphs made."""
    loaded = run(one("twice"), slots=slots)
    loaded.load()
    loaded.runner.upload(0, slots.slots)
    loaded.runner.prepare(slots.slots)
    return loaded


def test_new_values_reach_the_replays(run, target, seen):
    """Slots that changed are uploaded again, also across the end of the row."""
    import random

    slots = timed_of(target, seen)
    try:
        loaded = ready(run, slots)
        slots.renew(slots.slots - 1, 2, random.Random(3))
        loaded.runner.upload(slots.slots - 1, 2)
        loaded.runner.batch(1)
        assert torch.equal(loaded.fetch(0)[0], slots.snapshot(slots.slots - 1)[0] * 2)
        loaded.runner.hot(1)
        assert torch.equal(loaded.fetch(0)[0], slots.snapshot(0)[0] * 2)
    finally:
        slots.close()


def test_stretches_alone_reach_the_device(run, target, seen):
    """Of what changed in two places one is copied; a stretch beyond the slots is refused."""
    slots = timed_of(target, seen)
    try:
        loaded = ready(run, slots)
        before = slots.snapshot(0)[0]
        buffer = slots.layout.buffers[0]
        values = torch.from_numpy(slots.raw(0)[0]).view(torch.float32)
        values[10:20], values[50:60] = 1.0, 2.0
        loaded.runner.refresh([(buffer.offset + 40, 40)])
        loaded.runner.hot(1)
        (got,) = loaded.fetch(0)
        expected = before.clone()
        expected[10:20] = 1.0
        assert torch.equal(got, 2.0 * expected)
        for bad in ((slots.layout.stride * slots.slots, 1), (0, 1 << 62), (1 << 63, 1 << 63)):
            with pytest.raises(RunnerFailed, match="beyond the timed inputs"):
                loaded.runner.refresh([(0, 8), bad])
    finally:
        slots.close()


def test_an_empty_replay_computes_nothing(run, timed):
    """The graph without calls wipes the outputs and leaves them so."""
    loaded = run(one("twice"))
    loaded.load()
    loaded.runner.upload(0, timed.slots)
    loaded.runner.prepare(3)
    loaded.runner.batch(1)
    assert torch.equal(loaded.fetch(0)[0], timed.snapshot(2)[0] * 2)
    loaded.runner.batch(1, empty=True)
    assert bool(loaded.fetch(0)[0].isnan().all())


def test_timed_calls_do_not_find_their_results(run, timed):
    """Outputs are wiped before every call of a graph, so that none finds an earlier result."""
    loaded = run(one("finds"))
    loaded.load()
    loaded.runner.upload(0, timed.slots)
    loaded.runner.prepare(4)
    loaded.runner.batch(3)
    assert torch.equal(loaded.fetch(0)[0], timed.snapshot(3)[0] * 2)


def test_writing_beside_the_output_when_timed_is_suspicious(run, timed):
    """Guard zones stand around the outputs of timed calls too."""
    loaded = run(one("beside", "i64:N"))
    loaded.load()
    loaded.runner.upload(0, timed.slots)
    loaded.runner.prepare(4)
    loaded.runner.batch(1)
    with pytest.raises(RunnerFailed, match="guard zone") as caught:
        loaded.fetch(0)
    assert caught.value.verdict is Verdict.SUSPICIOUS


def test_a_hang_in_timed_calls_is_ended(run):
    """A batch has a time limit of its own."""
    loaded = run(one("hang"))
    loaded.load()
    loaded.runner.prepare(2)
    with pytest.raises(RunnerFailed, match="in timed calls") as caught:
        loaded.runner.batch(1, seconds=0.3)
    assert caught.value.verdict is Verdict.TIMED_OUT


def test_hot_calls_and_pings_take_time(run, timed):
    """Host-side call time is a figure of its own, and an empty exchange can be measured."""
    loaded = run(one("twice"))
    loaded.load()
    loaded.runner.upload(0, timed.slots)
    assert 0 < loaded.runner.hot(20) < 0.1
    assert 0 < loaded.runner.ping() < 0.1


def test_commands_out_of_order_are_errors(run):
    """A batch before any graph, and graphs of no calls, are answered with words."""
    loaded = run(one("twice"))
    loaded.load()
    with pytest.raises(RunnerFailed, match="no graph"):
        loaded.runner.batch(1)
    with pytest.raises(RunnerFailed, match="a graph holds"):
        loaded.runner.prepare(0)


def test_graphs_do_not_outlive_their_memory(run, timed):
    """Binding anew takes the graphs and the outputs of timed calls away."""
    loaded = run(one("twice"))
    loaded.load()
    loaded.runner.upload(0, timed.slots)
    loaded.runner.prepare(3)
    loaded.runner.batch(1)
    loaded.load()
    with pytest.raises(RunnerFailed, match="no graph"):
        loaded.runner.batch(1)
    with pytest.raises(RunnerFailed, match="no such call"):
        loaded.runner.fetch(0)
