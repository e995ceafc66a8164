"""The fixed binary protocol between the judge and a runner, and nothing else.

Commands go to the runner on one pipe, replies come back on another; both are little-endian structs
of fixed size, so nothing that a candidate could write has to be parsed.

Command, 48 bytes, then ``payload`` bytes::

    u32 magic "KFR1" | u32 op | u64 seq | i64 a | i64 b | u64 payload | u64 0

========  =================================  ====================================================
op        a, b                               payload
========  =================================  ====================================================
LOAD 1                                       entry name, UTF-8
BIND 2                                       u64 slot_stride, slots (0: nothing will be timed),
                                             count, 0; then ``count`` bindings of 32 bytes: u32
                                             kind, u32 zero, u64 offset, u64 bytes, u64 value
RUN 3                                        one call on the checked inputs, outputs and scratch
                                             in the output region
BATCH 4   a first slot, b calls              timed calls, slots taken in turn, outputs and scratch
                                             allocated per call; payload: 4 u64, the calls whose
                                             outputs stay (beyond b: none); the reply's value:
                                             bytes by which the heap grew
FETCH 5   a which of those calls             copies that call's outputs into the output region
QUIT 6                                       ends the process, no reply
========  =================================  ====================================================

Reply, 320 bytes::

    u32 magic | u32 status (0 ok, 1 error) | u64 seq | u64 nanoseconds | i64 value | char text[288]

A reply that is short, has another magic or another ``seq``, or comes unasked is a breach. The first
bytes of the output region are the runner's last words (``u32 magic, u32 kind, u64 number``): kind 1
is a forbidden system call, kind 2 a memory fault (number 1: in the inputs, which are read-only),
kind 3 a call that left other floating-point control (rounding, subnormals) than it found, kind 4 an
end by the C++ library (number 1: no memory was left; 0: a message, an uncaught exception).
They explain a death; they decide nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "HELD_CALLS",
    "MAGIC",
    "REPLY_BYTES",
    "STATUS_BYTES",
    "Binding",
    "Kind",
    "LastWords",
    "MalformedReply",
    "Op",
    "Reply",
    "pack_bindings",
    "pack_command",
    "pack_keep",
    "unpack_last_words",
    "unpack_reply",
]

MAGIC = 0x3152464B
HELD_CALLS = 4
"""How many calls of a batch keep their outputs until the next batch."""
STATUS_BYTES = 4096
"""Bytes at the start of the output region that belong to the runner's last words."""

_COMMAND = struct.Struct("<IIQqqQQ")
_REPLY = struct.Struct("<IIQQq288s")
_BINDING = struct.Struct("<IIQQQ")
_BIND_HEADER = struct.Struct("<QQQQ")
_KEEP = struct.Struct("<QQQQ")
_LAST_WORDS = struct.Struct("<IIQ")
REPLY_BYTES = _REPLY.size
_LAST_KINDS = {1: "forbidden", 2: "fault", 3: "control", 4: "ended"}


class Op(IntEnum):
    """What the runner is told to do."""

    LOAD = 1
    BIND = 2
    RUN = 3
    BATCH = 4
    FETCH = 5
    QUIT = 6
    HEAP = 7


class Kind(IntEnum):
    """How one argument of the entry is passed."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    INTEGER = 3
    FLOAT = 4
    DOUBLE = 5


@dataclass(frozen=True, slots=True)
class Binding:
    """One argument: a buffer (offset in bytes in its slot or region, size in bytes) or a scalar.

    ``zero`` asks for zero-filled scratch. ``value`` is an int for INTEGER, a float otherwise.
    """

    kind: Kind
    offset: int = 0
    bytes: int = 0
    zero: bool = False
    value: int | float = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A well-formed answer."""

    ok: bool
    nanos: int
    value: int
    text: str


@dataclass(frozen=True, slots=True)
class LastWords:
    """Why a runner died: ``forbidden`` call, where a ``fault`` was, ``control``, or ``ended``."""

    kind: str
    number: int


class MalformedReply(Exception):
    """What came back is no reply to what was asked."""


def pack_command(op: IntEnum, seq: int, a: int = 0, b: int = 0, payload: bytes = b"") -> bytes:
    """A command with its payload."""
    return _COMMAND.pack(MAGIC, op, seq, a, b, len(payload), 0) + payload


def pack_bindings(slot_stride: int, slots: int, bindings: list[Binding]) -> bytes:
    """The payload of BIND."""
    head = _BIND_HEADER.pack(slot_stride, slots, len(bindings), 0)
    return head + b"".join(
        _BINDING.pack(b.kind, int(b.zero), b.offset, b.bytes, _bits(b)) for b in bindings
    )


def pack_keep(calls: Sequence[int]) -> bytes:
    """The payload of BATCH: ascending numbers of calls whose outputs are kept."""
    none = [2**64 - 1] * (HELD_CALLS - len(calls))
    return _KEEP.pack(*calls, *none)


def _bits(binding: Binding) -> int:
    """A scalar as the 8 bytes that are put into a register."""
    if binding.kind is Kind.FLOAT:
        return int.from_bytes(struct.pack("<f", binding.value) + bytes(4), "little")
    if binding.kind is Kind.DOUBLE:
        return int.from_bytes(struct.pack("<d", binding.value), "little")
    return int(binding.value) & (2**64 - 1)


def unpack_reply(data: bytes, seq: int) -> Reply:
    """Check and read a reply to command ``seq``; raises MalformedReply."""
    if len(data) != REPLY_BYTES:
        raise MalformedReply(f"a reply of {len(data)} bytes instead of {REPLY_BYTES}")
    magic, status, got, nanos, value, text = _REPLY.unpack(data)
    if magic != MAGIC or got != seq or status not in (0, 1):
        raise MalformedReply("bytes that are no reply to what was asked")
    words = text.split(b"\0", 1)[0].decode("utf-8", "replace")
    return Reply(status == 0, nanos, value, words)


def unpack_last_words(data: bytes) -> LastWords | None:
    """The last words at the start of the output region, if there are any."""
    if len(data) < _LAST_WORDS.size:
        return None
    magic, kind, number = _LAST_WORDS.unpack_from(data)
    if magic != MAGIC or kind not in _LAST_KINDS:
        return None
    return LastWords(_LAST_KINDS[kind], number)
