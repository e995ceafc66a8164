"""The wire between judge and runner."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kforge_nb.judge import protocol
from kforge_nb.judge.protocol import Binding, Kind, MalformedReply, Op


def _reply(magic: int, status: int, seq: int, text: bytes = b"") -> bytes:
    return struct.pack("<IIQQq288s", magic, status, seq, 7, -3, text)


def test_a_reply_is_read_back():
    """What the runner packs is what the judge reads, text included."""
    found = protocol.unpack_reply(_reply(protocol.MAGIC, 1, 5, b"words"), 5)
    assert (found.ok, found.nanos, found.value, found.text) == (False, 7, -3, "words")


@given(st.binary(max_size=2 * protocol.REPLY_BYTES))
def test_rubbish_is_never_a_reply(data):
    """Bytes that a candidate might write into the pipe are not taken for an answer."""
    with pytest.raises(MalformedReply):
        protocol.unpack_reply(data, 2**62)


@pytest.mark.parametrize(
    "data",
    [
        _reply(protocol.MAGIC + 1, 0, 5),
        _reply(protocol.MAGIC, 0, 4),
        _reply(protocol.MAGIC, 2, 5),
        _reply(protocol.MAGIC, 0, 5)[:-1],
    ],
    ids=["magic", "old sequence number", "status", "short"],
)
def test_every_field_of_a_reply_is_checked(data):
    """A forged or stale reply is refused for each single wrong field."""
    with pytest.raises(MalformedReply):
        protocol.unpack_reply(data, 5)


def test_commands_have_a_fixed_head():
    """The runner reads 48 bytes, then the payload whose length they say."""
    data = protocol.pack_command(Op.BATCH, 9, 3, -1, b"abc")
    magic, op, seq, a, b, length, zero = struct.unpack("<IIQqqQQ", data[:48])
    assert (magic, op, seq, a, b, length, zero) == (protocol.MAGIC, 4, 9, 3, -1, 3, 0)
    assert data[48:] == b"abc"


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, width=32))
def test_scalars_keep_their_value(integer, number):
    """Scalars travel as the very bits that go into registers."""
    data = protocol.pack_bindings(
        4096,
        3,
        [
            Binding(Kind.INTEGER, value=integer),
            Binding(Kind.FLOAT, value=number),
            Binding(Kind.DOUBLE, value=number),
        ],
    )
    assert struct.unpack("<QQQQ", data[:32]) == (4096, 3, 3, 0)
    rows = [data[32 + 32 * i : 64 + 32 * i][24:] for i in range(3)]
    assert struct.unpack("<q", rows[0])[0] == integer
    assert struct.unpack("<f", rows[1][:4])[0] == number
    assert struct.unpack("<d", rows[2])[0] == number


@given(st.binary(max_size=64))
def test_last_words_are_optional(data):
    """The page that a dying runner may write is read without trust."""
    found = protocol.unpack_last_words(data)
    assert found is None or found.kind in ("forbidden", "fault", "control")
