"""What of row code is the same in every row, computed before the rows are gone through.

Compilers do not see it: in a loop over rows that writes, the weights of a channel would be read,
converted and brought to their final form (a square root and a quotient of a variance) again in
every row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge_nb.candidates.recipes.families.rowcode import RowCode

__all__ = ["kept_text"]

_LINE = re.compile(r"const vf (v\d+) = (.*);")
_VALUE = re.compile(r"(?<![\w.])v\d+\b")
_OF_ROW = re.compile(r"\bp\.(\w+)")
_STEP = re.compile(r"\bi\d+ \*")  # a pointer's start that depends on the row's number


def kept_text(code: RowCode) -> str:
    """``Kept``, ``keep`` that computes it for the columns of a thread, and ``body`` for one row."""
    kept, names, rest = _split(code)
    fields = "".join(f"  vf {name};\n" for name in names)
    given = "".join(f"  k.{name} = {name};\n" for name in names)
    taken = "".join(f"  const vf {name} = k.{name};\n" for name in names)
    unused = "(void)p, (void)i, (void)n"
    return (
        f"struct Kept {{\n{fields}}};\n"
        "template <class L> KF_INLINE Kept keep(const Row& p, int64_t i, L n) {\n"
        f"  {unused};\n  Kept k;\n{_indented(kept)}{given}  return k;\n}}\n"
        "template <bool S, class L>\n"
        "KF_INLINE void body(const Row& p, int64_t i, L n, const Kept& k) {\n"
        f"  {unused}, (void)k;\n{taken}{_indented(rest)}}}\n"
    )


def _split(code: RowCode) -> tuple[list[str], list[str], list[str]]:
    """Lines for all rows, the values of them that a row needs, and the lines for each row."""
    same_start = {name for name, start in code.starts.items() if not _STEP.search(start)}
    known: set[str] = set()
    kept: list[str] = []
    rest: list[str] = []
    for line in code.lines.get("before", []):
        found = _LINE.fullmatch(line)
        if (
            found is not None
            and known.issuperset(_VALUE.findall(found[2]))
            and same_start.issuperset(_OF_ROW.findall(found[2]))
        ):
            known.add(found[1])
            kept.append(line)
        else:
            rest.append(line)
    used = dict.fromkeys(_VALUE.findall(" ".join(rest)))
    return kept, [name for name in used if name in known], rest


def _indented(lines: list[str]) -> str:
    return "".join(f"  {line}\n" for line in lines)
