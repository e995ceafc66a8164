"""Where the time goes that no row of the table has, so that the headline fits the rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Elsewhere", "elsewhere", "overfull"]

WORTH_TELLING = 0.1
"""Below this part of the time nothing is missed."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Parts of a run's time, 0 … 1: of all rows together, and of what has no row.

    ``waiting`` is time between operators, in which nothing computes (Python, dispatch, launches);
    ``computing`` is spent in operators without a row.
    """

    rows: float
    waiting: float
    computing: float

    @property
    def share(self) -> float:
        """What no row has."""
        return self.waiting + self.computing

    @property
    def note(self) -> str:
        """The whole in one sentence."""
        parts = []
        if self.waiting >= 0.01:
            parts.append(f"{self.waiting:.1%} between operators (Python, dispatch, launches)")
        if self.computing >= 0.01:
            parts.append(
                f"{self.computing:.1%} in operators that have no row, or take longer inside the "
                "model than alone"
            )
        return (
            f"the targets and vendor operators in the table are {self.rows:.1%} of the time of a "
            f"run together; everything else: {', '.join(parts)}"
        )


def elsewhere(shares: Iterable[float | None], wall_us: float, device_us: float) -> Elsewhere | None:
    """What is left of a run's ``wall_us`` beside the rows; None where that is not worth telling.

    ``device_us`` is the part of it in which something computes. Rows are timed alone, so that they
    may add up to more than the whole: then nothing is left.
    """
    rows = _sum(shares)
    left = 1.0 - rows
    if wall_us <= 0 or left < WORTH_TELLING:
        return None
    waiting = min(max(1.0 - device_us / wall_us, 0.0), left)
    return Elsewhere(rows, waiting, left - waiting)


def overfull(shares: Iterable[float | None]) -> str | None:
    """What to say where the rows add up to clearly more than a run; None where they do not."""
    rows = _sum(shares)
    if rows < 1.0 + WORTH_TELLING:
        return None
    return (
        f"the targets and vendor operators in the table add up to {rows:.0%} of a run: each is "
        "timed alone, at another moment and on inputs that no cache holds; compare them with one "
        "another, and take no share or ceiling for what the model would gain"
    )


def _sum(shares: Iterable[float | None]) -> float:
    return sum(share or 0.0 for share in shares)
