"""What the judge and the CUDA runner say to each other, beyond :mod:`kforge_nb.judge.protocol`.

Framing, command and reply are those of the CPU runner. The operations:

==========  ===============================  ===================================================
op          a, b                             payload, and what the reply carries
==========  ===============================  ===================================================
LOAD 1                                       u64 cubin bytes, flush bytes, kernels, 0; ``kernels``
                                             names of 72 bytes; cubin; flush cubin. Facts of each
                                             kernel are put on the status page
BIND 2                                       a :class:`CudaBinding`; launches are checked, device
                                             memory is allocated
RUN 3       a 1: outputs as laid out         one checked call; value: :class:`Touched`
BATCH 4     a replays, b 1: without calls    replays of a graph; value: nanoseconds by events
FETCH 5     a age of the call (0 = last)     outputs of a timed call into the outputs region
QUIT 6                                       ends the process, no reply
UPLOAD 7    a first slot, b slots            timed inputs to the device; payload: nothing, or the
                                             parts to copy instead, u64 offset and bytes of each
PREPARE 8   a calls                          code loaded anew, the two graphs built; payload:
                                             the secrets of :class:`.staging.Staging`
HOT 9       a calls                          launches one by one, waits once
READY 10                                     nothing: an answer says that the driver has started
NOTES 11    a call of the last replay        its noted output elements, 8 bytes each, onto the
                                             status page from byte 2048 on; value: replays so far
AUDIT 12                                     value: :class:`Touched` in timed calls
==========  ===============================  ===================================================

In a reply with status *error*, ``value`` is the class of :class:`Fault`. The status page is the
start of the outputs region: the kernels' facts from byte 64 on, then blocks per multiprocessor of
each launch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from kforge_nb.errors import BadInput

__all__ = [
    "MAX_KERNELS",
    "CudaBinding",
    "CudaOp",
    "Fault",
    "KernelFacts",
    "Launch",
    "LaunchArg",
    "LaunchKind",
    "ScratchSpace",
    "Touched",
    "pack_binding",
    "pack_load",
    "pack_stretches",
    "unpack_kernels",
    "unpack_notes",
    "unpack_occupancy",
]

MAX_KERNELS = 16
_NAME_BYTES = 72
_TABLE = 64
_NOTES_AT = 2048
_LOAD = struct.Struct("<QQQQ")
_BIND = struct.Struct("<QQQQQQQQQQ")
_OUTPUT = struct.Struct("<QQ")
_SCRATCH = struct.Struct("<QQQQ")
_LAUNCH = struct.Struct("<IIIIIIIIII")
_ARGUMENT = struct.Struct("<IIQ")
_STRETCH = struct.Struct("<QQ")
_FACTS = struct.Struct("<8q")


class CudaOp(IntEnum):
    """What the runner is told to do."""

    LOAD = 1
    BIND = 2
    RUN = 3
    BATCH = 4
    FETCH = 5
    QUIT = 6
    UPLOAD = 7
    PREPARE = 8
    HOT = 9
    READY = 10
    NOTES = 11
    AUDIT = 12


class Fault(IntEnum):
    """Whose fault an error is."""

    ENVIRONMENT = 1
    MEMORY = 2
    CONTRACT = 3
    CODE = 4
    CRASH = 5
    PROTOCOL = 6


class Touched(IntFlag):
    """What calls wrote that they must not: inputs, guard zones, memory that flushes the cache."""

    INPUTS = 1
    MARGINS = 2
    FLUSH = 4


class LaunchKind(IntEnum):
    """Where a parameter comes from."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    SCALAR = 3


@dataclass(frozen=True, slots=True)
class LaunchArg:
    """One parameter: offset in its slot, region or slab, or the bits of a scalar of ``bytes``."""

    kind: LaunchKind
    value: int
    bytes: int = 8


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: index into the loaded kernels, sizes, dynamic shared bytes, parameters."""

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: tuple[LaunchArg, ...]


@dataclass(frozen=True, slots=True)
class ScratchSpace:
    """One scratch buffer in the scratch slab; ``zero``: filled with zeros before every call."""

    offset: int
    bytes: int
    zero: bool


@dataclass(frozen=True, slots=True)
class CudaBinding:
    """All that the runner has to know of one plan on one target. Sizes and offsets in bytes.

    ``region_bytes`` of the outputs region belong to outputs from ``outputs_at`` on;
    ``scratch_guards_at`` is where guard zones of the scratch are put, one after the other;
    ``outputs`` are (offset in the region, bytes); ``sets`` rotating sets hold timed outputs.
    """

    slot_stride: int
    slots: int
    region_bytes: int
    outputs_at: int
    scratch_guards_at: int
    sets: int
    outputs: tuple[tuple[int, int], ...]
    scratch: tuple[ScratchSpace, ...]
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What the driver says of a kernel: registers a thread, bytes of memory kinds, block size.

    ``parameters`` is their number, or -1 where the driver is too old to tell.
    """

    registers: int
    shared: int
    local: int
    constant: int
    max_threads: int
    binary: int
    parameters: int


def pack_load(names: Sequence[str], cubin: bytes, flush: bytes) -> bytes:
    """The payload of LOAD."""
    if not 1 <= len(names) <= MAX_KERNELS:
        raise BadInput(f"{len(names)} kernels; a plan has 1 to {MAX_KERNELS}")
    fields = [name.encode() for name in names]
    longest = max(fields, key=len)
    if len(longest) >= _NAME_BYTES:
        raise BadInput(f"the kernel name {longest.decode()!r} is longer than {_NAME_BYTES - 1}")
    head = _LOAD.pack(len(cubin), len(flush), len(names), 0)
    return head + b"".join(f.ljust(_NAME_BYTES, b"\0") for f in fields) + cubin + flush


def pack_binding(binding: CudaBinding) -> bytes:
    """The payload of BIND."""
    b = binding
    parts = [
        _BIND.pack(
            b.slot_stride, b.slots, b.region_bytes, b.outputs_at, b.scratch_guards_at, b.sets,
            len(b.outputs), len(b.scratch), len(b.launches), 0,
        )
    ]  # fmt: skip
    parts += [_OUTPUT.pack(*output) for output in b.outputs]
    parts += [_SCRATCH.pack(s.offset, s.bytes, int(s.zero), 0) for s in b.scratch]
    for launch in b.launches:
        parts.append(
            _LAUNCH.pack(
                launch.kernel, len(launch.args), *launch.grid, *launch.block, launch.shared, 0
            )
        )
        parts += [_ARGUMENT.pack(a.kind, a.bytes, a.value) for a in launch.args]
    return b"".join(parts)


def pack_stretches(stretches: Sequence[tuple[int, int]]) -> bytes:
    """The payload of UPLOAD: (offset, bytes) in the region of timed inputs."""
    return b"".join(_STRETCH.pack(*stretch) for stretch in stretches)


def unpack_kernels(page: bytes, count: int) -> list[KernelFacts]:
    """Facts of ``count`` kernels from the status page."""
    rows = (_FACTS.unpack_from(page, _TABLE + i * _FACTS.size) for i in range(count))
    return [KernelFacts(*row[:7]) for row in rows]


def unpack_notes(page: bytes, count: int) -> list[int]:
    """``count`` noted elements from the status page, their bytes as little-endian numbers."""
    return list(struct.unpack_from(f"<{count}Q", page, _NOTES_AT))


def unpack_occupancy(page: bytes, count: int) -> list[int]:
    """Blocks that fit on a multiprocessor at a time, for each launch, from the status page."""
    start = _TABLE + MAX_KERNELS * _FACTS.size
    return list(struct.unpack_from(f"<{count}q", page, start))
