"""A target keeps its number from one profile of a model to the next, within a process.

Rows stand by share, and shares of two moments differ: the same target would be 2 in one profile and
5 in the next, so that ``--target 2`` meant another one each time. The first profile of a set of
targets numbers them by share; later ones of the very same set keep those numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["forget", "numbers"]

KEPT = 64
"""Sets of targets whose numbers are kept."""

_known: dict[tuple[str, frozenset[str]], dict[str, int]] = {}


def numbers(granularity: str, fingerprints: Sequence[str]) -> list[int]:
    """The number of each target: its place, or the one it had in the first profile of this set."""
    place = {fingerprint: index for index, fingerprint in enumerate(fingerprints)}
    if len(place) != len(fingerprints):
        return list(range(len(fingerprints)))
    found = _known.setdefault((granularity, frozenset(fingerprints)), place)
    if len(_known) > KEPT:
        del _known[next(iter(_known))]
    return [found[fingerprint] for fingerprint in fingerprints]


def forget() -> None:
    """Lets all numbers go."""
    _known.clear()
