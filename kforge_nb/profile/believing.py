"""When a roofline is one: what was measured to be faster shows that the limit is too low. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "BELIEVABLE",
    "BUSY_NOTE",
    "LAUNCH_BOUND",
    "beaten_note",
    "believed",
    "crowded_note",
    "is_crowded",
]

LAUNCH_BOUND = 2.0
"""A run that takes more than so many times what it computes waits for its host."""

CROWDED = "other processes kept "
"""How the note begins that a profile beside other work leaves; documents are read by it."""

BELIEVABLE = 0.95
"""A time below this part of the roofline's shows that the roofline does not bind."""

SHOWN = 6

BUSY_NOTE = (
    "other programs kept this machine busy while its limits were measured, so rooflines and "
    "ceilings are rough (it may be faster than they say), and no search ends for them"
)


def believed(us: float | None, roofline_us: float | None) -> float | None:
    """The least time of a call, µs; None where a call took clearly less, so that it is none.

    What is a little below it, as far as anyone can measure, is at it.
    """
    if not roofline_us or us is None:
        return roofline_us or None
    return min(roofline_us, us) if us >= BELIEVABLE * roofline_us else None


def beaten_note(names: Sequence[str]) -> str:
    """What is said of targets that were measured to be faster than their roofline."""
    told = [*names[:SHOWN], *([f"{len(names) - SHOWN} more"] if len(names) > SHOWN else [])]
    return (
        f"faster than the roofline measured for this machine: {', '.join(told)} (their data stay "
        "in a cache or are not all read, or it was busy when it was measured); no roofline and no "
        "ceiling is shown for them"
    )


def crowded_note(cores: float) -> str:
    """What is said of a profile that was taken while other processes kept so many cores busy."""
    return (
        f"{CROWDED}{cores:.1f} cores busy while the model and its targets were timed: times, "
        "shares and ceilings are rough, and whether it is launch-bound is not known"
    )


def is_crowded(notes: Iterable[str]) -> bool:
    """Whether the notes of a profile say that it was taken beside other work."""
    return any(note.startswith(CROWDED) for note in notes)
