"""Files that a source of host code has its compiler or assembler open, by its text.

A compiler runs with the user's rights. What it opens shows in its messages, and what an assembler
takes in stands in the library, so a source names headers and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kforge_nb.judge.lexing import Lexed
from kforge_nb.judge.policy import Finding

__all__ = ["files_opened"]

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|include_next|import|embed)\b[ \t]*([^\n]*)", re.M)
_HEADER = re.compile(r"<(?!/)[\w+-]+(?:[./][\w+-]+)*>\s*")
_QUOTED = re.compile(r'"(?!/)[\w+-]+(?:[./][\w+-]+)*"\s*')
_PROBE = re.compile(r"\b__has_(?:include(?:_next)?|embed)\b[ \t]*(?:\([ \t]*([<\"][^)\n]*)\))?")
_MARKER = re.compile(r"^[ \t]*#[ \t]*(?:\d|line\b)", re.M)
_ASSEMBLER = re.compile(
    r"\b(?:asm|__asm__|__asm)\b\s{0,20}(?:(?:volatile|__volatile__|inline|goto)\s{0,20}){0,3}\("
)
_STRINGS = re.compile(
    r'\s{0,200}(?:"((?:\\.|[^"\\\n])*)"|R"([^()\\\s"]{0,16})\((.{0,20000}?)\)\2")', re.DOTALL
)
_TAKES_IN = re.compile(r"inc(?:bin|lude)")
_WORD = re.compile(r"\bincbin\b")


def files_opened(text: Lexed, quoted: bool = False) -> Iterable[Finding]:
    """Breaches: includes of no header, questions for files, and what an assembler takes in.

    Args:
        text: the source.
        quoted: whether ``"header"`` is one too (in a private folder it finds the same), and whether
            assembler may be put together by macros, as others write it.
    """
    for pattern, words in (
        (_INCLUDE, "includes {}, which is no <header>"),
        (_PROBE, "asks for {}, which is no <header>"),
    ):
        for match in pattern.finditer(text.plain):
            name = match[1] or ""
            if not (_HEADER.fullmatch(name) or (quoted and _QUOTED.fullmatch(name))):
                yield _found(text, match.start(), words.format(name.strip()[:80] or "a file"))
    for match in _MARKER.finditer(text.bare):
        yield _found(text, match.start(), "says that its lines are another file's")
    found = list(_assembler(text, quoted))
    yield from found
    word = None if found else _WORD.search(text.plain)
    if word is not None:
        yield _found(text, word.start(), "has the compiler read a file (incbin)")


def _assembler(text: Lexed, pieces: bool) -> Iterable[Finding]:
    """Assembler is plain strings, which together name no directive that opens a file."""
    for match in _ASSEMBLER.finditer(text.plain):
        parts, at = [], match.end()
        while (part := _STRINGS.match(text.plain, at)) is not None:
            parts.append(part[1] if part[1] is not None else part[3])
            at = part.end()
        code = "".join(parts)
        plain = parts and text.plain[at : at + 200].lstrip()[:1] in (":", ")")
        if not plain and not pieces:
            yield _found(text, match.start(), "contains assembler that is no plain string")
        elif _TAKES_IN.search(code) or re.search(r"\\[0-7xuUN]", code):  # or spelled in numbers
            yield _found(text, match.start(), "has the compiler read a file by its assembler")


def _found(text: Lexed, at: int, what: str) -> Finding:
    return Finding("breach", what, text.plain.count("\n", 0, at) + 1)
