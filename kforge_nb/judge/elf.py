"""A small reader of ELF files: what a library imports, needs, runs at load and can change.

An object file, as the compiler made it, says the same of the candidate's own code alone.

Only 64-bit little-endian files are read, which is what the supported CPUs use. The input is
untrusted: every offset is checked, and anything odd is a ContractBreach.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from kforge_nb.errors import ContractBreach

__all__ = ["Library", "read_library"]

_LIMIT = 64 << 20
_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_DYNSYM = 2, 6, 11
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR, _SHF_TLS = 1, 2, 4, 0x400
_DT_NEEDED = 1
_STT_OBJECT, _STT_GNU_IFUNC = 1, 10
_ET_REL = 1
_SHN_COMMON = 0xFFF2


@dataclass(slots=True)
class Library:
    """What the judge wants to know of a shared library or an object file.

    ``imports``: undefined symbols, versions stripped. ``defines``: names it exports.
    ``needed``: libraries it asks for. ``writable``: bytes by name of sections that are writable
    data; ``objects``: named things in them. ``starters``: bytes of the arrays of functions that
    run when it is loaded or unloaded.
    ``executable``: names of sections that are both writable and executable.
    """

    imports: set[str] = field(default_factory=set)
    defines: set[str] = field(default_factory=set)
    indirect: set[str] = field(default_factory=set)
    needed: list[str] = field(default_factory=list)
    writable: dict[str, int] = field(default_factory=dict)
    objects: set[str] = field(default_factory=set)
    thread_local: dict[str, int] = field(default_factory=dict)
    starters: dict[str, int] = field(default_factory=dict)
    executable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Section:
    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int


def read_library(path: Path) -> Library:
    """Read one library or object file; raises ContractBreach if it is none of this kind."""
    data = path.read_bytes()
    if len(data) > _LIMIT:
        raise ContractBreach(f"the built library has {len(data)} bytes; at most {_LIMIT}")
    if data[:6] != b"\x7fELF\x02\x01":
        raise ContractBreach("the compiler made no 64-bit ELF library")
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError) as problem:
        raise ContractBreach(f"the built library is malformed: {problem}") from problem


def _read(data: bytes) -> Library:
    sections, names = _sections(data)
    library = Library()
    (kind,) = struct.unpack_from("<H", data, 16)
    for section in sections:
        name = _string(names, section.name)
        _note_section(library, section, name)
        if section.kind == (_SHT_SYMTAB if kind == _ET_REL else _SHT_DYNSYM):
            _symbols(library, data, section, _body(data, sections[section.link]))
        if section.kind == _SHT_SYMTAB:
            _objects(library, data, section, sections, names)
        elif section.kind == _SHT_DYNAMIC:
            _needed(library, data, section, _body(data, sections[section.link]))
    return library


def _sections(data: bytes) -> tuple[list[_Section], bytes]:
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if size != 64 or count == 0 or names >= count:
        raise ContractBreach("the built library has no section table")
    sections = []
    for i in range(count):
        name, kind, flags, _, offset, length, link = struct.unpack_from(
            "<IIQQQQI", data, table + i * size
        )
        sections.append(_Section(name, kind, flags, offset, length, link))
    return sections, _body(data, sections[names])


def _body(data: bytes, section: _Section) -> bytes:
    if section.offset + section.size > len(data):
        raise ValueError("a section reaches past the end of the file")
    return data[section.offset : section.offset + section.size]


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode("ascii", "replace")


def _note_section(library: Library, section: _Section, name: str) -> None:
    if not section.flags & _SHF_ALLOC:
        return
    if section.flags & _SHF_TLS:
        library.thread_local[name] = section.size
    elif name.startswith((".init_array", ".ctors", ".preinit_array", ".fini_array", ".dtors")):
        library.starters[name] = library.starters.get(name, 0) + section.size
    elif section.flags & _SHF_WRITE:
        library.writable[name] = library.writable.get(name, 0) + section.size
    if section.flags & _SHF_WRITE and section.flags & _SHF_EXECINSTR:
        library.executable.append(name)


def _symbols(library: Library, data: bytes, section: _Section, strings: bytes) -> None:
    body = _body(data, section)
    for at in range(24, len(body) - 23, 24):  # the first entry is empty
        name, info, _, index = struct.unpack_from("<IBBH", body, at)
        text = _string(strings, name)
        if info & 15 == _STT_GNU_IFUNC:
            library.indirect.add(text)
        if index == _SHN_COMMON:
            library.objects.add(text)
        if index == 0:
            library.imports.add(text)
        else:
            library.defines.add(text)


def _objects(
    library: Library, data: bytes, table: _Section, sections: list[_Section], names: bytes
) -> None:
    strings, body = _body(data, sections[table.link]), _body(data, table)
    for at in range(24, len(body) - 23, 24):
        name, info, _, index, _, size = struct.unpack_from("<IBBHQQ", body, at)
        if info & 15 != _STT_OBJECT or size == 0 or not 0 < index < len(sections):
            continue
        if _string(names, sections[index].name).startswith((".data", ".bss")):
            home = _string(names, sections[index].name)
            if not home.startswith(".data.rel.ro"):
                library.objects.add(_string(strings, name))


def _needed(library: Library, data: bytes, section: _Section, strings: bytes) -> None:
    for tag, value in struct.iter_unpack("<qQ", _body(data, section)):
        if tag == 0:
            break
        if tag == _DT_NEEDED:
            library.needed.append(_string(strings, value))
