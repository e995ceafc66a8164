"""The inputs of timed calls: many sets of them in shared memory, never twice the same values.

Both sides of a timing read the same slots. Together the slots are larger than the near caches, so
that inputs come from memory as far as the machine's caches allow; and between batches every slot
that is about to be used gets new values, all of them, from a pool whose numbers change as well:
what was computed from earlier ones is of no use, not even in part. (Of very large inputs only a
random stretch is new each time.) The judge can read any slot back to check the output of a timed
call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch

from kforge_nb.judge.draws import redraw_flat
from kforge_nb.judge.regions import InputLayout, Region
from kforge_nb.targets.target import TensorSpec

__all__ = ["TimedInputs"]

TOTAL_BYTES = 64 << 20
POOL_BYTES = 256 << 20
MAX_SLOTS = 1024
MIN_SLOTS = 3
_PATCH = 16  # a sixteenth of a very large input is new before each batch
_WHOLE = 256 << 20  # bytes of a slot that are still filled anew before each batch
_MOVED_POOL = 64 << 20  # bytes of a pool whose numbers change
_MOVED, _AGAIN = 0.05, 0.3  # by how much at most, and the chance before each batch
_INTEGERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class TimedInputs:
    """Slots of inputs for one target. ``region`` is shared with runners and baseline worker."""

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        seen: list[torch.Tensor],
        generator: torch.Generator,
        most: int = MAX_SLOTS,
        least: int = MIN_SLOTS,
    ) -> None:
        self.specs = list(specs)
        self.layout = InputLayout(specs)
        stride = self.layout.stride
        self.slots = max(least, min(most, TOTAL_BYTES // stride))
        self.region = Region(stride * self.slots, "timed")
        self._rows = [self._slot_rows(i) for i in range(len(self.specs))]
        self._seen = seen
        try:
            self.refill(generator)
        except BaseException:
            self.close()
            raise

    def _slot_rows(self, index: int) -> np.ndarray:
        """All slots' elements of one input, as integers of its size: (slots, extent)."""
        buffer = self.layout.buffers[index]
        kind = _INTEGERS[buffer.itemsize]
        rows = self.region.array.reshape(self.slots, self.layout.stride)
        return rows[:, buffer.offset : buffer.offset + buffer.bytes].view(kind)

    @property
    def device(self) -> str:
        """Where the values that new ones are made from are."""
        return str(self._seen[0].device) if self._seen else "cpu"

    def refill(self, generator: torch.Generator) -> None:
        """Draw new values for everything; the generator is on :attr:`device`."""
        self._pools, self._bases = [], []
        for tensor, rows in zip(self._seen, self._rows, strict=True):
            width = rows.shape[1]
            count = min(2 * width, POOL_BYTES // rows.itemsize)
            flat = redraw_flat(tensor, max(count, 1 << 12), generator)
            self._pools.append(_as_integers(flat.cpu()))
            self._bases.append(_Base(flat.cpu()) if _moves(flat) else None)
        source = random.SystemRandom()
        for pool, rows in zip(self._pools, self._rows, strict=True):
            for row in rows:
                _fill(pool, row, source)

    def renew(self, first: int, calls: int, source: random.Random) -> None:
        """Give the slots of ``calls`` calls from ``first`` on new values."""
        whole = self.layout.stride <= _WHOLE
        if whole and source.random() < _AGAIN:
            self._move_pools(source)
        start = first % self.slots
        for begin, end in _ranges(start, min(calls, self.slots), self.slots):
            for index, (pool, rows) in enumerate(zip(self._pools, self._rows, strict=True)):
                if not whole:
                    _patch(pool, rows[begin:end], source)
                    continue
                for row in rows[begin:end]:
                    _fill(pool, row, source)
                    self._turn(index, row, source)

    def _move_pools(self, source: random.Random) -> None:
        """Other numbers that look alike, so that no result of the old ones is one of the new."""
        for index, base in enumerate(self._bases):
            if base is not None:
                self._pools[index] = _as_integers(base.moved(source))

    def _turn(self, index: int, row: np.ndarray, source: random.Random) -> None:
        """A factor of its own for each slot: stretches of one pool have numbers in common.

        What was computed of a number in one slot would be right wherever it comes again. Never
        above 1: a mask's largest number stays finite.
        """
        if self._bases[index] is not None and self.specs[index].dtype == "float32":
            values = row.view(np.float32)
            np.multiply(values, np.float32(source.uniform(1.0 - _MOVED, 1.0)), out=values)

    def raw(self, slot: int) -> list[np.ndarray]:
        """The bytes of each input in a slot, not copied."""
        return [rows[slot % self.slots].view(np.uint8) for rows in self._rows]

    def snapshot(self, slot: int) -> list[torch.Tensor]:
        """A copy of the inputs that are in a slot now, with the target's strides."""
        taken = []
        for spec, rows in zip(self.specs, self._rows, strict=True):
            flat = torch.from_numpy(rows[slot % self.slots].copy().view(np.uint8))
            dtype = getattr(torch, spec.dtype)
            taken.append(flat.view(dtype).as_strided(spec.shape, spec.stride))
        return taken

    def close(self) -> None:
        """Give the memory back."""
        self._rows = []
        self.region.close()


class _Base:
    """Floating-point values of a pool, and how each of them may be moved."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        noise = np.random.default_rng().random(values.numel(), dtype=np.float32)
        self._factors = torch.from_numpy(1.0 + _MOVED * (2.0 * noise - 1.0))

    def moved(self, source: random.Random) -> torch.Tensor:
        """The values, each times the factor that stood somewhere else."""
        turned = torch.roll(self._factors, source.randrange(self._values.numel()))
        return (self._values.to(torch.float32) * turned).to(self._values.dtype)


def _moves(flat: torch.Tensor) -> bool:
    """Whether a pool's numbers can be changed a little: floats, and not too many."""
    small = flat.numel() * flat.element_size() <= _MOVED_POOL
    return flat.is_floating_point() and flat.dtype is not torch.float64 and small


def _ranges(start: int, count: int, slots: int) -> list[tuple[int, int]]:
    if start + count <= slots:
        return [(start, start + count)]
    return [(start, slots), (0, start + count - slots)]


def _fill(pool: np.ndarray, row: np.ndarray, source: random.Random) -> None:
    """Random stretches of the pool, one after the other; mostly one is enough."""
    most = max(1, len(pool) // 2)
    for at in range(0, len(row), most):
        count = min(most, len(row) - at)
        start = source.randrange(len(pool) - count + 1)
        row[at : at + count] = pool[start : start + count]


def _patch(pool: np.ndarray, rows: np.ndarray, source: random.Random) -> None:
    count, width = rows.shape
    if width == 0 or count == 0:
        return
    stretch = min(width, max(64, width // _PATCH), max(1, len(pool) // 2))
    at = source.randrange(width - stretch + 1)
    need = stretch * count
    if need <= len(pool):
        start = source.randrange(len(pool) - need + 1)
        rows[:, at : at + stretch] = pool[start : start + need].reshape(count, stretch)
        return
    for row in rows:
        start = source.randrange(len(pool) - stretch + 1)
        row[at : at + stretch] = pool[start : start + stretch]


def _as_integers(flat: torch.Tensor) -> np.ndarray:
    size = flat.element_size()
    return flat.contiguous().view(torch.uint8).numpy().view(_INTEGERS[size])
