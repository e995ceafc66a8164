"""When a roofline is one: what was measured to be faster shows that the limit is too low. Pure."""

from __future__ import annotations

__all__ = ["BELIEVABLE", "BUSY_NOTE", "beaten_note", "believed"]

BELIEVABLE = 0.95
"""A time below this part of the roofline's shows that the roofline does not bind."""

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


def beaten_note(count: int) -> str:
    """What is said of targets that were measured to be faster than their roofline."""
    return (
        f"targets that run faster than the roofline measured for this machine: {count} (their data "
        "stay in a cache or are not all read, or it was busy when it was measured); no roofline "
        "and no ceiling is shown for them"
    )
