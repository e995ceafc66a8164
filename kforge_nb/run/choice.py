"""Which targets a run works on, in which order, and why the others are left alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kforge_nb.errors import BadInput
from kforge_nb.options import OptimizeOptions, did_you_mean
from kforge_nb.profile.believing import BELIEVABLE
from kforge_nb.run.naming import Named, which_target

__all__ = ["Choice", "Row", "Times", "choose_targets", "trusted_headroom"]

SMALLEST_SHARE = 0.001
"""Below this part of all targets' time even an infinitely fast kernel goes unnoticed.

Taken of the targets' own time, not of the wall: a workload that waits for its host (launch-bound,
or on a busy machine) has small shares all over, which says nothing about which target matters.
"""

SMALLEST_HEADROOM = 1.1
"""Below this distance from the roofline there is nothing to win."""


UNKNOWN_HEADROOM = 1.5
"""What a target is taken to have where its roofline is not known."""


class Row(Named, Protocol):
    """What the choice needs of one line of the profile."""

    @property
    def vendor(self) -> bool:
        """Whether a vendor library computes it."""

    @property
    def calls(self) -> int:
        """Calls a run of the workload."""

    @property
    def share(self) -> float | None:
        """Part of the workload's time, 0 … 1."""

    @property
    def mean_us(self) -> float | None:
        """Measured time of one call, µs."""

    @property
    def roofline_us(self) -> float | None:
        """Least time of one call on this device, µs."""


@dataclass(frozen=True, slots=True)
class Times:
    """Measured and least time of one call, µs."""

    mean_us: float | None
    roofline_us: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One target: taken or not, with the reason, and the part of the time it could save."""

    index: int
    taken: bool
    reason: str
    gain: float


def choose_targets(
    rows: Sequence[Row],
    options: OptimizeOptions,
    supports: Callable[[int], str | None],
    *,
    rough: bool = False,
) -> list[Choice]:
    """Choices for all rows, the taken ones first, by attainable gain.

    ``supports(index)`` gives None where the proposer can write candidates for a target, else the
    reason why not. Targets asked for by ``target`` are taken even when their gain is small. With
    ``rough``, where the rooflines come from a calibration on a busy machine, none is skipped for
    being near its own. Raises BadInput for a target or a family that the profile does not have.
    """
    _check_request(rows, options)
    asked = {which_target(word, rows, "the profile") for word in options.target}
    found = []
    total = sum(_time(row) for row in rows)
    for row in rows:
        part = _time(row) / total if total else 1.0
        headroom = trusted_headroom(row)
        if rough:
            headroom = max(headroom or 0.0, UNKNOWN_HEADROOM)
        reason = _why_not(row, options, asked, part, headroom) or supports(row.index)
        gain = _gain(row, headroom)
        words = reason or f"could save up to {gain:.1%} of the workload's time"
        found.append(Choice(row.index, reason is None, words, gain))
    found.sort(key=lambda c: (not c.taken, -c.gain, c.index))
    return [_beyond_top(c, position, options.top) for position, c in enumerate(found)]


def trusted_headroom(row: Row | Times) -> float | None:
    """Measured time over roofline time, where the two agree with physics; else None.

    A target that runs clearly faster than its roofline says that the roofline does not bind it (its
    data stay in a cache, or the calibration met a busy machine), so it says nothing.
    """
    if not row.mean_us or not row.roofline_us:
        return None
    found = row.mean_us / row.roofline_us
    return max(found, 1.0) if found > BELIEVABLE else None


def _gain(row: Row, headroom: float | None) -> float:
    return max((row.share or 0.0) * (1.0 - 1.0 / (headroom or UNKNOWN_HEADROOM)), 0.0)


def _time(row: Row) -> float:
    return (row.mean_us or 0.0) * row.calls


def _why_not(
    row: Row, options: OptimizeOptions, asked: set[int], part: float, headroom: float | None
) -> str | None:
    if asked:
        return None if row.index in asked else "not among the targets asked for"
    if options.ops and not {row.family, row.name} & set(options.ops):
        return f"not among the ops asked for ({', '.join(options.ops)})"
    if row.vendor:
        return "a vendor library computes it, which a generated kernel rarely beats"
    if row.mean_us is not None and part < SMALLEST_SHARE:
        return f"takes only {part:.2%} of the time of all targets"
    if headroom is not None and headroom < SMALLEST_HEADROOM:
        return f"already runs at its roofline (headroom {headroom:.2f}×)"
    return None


def _beyond_top(choice: Choice, position: int, top: int | None) -> Choice:
    if choice.taken and top is not None and position >= top:
        return Choice(choice.index, False, f"not among the {top} largest gains", choice.gain)
    return choice


def _check_request(rows: Sequence[Row], options: OptimizeOptions) -> None:
    words = {row.family for row in rows} | {row.name for row in rows}
    for word in options.ops:
        if word not in words:
            raise BadInput(
                f"no target is a {word!r}{did_you_mean(word, words)}; this workload has "
                f"{', '.join(sorted({row.family for row in rows})) or 'no targets'}"
            )
