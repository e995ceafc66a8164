"""The math that generated sources carry: text blocks of ``mathlib.h``, only those that are used."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

__all__ = ["has", "text_for"]


@lru_cache(maxsize=1)
def _blocks() -> dict[str, tuple[tuple[str, ...], str]]:
    text = (files(__package__) / "mathlib.h").read_text(encoding="utf-8")
    parts = re.split(r"^//@ (\w+):(.*)$\n", text, flags=re.MULTILINE)
    triples = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return {name: (tuple(needs.split()), body.strip()) for name, needs, body in triples}


def has(name: str) -> bool:
    """Whether there is a vectorisable float function of this name."""
    return name in _blocks()


def text_for(names: set[str]) -> str:
    """C text that defines ``kf_NAME`` for each name, with what those need, in file order."""
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(_blocks()[name][0])
    return "\n".join(body for name, (_, body) in _blocks().items() if name in needed)
