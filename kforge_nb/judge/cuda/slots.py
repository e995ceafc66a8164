"""Inputs of timed calls on a GPU: renewed a stretch at a time, and known by their versions.

Each side copies the slots to memory of its own, so what a renewal costs is bytes: drawn once on the
judge's device, brought to the shared memory, copied from there twice. Every timed call sees units
that are drawn from a whole slot (staging.py). So it is enough that a random stretch of every slot
holds numbers that were nowhere before: they are then all over the inputs of every call. A version
of each slot says which of them a side lacks.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from kforge_nb.judge.cuda.pinned import Pinned
from kforge_nb.judge.draws import redraw_flat
from kforge_nb.judge.slots import POOL_BYTES, TimedInputs
from kforge_nb.targets.target import TensorSpec

__all__ = ["DeviceInputs", "Stretch"]

Stretch = tuple[int, int]
"""Offset and bytes, in the region of all slots."""

_LEAST_POOL = 1 << 12
_LEAST_FACTOR = 0.9  # and at most 1: a mask's largest number stays finite
_FACTORS, _PIECE = 1 << 21, 1 << 20
_ALONE = 1 << 14  # elements for which torch starts no second thread
_SMALL = 1 << 14  # bytes of an input that is always renewed as a whole
_GAP = 1 << 14  # bytes between two stretches that are copied together
_LARGE, _PART = 256 << 20, 16  # of larger slots only a sixteenth is renewed at once


class DeviceInputs(TimedInputs):
    """:class:`TimedInputs` that both sides copy to a device; arguments are the same.

    ``versions``: of each slot a number that is another one whenever values in it have changed.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        seen: list[torch.Tensor],
        generator: torch.Generator,
        most: int = 64,
        least: int = 3,
    ) -> None:
        self.versions: list[int] = []
        self._clock = 0
        self._pinned: Pinned | None = None
        self._pools_there: list[torch.Tensor] = []  # typed, on the judge's device
        super().__init__(specs, seen, generator, most=most, least=least)

    def pin(self) -> None:
        """Have this process's own copies to and from the device run at the bus's speed."""
        if self._pinned is None and torch.device(self.device).type == "cuda":
            array = self.region.array
            self._pinned = Pinned(array.ctypes.data, array.nbytes, self.device)

    def refill(self, generator: torch.Generator) -> None:
        """Draw new values for everything; the generator is on :attr:`device`."""
        source = random.SystemRandom()
        noise = torch.from_numpy(np.random.default_rng().random(_FACTORS, dtype=np.float32))
        self._factors = (1.0 - (1.0 - _LEAST_FACTOR) * noise).to(self.device)
        self._pools_there = []
        for tensor, rows in zip(self._seen, self._rows, strict=True):
            count = max(_LEAST_POOL, min(2 * rows.shape[1], POOL_BYTES // rows.itemsize))
            self._pools_there.append(redraw_flat(tensor, count, generator))
        most = _ALONE if torch.device(self.device).type == "cpu" else sys.maxsize
        for index, pool in enumerate(self._pools_there):
            for slot in range(self.slots):
                for to, part in _parts(pool, self._row(index, slot), source, most):
                    to.copy_(part)
        self.versions = [self._tick() for _ in range(self.slots)]

    def renew(self, first: int, calls: int, source: random.Random) -> None:
        """Give the slots of ``calls`` calls from ``first`` on new values.

        Of slots above 256 MB a sixteenth.
        """
        share = 1.0 if self.layout.stride <= _LARGE else 1.0 / _PART
        chosen = sorted({(first + i) % self.slots for i in range(min(calls, self.slots))})
        self._change(chosen, share, source)

    def freshen(self, most: int, source: random.Random) -> list[Stretch]:
        """New values for a random stretch of each input in every slot.

        Args:
            most: bytes, all stretches together; a little more where inputs are small.
            source: of random numbers.

        Returns:
            What has changed and must be copied, ascending; stretches that lie close together are
            one.
        """
        share = min(1.0, most / max(1, self.layout.payload * self.slots))
        return _merged(sorted(self._change(range(self.slots), share, source)))

    def stale(self, held: Mapping[int, int]) -> list[tuple[int, int]]:
        """Slots of which a side does not hold this version, as (first, count) of neighbours."""
        runs: list[tuple[int, int]] = []
        for slot in range(self.slots):
            if held.get(slot) == self.versions[slot]:
                continue
            if runs and sum(runs[-1]) == slot:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((slot, 1))
        return runs

    def close(self) -> None:
        """Give the memory back."""
        if self._pinned is not None:
            self._pinned.release()
            self._pinned = None
        self._pools_there = []
        super().close()

    def _change(self, slots: Sequence[int], share: float, source: random.Random) -> list[Stretch]:
        """New values for a share of each input in some slots, at a random place in it."""
        found: list[Stretch] = []
        for index, buffer in enumerate(self.layout.buffers):
            width, size = self._rows[index].shape[1], buffer.itemsize
            count = width if buffer.bytes <= _SMALL else math.ceil(width * share)
            if count == 0:
                continue
            at = source.randrange(width) if count < width else 0
            for start, end in ((at, min(at + count, width)), (0, at + count - width)):
                if start >= end:
                    continue
                self._draw(index, slots, start, end, source)
                there = buffer.offset + start * size
                found += [(s * self.layout.stride + there, (end - start) * size) for s in slots]
        for slot in slots:
            self.versions[slot] = self._tick()
        return found

    def _draw(
        self, index: int, slots: Sequence[int], start: int, end: int, source: random.Random
    ) -> None:
        """Elements of one input in some slots: numbers of its pool, each a little smaller.

        Each piece comes from a random place and meets random factors, so no result of a number that
        was there is one of a number that is.
        """
        pool = self._pools_there[index]
        rows = [self._row(index, slot)[start:end] for slot in slots]
        if pool.device.type == "cpu":  # in pieces, so that no other thread has to be waited for
            for row in rows:
                for to, part in _parts(pool, row, source, _ALONE):
                    to.copy_(self._smaller(part, source))
            return
        values = torch.empty((len(rows), end - start), dtype=pool.dtype, device=pool.device)
        for new in values:
            for to, part in _parts(pool, new, source):
                to.copy_(part)
        flat = values.view(-1)
        for at in range(0, flat.numel(), _PIECE):
            piece = flat[at : at + _PIECE]
            piece.copy_(self._smaller(piece, source))
        for row, new in zip(rows, values, strict=True):
            row.copy_(new)

    def _smaller(self, piece: torch.Tensor, source: random.Random) -> torch.Tensor:
        """Numbers of a pool, each times a factor of its own; integers and booleans as they are."""
        if not piece.is_floating_point() or piece.dtype is torch.float64:
            return piece
        turn = source.randrange(_FACTORS - _PIECE + 1)
        return piece.to(torch.float32) * self._factors[turn : turn + piece.numel()]

    def _row(self, index: int, slot: int) -> torch.Tensor:
        """One input in one slot of the shared memory, its elements as they lie there."""
        raw = self._rows[index][slot].view(np.uint8)
        return torch.from_numpy(raw).view(getattr(torch, self.specs[index].dtype))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _parts(
    pool: torch.Tensor, row: torch.Tensor, source: random.Random, most: int = sys.maxsize
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A row in parts of up to ``most`` elements, each with a random stretch of the pool."""
    most = max(1, min(most, pool.numel() // 2))
    found = []
    for at in range(0, row.numel(), most):
        count = min(most, row.numel() - at)
        start = source.randrange(pool.numel() - count + 1)
        found.append((row[at : at + count], pool[start : start + count]))
    return found


def _merged(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Those that nearly touch, as one; what lies between them is the same on both ends."""
    found: list[Stretch] = []
    for offset, count in stretches:
        if found and offset - sum(found[-1]) <= _GAP:
            start = found[-1][0]
            found[-1] = (start, max(sum(found[-1]), offset + count) - start)
        else:
            found.append((offset, count))
    return found
