"""Memory that the judge shares with runners and the baseline worker, and how tensors lie in it.

A region is an anonymous memory file: it has no name, so nothing is left behind when its last user
is gone, however that happened. A reader gets a descriptor that was opened read-only, which it
cannot map writable. Every buffer stands between guard zones and starts on a boundary of 64 bytes,
or of 512 where the tensors are on a GPU: regions of those are copied to the device as they are.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kforge_nb.candidates.plan import DTYPE_BYTES
from kforge_nb.judge.protocol import STATUS_BYTES

if TYPE_CHECKING:
    from kforge_nb.candidates.plan import ResolvedPlan
    from kforge_nb.targets.target import TensorSpec

__all__ = [
    "GUARD",
    "GUARD_BYTE",
    "POISON_BYTE",
    "Buffer",
    "InputLayout",
    "OutputLayout",
    "Region",
    "alignment",
    "extent",
    "up",
]

ALIGN = 64
DEVICE_ALIGN = 512  # what torch's allocator gives on a GPU
PAGE = 4096
GUARD = 1024
GUARD_BYTE = 0xA5
POISON_BYTE = 0xFF  # NaN in every float type, -1 in every integer type


def extent(spec: TensorSpec) -> int:
    """Elements between a tensor's first and last, both included (strides as they are)."""
    if any(size == 0 for size in spec.shape):
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(spec.shape, spec.stride, strict=True)
    )


def up(value: int, step: int) -> int:
    """``value`` rounded up to a multiple of ``step``."""
    return -(-value // step) * step


def alignment(specs: Sequence[TensorSpec]) -> int:
    """Boundary in bytes on which buffers of these tensors start."""
    return DEVICE_ALIGN if any(s.device.startswith("cuda") for s in specs) else ALIGN


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where one buffer lies: offset and size in bytes, element size."""

    offset: int
    bytes: int
    itemsize: int


class InputLayout:
    """Offsets of all inputs of a target inside one slot of ``stride`` bytes."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.buffers: list[Buffer] = []
        step = alignment(specs)
        at = GUARD
        for spec in specs:
            size = DTYPE_BYTES[spec.dtype]
            bytes_ = extent(spec) * size
            self.buffers.append(Buffer(at, bytes_, size))
            at = up(at + bytes_ + GUARD, step)
        self.stride = up(max(at, PAGE), PAGE)

    @property
    def payload(self) -> int:
        """Bytes of the inputs themselves."""
        return sum(b.bytes for b in self.buffers)


class OutputLayout:
    """Offsets of outputs and scratch in the output region, and the guard zones between them."""

    def __init__(self, outputs: Sequence[TensorSpec], plan: ResolvedPlan) -> None:
        self.outputs: list[Buffer] = []
        self.scratch: dict[str, Buffer] = {}
        self.guards: list[tuple[int, int]] = []
        self._align = alignment(outputs)
        self._at = STATUS_BYTES
        for spec in outputs:
            size = DTYPE_BYTES[spec.dtype]
            self.outputs.append(self._place(extent(spec) * size, size))
        for name, scratch in plan.scratch.items():
            self.scratch[name] = self._place(scratch.bytes, DTYPE_BYTES[scratch.dtype])
        self.guards.append((self._at, self._at + GUARD))
        self.bytes = up(self._at + GUARD, PAGE)

    def _place(self, bytes_: int, itemsize: int) -> Buffer:
        start = up(self._at + GUARD, self._align)
        self.guards.append((self._at, start))
        self._at = start + bytes_
        return Buffer(start, bytes_, itemsize)


class Region:
    """An anonymous shared memory file of ``bytes`` bytes, mapped here for reading and writing."""

    def __init__(self, bytes_: int, name: str) -> None:
        self.bytes = max(up(bytes_, PAGE), PAGE)
        self._fd = _anonymous_file(name)
        try:
            os.ftruncate(self._fd, self.bytes)
            self._map: mmap.mmap | None = mmap.mmap(self._fd, self.bytes)
            self.read_only = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._fd)
            raise
        self.array = np.frombuffer(self._map, dtype=np.uint8)

    @property
    def writable(self) -> int:
        """Descriptor that may be mapped writable."""
        return self._fd

    def view(self, buffer: Buffer, base: int = 0) -> np.ndarray:
        """The bytes of one buffer; ``base`` is the start of its slot."""
        start = base + buffer.offset
        return self.array[start : start + buffer.bytes]

    def close(self) -> None:
        """Close the descriptors; the mapping goes with the last view of it."""
        if self._map is None:
            return
        os.close(self._fd)
        os.close(self.read_only)
        self.array = np.empty(0, dtype=np.uint8)
        mapping, self._map = self._map, None
        with suppress(BufferError):  # views are still alive: unmapped when the last one goes
            mapping.close()


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"kforge-{name}", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="kforge-") as file:
        return os.dup(file.fileno())
