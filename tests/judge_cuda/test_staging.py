"""Secret inputs of timed calls: what is staged, noted and computed again by the judge."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from kforge_nb.judge.correctness import check_output, expect
from kforge_nb.judge.cuda.protocol import Touched
from kforge_nb.judge.cuda.staging import (
    Staging,
    _numbers,
    draw,
    noted,
    seed_of,
    unit_of,
    values_of,
)
from kforge_nb.judge.regions import Buffer
from kforge_nb.judge.runner_handle import RunnerFailed
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.timing import Plan
from kforge_nb.targets.target import TensorSpec
from tests.judge_cuda.fakes import one

CALLS = 7


def _prepared(run, name: str = "twice"):
    loaded = run(one(name))
    loaded.load()
    loaded.runner.upload(0, loaded._timed.slots)
    staging = loaded.staging()
    loaded.runner.prepare(CALLS, staging)
    return loaded, staging


def test_the_judge_knows_what_each_call_saw(run, timed):
    """Any call of the last replay: staged inputs, noted outputs and whole outputs fit together."""
    loaded, staging = _prepared(run)
    for replays in (1, 3):
        loaded.runner.batch(replays, empty=True)
        loaded.runner.batch(replays)
        for call in range(CALLS):
            tick, values = loaded.noted(staging, call)
            (x,) = staging.staged(timed, tick, call)
            (places,) = staging.places(tick, call)
            assert torch.equal(values[0], 2.0 * x.reshape(-1)[torch.from_numpy(places)])
        tick, _ = loaded.noted(staging, 0)
        for age in range(4):
            (x,) = staging.staged(timed, tick, CALLS - 1 - age)
            assert torch.equal(loaded.fetch(age)[0], 2.0 * x)


def test_no_two_calls_see_the_same(timed):
    """Not in one replay, not in the next, not with other secrets."""
    buffers = timed.layout.buffers
    both = [Staging.fresh(buffers, buffers, timed.slots) for _ in range(2)]
    seen = [s.staged(timed, tick, call)[0] for s in both for tick in (1, 2) for call in (0, 3)]
    assert not any(torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])
    pool = set(torch.cat([timed.snapshot(i)[0] for i in range(timed.slots)]).tolist())
    assert all(set(x.tolist()) <= pool for x in seen)


def test_draws_are_spread_and_in_range():
    """Every place may come, none beyond the end."""
    found = draw(seed_of(5, 6, 7), 4096, 16)
    assert found.min() == 0
    assert found.max() == 15
    assert (np.bincount(found) > 150).all()
    assert len(draw(seed_of(5, 6, 7), 0, 0)) == 0
    assert [unit_of(Buffer(0, n, 2)) for n in (2, 1 << 14, 1 << 20)] == [2, 16, 64]


STRIDED = {
    "turned, with gaps": ((3, 4), (1, 6)),
    "dense": ((3, 4), (4, 1)),
    "channels-last": ((2, 3, 4, 5), (60, 1, 15, 3)),
    "a slice of rows": ((3, 4), (9, 1)),
    "one element an axis": ((1, 4, 1), (7, 2, 3)),
    "a scalar": ((), ()),
}


@pytest.mark.parametrize("name", STRIDED)
def test_elements_of_a_strided_output_are_found_by_their_place_in_memory(name):
    """Notes are taken by address; what is between the elements does not count."""
    shape, stride = STRIDED[name]
    spec, count = TensorSpec(shape, stride, "float32"), math.prod(shape)
    exact = torch.arange(float(count)).view(shape).double()
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    memory = torch.full((extent,), -1.0)
    memory.as_strided(shape, stride).copy_(exact)
    expected, values = noted(expect(exact, exact.float()), memory, np.arange(extent), spec)
    assert sorted(values.tolist()) == list(range(count))
    assert check_output(expected, values, "out0", "x").wrong is None
    values[-1] += 1
    assert check_output(expected, values, "out0", "x").wrong


def test_of_an_expanded_output_each_element_in_memory_is_one():
    """Where several elements lie at one place, one of them is compared."""
    spec = TensorSpec((3, 4), (0, 1), "float32")
    exact = torch.arange(4.0).expand(3, 4).double()
    expected, values = noted(expect(exact, exact.float()), torch.arange(4.0), np.arange(4), spec)
    assert values.tolist() == [0, 1, 2, 3]
    assert check_output(expected, values, "out0", "x").wrong is None


def test_notes_of_a_large_strided_output_cost_nothing():
    """Their places are worked out one by one, not by numbering all elements."""
    spec = TensorSpec((1, 1 << 10, 1 << 15, 1 << 15), (1 << 40, 1, 1 << 25, 1 << 10), "float16")
    assert _numbers(np.array([5, (3 << 25) + (7 << 10) + 9]), spec).tolist() == [
        5 << 30,
        (9 << 30) + (3 << 15) + 7,
    ]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "bool"])
def test_noted_words_are_elements(dtype):
    """The bytes of an element, whatever its size."""
    value = torch.tensor([1, 0, 1]).to(getattr(torch, dtype))
    raw = value.view(torch.uint8).reshape(3, -1).numpy()
    words = [int.from_bytes(row.tobytes(), "little") for row in raw]
    assert torch.equal(values_of(words, dtype), value)


def test_code_is_loaded_anew_for_each_preparation(run):
    """Launches go on with the new code, and what does not fit is still refused."""
    loaded, staging = _prepared(run)
    for _ in range(3):
        loaded.runner.prepare(CALLS, staging)
        loaded.runner.batch(1)
    assert loaded.runner.audit() == Touched(0)


def test_memory_beside_the_outputs_of_timed_calls_is_looked_at(run):
    """A store in the guard zone of an output set is found at the end of the timing."""
    loaded, _ = _prepared(run, "stash")
    loaded.runner.batch(12)
    with pytest.raises(RunnerFailed, match="guard zone"):
        loaded.audit()


def test_a_message_that_does_not_fit_is_refused(run):
    """Lengths and offsets of the secrets are checked before they are used."""
    loaded, staging = _prepared(run)
    far = Buffer(1 << 40, 4, 4)
    for bad in (
        Staging(1, 0, (far,), staging.outputs),
        Staging(1, 0, staging.inputs, ((1 << 40, 4, 4),)),
        Staging(1, 0, staging.inputs, ((4096, 1, 9),)),
    ):
        with pytest.raises(RunnerFailed, match="malformed"):
            loaded.runner.prepare(CALLS, bad)


def test_raw_slots_are_the_slots(timed):
    """The judge's copy is what was uploaded, also after some values were renewed."""
    timed.renew(1, 2, random.SystemRandom())
    for slot in range(timed.slots):
        (raw,) = timed.raw(slot)
        assert raw.tobytes() == timed.snapshot(slot)[0].numpy().tobytes()


def test_a_plan_looks_at_few_pairs_of_slow_calls():
    """Ten pairs as a rule, three where ten would take far longer than there is time."""
    plan = Plan(seconds=2.0)
    assert not plan.over(1.9, 50)
    assert plan.over(2.1, 10)
    assert not plan.over(9.9, 9)
    assert not plan.over(10.1, 2)
    assert plan.over(10.1, 3)


def test_the_first_slot_is_secret(timed: TimedInputs):
    """Slots are taken in turn from a secret first one, so an address does not tell the call."""
    buffers = timed.layout.buffers
    firsts = {Staging.fresh(buffers, buffers, timed.slots).first for _ in range(50)}
    assert len(firsts) > 1
