"""What a cubin can do beyond computing: memory that outlives a call, clocks, printing, traps.

Macros can hide a name from any reading of the source, so the compiled code has the last word. A
cubin is an ELF file: global memory has sections of its own, functions of the driver are undefined
symbols, and a few instructions are known by their opcode (the low 12 bits of 128-bit instructions,
the same from sm_80 to sm_120). Of global memory only what code takes the address of counts: every
``constexpr`` leaves an object there that nobody uses. Names that CUDA's own maths functions bring
along are known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from kforge_nb.errors import ContractBreach
from kforge_nb.judge.policy import Finding, gravest_first

__all__ = ["inspect_cubin"]

_LIMIT = 64 << 20
_SYMTAB = 2
_RELOCATIONS = {4: 24, 9: 16}  # kind of section: bytes of an entry
_OBJECT, _FUNCTION = 1, 2
_GLOBAL = (".nv.global", ".nv.global.init")
_OWN = re.compile(r"__cudart_\w+")
_DRIVER = {
    "vprintf": "prints",
    "malloc": "allocates device memory",
    "free": "allocates device memory",
    "__assertfail": "checks assertions, which costs time; leave them out",
}
_CLOCK_REGISTERS = range(0x50, 0x58)  # cycle counter, global timer, their halves; bits 72 to 79
_READS_SPECIAL = frozenset({0x805, 0x919, 0x9C3, 0x8CB})  # CS2R, S2R, S2UR, CS2UR
_TRAP = 0x95C
_ADDRESSES, _ADDRESS_BANK = ".nv.constant4", 4  # where code finds the addresses of global memory
_CONSTANT_FORMS, _LDC, _LDCU = (3, 5), 0xB82, 0x7AC


def inspect_cubin(path: Path) -> list[Finding]:
    """Breaches and suspicions in compiled device code, gravest first.

    Raises:
        ContractBreach: the file is no cubin that can be read.
    """
    data = path.read_bytes()
    if len(data) > _LIMIT or data[:6] != b"\x7fELF\x02\x01":
        raise ContractBreach("the compiler made no cubin that can be read")
    try:
        return gravest_first(dict.fromkeys(_findings(data)))
    except (struct.error, IndexError, ValueError) as problem:
        raise ContractBreach(f"the cubin is malformed: {problem}") from problem


def _findings(data: bytes) -> Iterator[Finding]:
    sections = list(_sections(data))
    code = [data[at : at + size] for name, _, at, size, _ in sections if name.startswith(".text.")]
    read = {offset for body in code for offset in _addresses_read(body)}
    used: set[int] = set()
    for name, kind, start, size, _ in sections:
        used |= set(_targets(data, name, kind, start, size, read))
    for name, kind, start, size, link in sections:
        if kind == _SYMTAB:
            _, _, strings, length, _ = sections[link]
            table = data[strings : strings + length]
            names = [s[0] for s in sections]
            yield from _symbols(data[start : start + size], table, names, used)
        elif name.startswith(".text."):
            yield from _instructions(data[start : start + size], name.removeprefix(".text."))


def _addresses_read(body: bytes) -> Iterator[int]:
    """Offsets in the bank of addresses that instructions read; -1 where a register is added.

    An operand in a constant bank is told by the form of the opcode (bits 9 to 11); its bank is in
    bits 54 to 58, its offset below.
    """
    for at in range(0, len(body) - 15, 16):
        (low,) = struct.unpack_from("<Q", body, at)
        if (low >> 9) & 7 not in _CONSTANT_FORMS or (low >> 54) & 31 != _ADDRESS_BANK:
            continue
        if low & 0xFFF == _LDC and (low >> 24) & 0xFF != 0xFF:
            yield -1
        yield ((low >> 37) & 0x1FFFF if low & 0xFFF == _LDCU else (low >> 38) & 0xFFFF) & ~7


def _targets(
    data: bytes, name: str, kind: int, start: int, size: int, read: set[int]
) -> Iterator[int]:
    """Numbers of the symbols whose addresses code uses, from one section of relocations."""
    if kind not in _RELOCATIONS or ".debug" in name:
        return
    step = _RELOCATIONS[kind]
    for at in range(start, start + size - step + 1, step):
        offset, what = struct.unpack_from("<QQ", data, at)
        if not name.endswith(_ADDRESSES) or offset in read or -1 in read:
            yield what >> 32


def _sections(data: bytes) -> Iterator[tuple[str, int, int, int, int]]:
    """Name, kind, offset, size and link of every section."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQI", data, table + i * size) for i in range(count)]
    text = data[rows[names][4] : rows[names][4] + rows[names][5]]
    for name, kind, _, _, start, length, link in rows:
        if kind not in (0, 8) and start + length > len(data):
            raise ValueError("a section reaches past the end of the file")
        yield _string(text, name), kind, start, length, link


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode("ascii", "replace")


def _symbols(body: bytes, strings: bytes, sections: list[str], used: set[int]) -> Iterator[Finding]:
    for at in range(24, len(body) - 23, 24):  # the first entry is empty
        name, info, _, index, _, size = struct.unpack_from("<IBBHQQ", body, at)
        text = _string(strings, name)
        if info & 15 == _FUNCTION and index == 0:
            what = _DRIVER.get(text, "which a kernel does not need")
            yield Finding("breach", f"calls {text[:60]} of the driver: {what}")
        elif at // 24 in used and _lasts(info, index, sections) and not _OWN.fullmatch(text):
            words = f"keeps {size} bytes between calls in {text[:60]}"
            yield Finding("breach", f"{words}; tables go into __constant__, also constexpr ones")


def _lasts(info: int, index: int, sections: list[str]) -> bool:
    """Whether a symbol is an object in global memory."""
    return info & 15 == _OBJECT and 0 < index < len(sections) and sections[index] in _GLOBAL


def _instructions(body: bytes, kernel: str) -> Iterator[Finding]:
    for at in range(0, len(body) - 15, 16):
        low, high = struct.unpack_from("<QQ", body, at)
        code = low & 0xFFF
        if code in _READS_SPECIAL and (high >> 8) & 0xFF in _CLOCK_REGISTERS:
            yield Finding("suspicion", f"{kernel} reads a clock")
        elif code == _TRAP:
            yield Finding("suspicion", f"{kernel} can stop the device by a trap")
