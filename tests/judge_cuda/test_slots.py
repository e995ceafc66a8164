"""Slots on a GPU: what is renewed, what must be copied, and what a side is known to hold."""

from __future__ import annotations

import random
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kforge_nb.judge.cases import secret_generator
from kforge_nb.judge.cuda import pinned, slots
from kforge_nb.judge.cuda.sides import bring
from kforge_nb.judge.cuda.slots import DeviceInputs
from kforge_nb.judge.cuda.staging import _drawn, draw, seed_of
from kforge_nb.judge.cuda.timing import prompt
from kforge_nb.judge.foreign.steady import SteadyInputs
from kforge_nb.targets.target import TensorSpec

WIDTH = 1 << 16
SPECS = [
    TensorSpec((WIDTH,), (1,), "float32", "cuda:0"),
    TensorSpec((WIDTH,), (1,), "bfloat16", "cuda:0"),
    TensorSpec((WIDTH,), (1,), "int64", "cuda:0"),
    TensorSpec((8,), (1,), "float32", "cuda:0"),
]
SOURCE = random.SystemRandom()


def seen_values() -> list[torch.Tensor]:
    return [
        torch.randn(WIDTH),
        torch.randn(WIDTH).to(torch.bfloat16),
        torch.arange(WIDTH) % 7,
        torch.randn(8),
    ]


@pytest.fixture
def made():
    inputs = DeviceInputs(SPECS, seen_values(), secret_generator(), most=4)
    yield inputs
    inputs.close()


def test_every_slot_and_input_gets_new_values_within_the_bytes_asked_for(made):
    """A tenth of all is drawn: in each slot, in each input; what has changed is what is told."""
    before = made.region.array.copy()
    most = made.layout.payload * made.slots // 10
    told = made.freshen(most, SOURCE)
    changed = made.region.array != before
    covered = np.zeros_like(changed)
    for offset, count in told:
        covered[offset : offset + count] = True
    assert not (changed & ~covered).any()
    assert sum(count for _, count in told) < 1.2 * most
    for slot in range(made.slots):
        for buffer in made.layout.buffers:
            start = slot * made.layout.stride + buffer.offset
            assert changed[start : start + buffer.bytes].any()


def test_stretches_wander_over_the_whole_input(made):
    """Also over its end: sooner or later each element is another one."""
    before = made.snapshot(1)[0]
    for _ in range(40):
        made.freshen(made.layout.payload * made.slots // 4, SOURCE)
    same = made.snapshot(1)[0] == before
    assert same.float().mean() < 0.01
    assert not same[0]
    assert not same[-1]


def test_no_number_comes_back(made):
    """A table of numbers and results is of no use, though all come from one pool."""
    seen = torch.cat([made.snapshot(slot)[0] for slot in range(made.slots)])
    for _ in range(3):
        made.freshen(1 << 30, SOURCE)
        new = made.snapshot(0)[0]
        assert torch.isin(new, seen).float().mean() < 0.15
        seen = torch.cat([seen, new])


def test_integers_and_masks_stay_what_they_are():
    """Indices are still valid, zeros zero, and the largest number finite."""
    lowest = torch.finfo(torch.float16).min
    mask = torch.where(torch.rand(WIDTH) < 0.5, 0.0, lowest).to(torch.float16)
    specs = [SPECS[2], TensorSpec((WIDTH,), (1,), "float16", "cuda:0")]
    inputs = DeviceInputs(specs, [seen_values()[2], mask], secret_generator(), most=4)
    for _ in range(3):
        inputs.freshen(1 << 30, SOURCE)
        index, masked = inputs.snapshot(0)
        assert int(index.min()) >= 0
        assert int(index.max()) < 7
        assert masked.isfinite().all()
        assert 0.3 < float((masked == 0.0).float().mean()) < 0.7
    inputs.close()


class _Copies:
    """A side that counts what is copied to it."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.uploads: list[tuple[int, int]] = []

    def upload(self, first: int, count: int) -> None:
        self.uploads.append((first, count))


def test_a_side_is_given_the_slots_that_it_lacks(made):
    """All at first, then none, then those that changed; all again after a refill."""
    side = _Copies()
    for change, expected in (
        (lambda: None, [(0, 4)]),
        (lambda: None, []),
        (lambda: made.renew(3, 2, SOURCE), [(0, 1), (3, 1)]),
        (lambda: made.refill(secret_generator()), [(0, 4)]),
    ):
        change()
        side.uploads.clear()
        bring(side, made)
        assert side.uploads == expected


def test_weights_that_stay_stay_in_a_stretch_too(made):
    """A reference's weights are put back wherever new values were drawn."""
    weights = seen_values()[1:]
    steady = SteadyInputs(made, weights, 1)
    steady.freshen(1 << 30, SOURCE)
    for slot in range(made.slots):
        assert all(torch.equal(a, b) for a, b in zip(made.snapshot(slot)[1:], weights, strict=True))


def test_neighbouring_stretches_are_copied_at_once():
    """Small inputs lie side by side; a copy of each would take longer than one of all."""
    far = 1 << 20
    assert slots._merged([(0, 10), (100, 10), (far, 5), (far + 5, 7)]) == [(0, 110), (far, 12)]


@pytest.mark.parametrize("count", [1, 3, 1000, 70000])
def test_the_judge_draws_alike_on_every_device(count):
    """Tensors give what the arithmetic of unsigned numbers gives."""
    for secret in (1, 1 << 63, (1 << 64) - 1):
        seed = seed_of(secret, 5, 6)
        expected = torch.from_numpy(draw(seed, count, count))
        assert torch.equal(_drawn(seed, count, count, torch.device("cpu")), expected)


def test_other_threads_let_go_at_once_while_something_is_timed():
    """And as late as ever afterwards, also where two devices are timed at a time."""
    usual = sys.getswitchinterval()
    with prompt():
        with prompt():
            assert sys.getswitchinterval() < 0.2 * 5e-3
        assert sys.getswitchinterval() < 0.2 * 5e-3
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_memory_is_locked_if_the_driver_will_and_let_go_once(monkeypatch):
    """What it refuses is copied as ever; the same goes for what is not worth it."""
    asked: list[tuple] = []

    def register(status: int):
        def call(address, size, flags) -> int:
            asked.append(("lock", address.value, size.value, flags.value))
            return status

        return call

    def driver(status: int) -> SimpleNamespace:
        names = {"cuMemHostRegister_v2": register(status)}
        return SimpleNamespace(cuMemHostUnregister=lambda at: asked.append(at.value) or 0, **names)

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    for status in (801, 0):
        monkeypatch.setattr(pinned, "_driver", lambda status=status: driver(status))
        assert pinned.Pinned(4096, 1 << 20, "cuda:0").locked is False
        assert asked == []
        memory = pinned.Pinned(4096, 1 << 23, "cuda:0", read_only=True)
        assert memory.locked is (status == 0)
        memory.release()
        memory.release()
        assert asked == [("lock", 4096, 1 << 23, 9), *([4096] if status == 0 else [])]
        asked.clear()
