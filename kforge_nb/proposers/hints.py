"""What prompts tell of target families and of moves, in words: never a line of a recipe's source.

A hint says what usually decides in such a target (passes over memory, numerical traps, how to
divide the work); a strategy is a move with what it means. Both go by language, and stand in
``prompts/hints.toml``.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib import resources
from typing import Any

__all__ = ["OTHER", "hints", "strategies", "strategy_words"]

OTHER = "other"
"""The family whose hints are given where there are none of a target's own."""

_SHARED = re.compile(r"@(\w+)")


def hints(family: str, language: str) -> tuple[str, ...]:
    """What is known about targets of a family, in words."""
    known = _read()["hints"]
    found = known.get(family, {}).get(language) or known[OTHER][language]
    return tuple(_with_shared(text) for text in found)


def strategies(language: str) -> dict[str, str]:
    """The moves that an ``optimise`` may ask for in a language, and what each means."""
    moves: dict[str, dict[str, str]] = _read()["moves"]
    return {**moves["both"], **moves.get(language, {})}


def strategy_words(strategy: str, language: str) -> str:
    """What a move means; raises KeyError for one that the language does not have."""
    return strategies(language)[strategy]


def _with_shared(text: str) -> str:
    shared: dict[str, str] = _read()["shared"]
    return _SHARED.sub(lambda match: shared[match[1]], text)


@lru_cache(maxsize=1)
def _read() -> dict[str, Any]:
    file = resources.files("kforge_nb.proposers") / "prompts" / "hints.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
