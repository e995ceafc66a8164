"""Redrawn and hard input values."""

from __future__ import annotations

import random

import pytest
import torch

from kforge_nb.judge import slots
from kforge_nb.judge.cases import secret_generator
from kforge_nb.judge.draws import HARD_SETS, hard_set, redraw
from kforge_nb.targets.target import TensorSpec


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_indices_stay_valid():
    """Integers come from those seen: an index never leaves its table."""
    seen = torch.tensor([3, 9, 4, 4])
    (drawn,) = redraw([seen], _generator())
    assert set(drawn.tolist()) <= {3, 4, 9}


def test_constant_weights_vary_and_keep_their_sign():
    """A norm weight that is all ones must not be all ones again, nor a variance negative."""
    (drawn,) = redraw([torch.ones(64)], _generator())
    assert drawn.std() > 0.1
    assert (drawn > 0).all()


def test_masks_stay_masks():
    """Minus infinity keeps its meaning, and so do zero and one."""
    seen = torch.zeros(64).masked_fill(torch.arange(64) % 3 == 0, float("-inf"))
    (drawn,) = redraw([seen], _generator())
    assert set(drawn.tolist()) <= {0.0, float("-inf")}
    (drawn,) = redraw([(torch.arange(64) % 3 > 0).float()], _generator())
    assert set(drawn.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("name", HARD_SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_hard_sets_keep_shape_strides_and_dtype(name, dtype):
    """Only values change; expanded and transposed inputs stay as they are laid out."""
    seen = [
        torch.randn(8, 6).to(dtype).t(),
        torch.randn(1, 8).to(dtype).expand(6, 8),
        torch.tensor([True, False]),
    ]
    made = hard_set(name, seen, _generator())
    for a, b in zip(seen, made, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_seeds_matter():
    """Two secrets give two sets; one seed gives one."""
    seen = [torch.randn(100)]
    a, b, c = (redraw(seen, _generator(s))[0] for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_slots_larger_than_the_pool_are_filled_piece_by_piece(monkeypatch):
    """Every element of every slot is drawn, also where the pool of values is small."""
    monkeypatch.setattr(slots, "POOL_BYTES", 1 << 14)
    spec = TensorSpec((64, 1024), (1024, 1), "float32")
    made = slots.TimedInputs([spec], [torch.rand(64, 1024) + 1.0], secret_generator(), most=4)
    for slot in range(made.slots):
        assert float(made.snapshot(slot)[0].min()) > 0.5
    made.renew(0, 2, random.SystemRandom())
    assert float(made.snapshot(1)[0].min()) > 0.5
    made.close()


def test_slots_of_one_batch_have_no_numbers_in_common():
    """A table of numbers and results that was filled in one call is of no use in the next."""
    spec = TensorSpec((64, 1024), (1024, 1), "float32")
    made = slots.TimedInputs([spec], [torch.randn(64, 1024)], secret_generator(), most=8)
    made.renew(0, 8, random.SystemRandom())
    rows = [made.snapshot(slot)[0].reshape(-1) for slot in range(8)]
    made.close()
    seen = torch.cat(rows[:7])
    assert torch.isin(rows[7], seen).float().mean() < 0.1


def test_a_factor_for_each_slot_keeps_zeros_and_the_largest_number():
    """Masks stay masks: nothing overflows, and nothing turns into a subnormal."""
    lowest = torch.finfo(torch.float32).min
    values = torch.where(torch.rand(64, 1024) < 0.5, 0.0, lowest)
    spec = TensorSpec((64, 1024), (1024, 1), "float32")
    made = slots.TimedInputs([spec], [values], secret_generator(), most=4)
    for _ in range(3):
        row = made._rows[0][0]
        row[:] = values.reshape(-1).numpy().view(row.dtype)
        made._turn(0, row, random.SystemRandom())
        assert torch.equal(made.snapshot(0)[0] == 0.0, values == 0.0)
        assert made.snapshot(0)[0].isfinite().all()
    made.close()
