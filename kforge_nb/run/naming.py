"""Which target is meant: by its index, name, family or fingerprint. Pure.

An index stays within a process; in a later one, the same model profiled again may have another
order. Names and fingerprints stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kforge_nb.errors import BadInput
from kforge_nb.options import did_you_mean

__all__ = ["Called", "Named", "which_target"]

SHORTEST = 4
"""Digits that the beginning of a fingerprint must have: fewer could be anything."""

LISTED = 12


class Named(Protocol):
    """What a target is called."""

    @property
    def index(self) -> int:
        """Position in the profile."""

    @property
    def name(self) -> str:
        """Name shown to people."""

    @property
    def family(self) -> str:
        """What kind of operation."""

    @property
    def fingerprint(self) -> str:
        """What the target computes, as digits."""


@dataclass(frozen=True, slots=True)
class Called:
    """One target's names."""

    index: int
    name: str
    family: str
    fingerprint: str


def which_target(asked: int | str, rows: Iterable[Named], where: str) -> int:
    """The index of the one target that ``asked`` means.

    A whole number is an index. A word is a name, else the beginning of one, else a family, else
    the beginning of a fingerprint (four digits or more). ``where`` says whose targets they are, for
    the message. BadInput, with the choices, where no target or more than one is meant.
    """
    known = list(rows)
    if isinstance(asked, int) or (asked.isdigit() and int(asked) in {row.index for row in known}):
        found = [row for row in known if row.index == int(asked)]
    else:
        found = _by_word(asked, known)
    if len(found) == 1:
        return found[0].index
    if found:
        raise BadInput(
            f"{asked!r} may be any of these targets: {_listing(found)}; give the index, or the "
            "beginning of the fingerprint, of one (--ops takes all of a family)"
        )
    what = f"target {asked}" if isinstance(asked, int) else f"target {asked!r}"
    close = "" if isinstance(asked, int) else did_you_mean(asked, [row.name for row in known])
    raise BadInput(f"there is no {what}{close}; {where} has {_listing(known) or 'none'}")


def _by_word(word: str, rows: Sequence[Named]) -> list[Named]:
    """The rows of the first way of naming that fits any."""
    ways = (
        [row for row in rows if row.name == word],
        [row for row in rows if row.name.startswith(word)],
        [row for row in rows if row.family == word],
        [row for row in rows if len(word) >= SHORTEST and row.fingerprint.startswith(word)],
    )
    return next((found for found in ways if found and word), [])


def _listing(rows: Sequence[Named]) -> str:
    told = [f"{row.index} {row.name} ({row.fingerprint[:8]})" for row in rows[:LISTED]]
    more = [f"{len(rows) - LISTED} more"] if len(rows) > LISTED else []
    return ", ".join(told + more)
