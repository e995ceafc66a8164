"""What a foreign candidate's worker answers beside the commands of every extension's worker.

REPORT makes one more call on the checked inputs and writes what was seen of it, as JSON, to the
last ``NOTES`` bytes of the outputs' region: a 4-byte length and the text. What LOAD wants to have
compiled goes the same way. The judge reads it as it reads everything from there: as a claim.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any

from kforge_nb.judge.extension.ops import Breach

__all__ = ["NOTES", "ForeignOp", "NeedsBuild", "Tampered", "Unfit", "pack_notes", "unpack_notes"]

NOTES = 1 << 19
_HEAD = struct.Struct("<I")


class ForeignOp(IntEnum):
    """What a foreign candidate's worker can do."""

    REPORT = 32


class NeedsBuild(Breach):
    """Extensions that the file wants compiled; they are in the notes."""

    code = 16


class Tampered(Breach):
    """Something that belongs to the whole process was changed."""

    code = 17


class Unfit(Breach):
    """A file that cannot be called as the reference is."""

    code = 18


def pack_notes(notes: Any) -> bytes:
    """Notes as bytes; ValueError where they do not fit."""
    text = json.dumps(notes).encode()
    if len(text) + _HEAD.size > NOTES:
        raise ValueError(f"{len(text)} bytes of notes do not fit into {NOTES}")
    return _HEAD.pack(len(text)) + text


def unpack_notes(data: bytes) -> dict[str, Any]:
    """Inverse of :func:`pack_notes`; empty for anything damaged."""
    (size,) = _HEAD.unpack_from(data)
    try:
        found = json.loads(data[_HEAD.size : _HEAD.size + min(size, NOTES)])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
