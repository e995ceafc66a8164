"""Secret inputs of timed calls: what the device stages before each call, and the judge knows.

A candidate's device memory, shared memory, registers spilled to local memory and constant banks all
outlive a call, and nothing can make sure that all of them are wiped. So a timed call must not be
able to use what it finds there: before each call, inside the graph, a kernel of the judge's puts
new inputs together, in units drawn from the uploaded slot by a secret and a clock of replays. No
two calls of a session see the same inputs, and which they see cannot be told beforehand. Afterwards
a few elements of every call's outputs, at places that the same secret gives, are noted. The judge
computes the same draws here, on its own copy of the slot, and checks some of the notes.

The arithmetic of :func:`seed_of` and :func:`draw` is that of the kernels in flush.py.
"""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kforge_nb.candidates.plan import DTYPE_BYTES
from kforge_nb.judge.regions import Buffer

if TYPE_CHECKING:
    from kforge_nb.judge.correctness import Expected
    from kforge_nb.judge.slots import TimedInputs
    from kforge_nb.targets.target import TensorSpec

__all__ = ["MOST_NOTES", "Staging", "draw", "noted", "seed_of", "unit_of", "values_of"]

MOST_NOTES = 128
"""Notes of one call, all outputs together; they fit on the status page."""
_NOTES = 8
_HEADER = struct.Struct("<QQQQ")
_ROW = struct.Struct("<QQQ")
_MASK = (1 << 64) - 1


def seed_of(secret: int, tick: int, call: int) -> int:
    """64 bits for one call of one replay."""
    z = (secret + 0x9E3779B97F4A7C15 * ((tick << 40) + call + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draw(seed: int, count: int, of: int) -> np.ndarray:
    """``count`` numbers below ``of`` (less than 2**32), as int64."""
    with np.errstate(over="ignore"):
        h = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(seed & 0xFFFFFFFF)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h ^= np.uint32(seed >> 32)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return ((h.astype(np.uint64) * np.uint64(of)) >> np.uint64(32)).astype(np.int64)


def unit_of(buffer: Buffer) -> int:
    """Bytes that are drawn together: elements of small inputs, pieces of rows of large ones."""
    if buffer.bytes >= 1 << 20:
        return 64
    return 16 if buffer.bytes >= 1 << 14 else buffer.itemsize


@dataclass(frozen=True, slots=True)
class Staging:
    """The secrets of one preparation: call ``i`` draws from slot ``first + i``."""

    secret: int
    first: int
    inputs: tuple[Buffer, ...]
    outputs: tuple[tuple[int, int, int], ...]

    @classmethod
    def fresh(cls, inputs: Sequence[Buffer], outputs: Sequence[Buffer], slots: int) -> Staging:
        """New secrets. ``outputs`` lie in the outputs region."""
        rows = tuple((b.offset, b.bytes // b.itemsize, b.itemsize) for b in outputs)
        return cls(secrets.randbits(64), secrets.randbelow(slots), tuple(inputs), rows)

    @property
    def notes(self) -> int:
        """How many elements of each output are noted after each call."""
        return max(1, min(_NOTES, MOST_NOTES // max(1, len(self.outputs))))

    def pack(self) -> bytes:
        """The payload of PREPARE."""
        head = _HEADER.pack(self.secret, self.first, self.notes,
                            len(self.inputs) << 32 | len(self.outputs))  # fmt: skip
        rows = [_ROW.pack(b.offset, b.bytes, unit_of(b)) for b in self.inputs]
        rows += [_ROW.pack(*row) for row in self.outputs]
        return head + b"".join(rows)

    def staged(
        self, timed: TimedInputs, tick: int, call: int, device: str = "cpu"
    ) -> list[torch.Tensor]:
        """The inputs that a call of the replay ``tick`` saw, by the judge's copy of the slot.

        They are put together, and left, on ``device``; nothing runs there any more afterwards.
        """
        found = []
        raw = timed.raw((self.first + call) % timed.slots)
        for index, (spec, buffer, flat) in enumerate(
            zip(timed.specs, self.inputs, raw, strict=True)
        ):
            seed = seed_of(self.secret, tick, call << 8 | index)
            there = torch.from_numpy(flat).to(device)
            found.append(_typed(_gathered(there, unit_of(buffer), seed), spec))
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        return found

    def places(self, tick: int, call: int) -> list[np.ndarray]:
        """Elements of each output, by their place in memory, that were noted after a call."""
        places = []
        for index, (_, items, _) in enumerate(self.outputs):
            seed = seed_of(self.secret ^ _MASK, tick, call << 8 | index)
            places.append(draw(seed, self.notes if items else 0, items))
        return places


def noted(
    expected: Expected, values: torch.Tensor, places: np.ndarray, spec: TensorSpec
) -> tuple[Expected, torch.Tensor]:
    """What was expected at noted places of an output, and what was noted there.

    Places count elements in memory; those between the elements of a strided output drop out.
    """
    index = torch.from_numpy(_numbers(places, spec))
    there = index >= 0
    return expected.at(index[there]), values[there]


def _numbers(places: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Row-major numbers of the elements at these places in memory; -1 where there is none."""
    steps = [math.prod(spec.shape[i + 1 :]) for i in range(len(spec.shape))]
    axes = sorted(zip(spec.stride, spec.shape, steps, strict=True), reverse=True)
    left, numbers = places.copy(), np.zeros_like(places)
    for stride, size, step in axes:
        if size > 1 and stride > 0:
            along = np.minimum(left // stride, size - 1)
            left -= along * stride
            numbers += along * step
    return np.where(left == 0, numbers, -1)


def values_of(words: Sequence[int], dtype: str) -> torch.Tensor:
    """Noted elements, as the numbers that their bytes are, as a tensor."""
    data = np.array(words, dtype="<u8").view(np.uint8).reshape(-1, 8)[:, : DTYPE_BYTES[dtype]]
    return torch.from_numpy(data.reshape(-1).copy()).view(getattr(torch, dtype))


def _drawn(seed: int, count: int, of: int, device: torch.device) -> torch.Tensor:
    """What :func:`draw` gives, computed on a device; ``of`` below 2**31."""
    low = (1 << 32) - 1
    h = torch.arange(count, dtype=torch.int64, device=device)
    h.mul_(0x9E3779B1).add_(seed & low).bitwise_and_(low)
    h.bitwise_xor_(h >> 16).mul_(0x85EBCA6B).bitwise_and_(low)  # above that, it may wrap around
    h.bitwise_xor_(seed >> 32)
    h.bitwise_xor_(h >> 13).mul_(0xC2B2AE35).bitwise_and_(low)
    h.bitwise_xor_(h >> 16)
    return h.mul_(of) >> 32


def _gathered(flat: torch.Tensor, unit: int, seed: int) -> torch.Tensor:
    """A new copy of an input's bytes, its units drawn anew."""
    count = flat.numel() // unit
    made = torch.empty_like(flat)
    if count:
        units = flat[: count * unit].view(count, unit)
        words = units.view(torch.int64) if unit % 8 == 0 else units
        index = _drawn(seed, count, count, flat.device)
        torch.index_select(
            words, 0, index, out=made[: count * unit].view(count, unit).view(words.dtype)
        )
    made[count * unit :] = flat[count * unit :]
    return made


def _typed(flat: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return flat.view(getattr(torch, spec.dtype)).as_strided(spec.shape, spec.stride)
