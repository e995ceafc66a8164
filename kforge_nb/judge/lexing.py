"""C++ and CUDA text split as compilers split it: comments, strings, and what remains of a source.

A policy that takes a piece of code for a comment or for a string does not see it, so the text is
read by a compiler's own rules: line splices first (blanks behind the backslash too), then comments,
raw strings that are told from names that end in R, quotes that are told from separators of digits,
digraphs, blanks of every kind. Where the rules of two compilers differ, or a literal could pass for
something else in what a preprocessor puts out, it is told as odd. One pass: the time grows with the
text alone, whatever stands in it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["Lexed", "lex"]

_BLANKS = " \t\f\v\r"
_STEP = re.compile(
    r"""
      (?P<line>//[^\n]*)
    | (?P<block>/\*)
    | (?P<raw>(?:u8|[uUL])?R"(?P<fence>[^()\\\s"]{0,16})\()
    | (?P<quoted>(?:u8|[uUL])?(?:"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?))
    | \.?\d(?:[eEpP][+-]|'\w|[\w.])*
    | [^\W\d][\w$]*
    """,
    re.VERBOSE,
)
_DIGRAPH = re.compile(r"%:|<%|%>|:>|<:(?!:[^:>])")
_MEANS = {"%:": "#", "<%": "{", "%>": "}", "<:": "[", ":>": "]"}
_OTHER_BLANKS = re.compile(r"[\f\v\r\0]")
_LOOKS_LIKE_A_DIRECTIVE = re.compile(r"^[ \t\f\v\r]*(?:\#|%:|\?\?=)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Lexed:
    """A source with the numbers of its lines kept.

    ``plain``: without comments. ``bare``: without comments, and with strings and characters empty.
    ``odd``: what no kernel needs and a preprocessor or another compiler reads otherwise, each with
    its line (1-based).
    """

    plain: str
    bare: str
    odd: tuple[tuple[str, int], ...]


def lex(source: str) -> Lexed:
    """Split a source; never fails, whatever it is given."""
    text, cuts, blank_cuts = _joined(source.removeprefix("\ufeff"))
    plain, bare, odd = [], [], []
    at = done = 0
    while (match := _STEP.search(text, at)) is not None:
        kind, start, at = match.lastgroup, match.start(), match.end()
        if kind is None:
            continue
        if kind == "block":
            end = text.find("*/", at)
            at = len(text) if end < 0 else end + 2
        elif match["raw"] is not None:
            kind = "raw"
            end = text.find(f'){match["fence"]}"', at)
            at = len(text) if end < 0 else end + len(match["fence"]) + 2
        words = _odd(kind, text[start:at], _between(cuts, start, at),
                     _between(blank_cuts, start, at))  # fmt: skip
        if words:
            odd.append((words, text.count("\n", 0, start) + 1))
        code = _code(text[done:start])
        lines = "\n" * text.count("\n", start, at)
        plain += [code, text[start:at] if kind in ("raw", "quoted") else " " + lines]
        bare += [code, ('""' if kind in ("raw", "quoted") else " ") + lines]
        done = at
    rest = _code(text[done:])
    return Lexed("".join([*plain, rest]), "".join([*bare, rest]), tuple(odd))


def _joined(source: str) -> tuple[str, list[int], list[int]]:
    """The text without line splices, and where they were; those with blanks once more.

    The line breaks of spliced lines come after them, so that all others keep their numbers.
    """
    parts: list[str] = []
    cuts: list[int] = []
    blank_cuts: list[int] = []
    length = held = 0
    lines = source.split("\n")
    for number, line in enumerate(lines):
        ended = line.rstrip(_BLANKS)
        if ended.endswith("\\") and number < len(lines) - 1:
            parts.append(ended[:-1])
            length += len(ended) - 1
            cuts.append(length)
            if ended != line:
                blank_cuts.append(length)
            held += 1
            continue
        ending = "\n" * (held + 1) if number < len(lines) - 1 else ""
        parts += [line, ending]
        length += len(line) + len(ending)
        held = 0
    return "".join(parts), cuts, blank_cuts


def _between(places: list[int], start: int, end: int) -> bool:
    """Whether one of these ascending places lies after ``start`` and before ``end``, or at it."""
    first = bisect_right(places, start)
    return first < len(places) and places[first] <= end


def _odd(kind: str, text: str, spliced: bool, blank: bool) -> str:
    if kind == "raw" and (spliced or _LOOKS_LIKE_A_DIRECTIVE.search(text)):
        return "has a raw string with a line splice or a line that looks like a directive"
    if kind == "line" and blank:
        return "goes on with a comment behind a backslash and blanks, which compilers read apart"
    return ""


def _code(text: str) -> str:
    """Digraphs as what they stand for, and blanks as blanks."""
    return _DIGRAPH.sub(lambda m: _MEANS[m[0]], _OTHER_BLANKS.sub(" ", text))
