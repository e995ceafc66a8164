"""What comes after a search, and about how long: no limit of the search covers it.

A time limit ends the search. Its winners are then timed again, for half as long at most, and the
guard measures the model; both are what makes a figure worth believing, and they are announced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kforge_nb.run.confirming import again_s
from kforge_nb.view import words

if TYPE_CHECKING:
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.run.work import Work

__all__ = ["Ending", "guard_words"]

COMPILE_S = 20.0
"""Seconds that timing one winner against torch.compile takes, about."""

FIRST_S = 10.0
"""Seconds that timing a winner again is taken to need where nothing was judged in this session."""


class Ending:
    """The end of one search, which ended because of ``reason``.

    ``each_s`` are the seconds that one candidate took so far, None where none did.
    """

    def __init__(
        self,
        works: Sequence[Work],
        options: OptimizeOptions,
        reason: str,
        each_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._works, self.reason = works, reason
        self._each = (FIRST_S if each_s is None else each_s) + (
            COMPILE_S if options.baseline == "compile" else 0.0
        )
        self._guard_s, self._again = options.guard_time, again_s(options)
        self._clock = clock
        self._begun, self._first = clock(), self._seconds()

    @property
    def words(self) -> str:
        """Why the search ended, what comes next, and about how long that takes."""
        return f"search ended ({self.reason}); {self.more}"

    @property
    def more(self) -> str:
        """What is still to come, with a guess of its seconds."""
        winners = self._waiting()
        if not winners and not self._kernels():
            return "no kernel was accepted, so there is nothing to measure in the model"
        again = f"timing {words.count(winners, 'winner')} again, then " if winners else ""
        return f"{again}the guard: about {self._seconds():.0f} s more at most"

    @property
    def left(self) -> float | None:
        """Seconds that are left by the first guess; None where it is over, so that nobody knows."""
        left = self._first - (self._clock() - self._begun)
        return left if left > 0 else None

    def _seconds(self) -> float:
        guard = self._guard_s if self._kernels() else 0.0
        return min(self._waiting() * self._each, self._again + self._each) + guard

    def _waiting(self) -> int:
        """Targets whose best is accepted and not yet timed again."""
        return sum(work.open and self._accepted(work) for work in self._works)

    def _kernels(self) -> int:
        return sum(self._accepted(work) for work in self._works)

    @staticmethod
    def _accepted(work: Work) -> bool:
        best = work.tree.best()
        return best is not None and work.accepted(best.id)


def guard_words(options: OptimizeOptions) -> str:
    """What is said when the guard begins."""
    return (
        "measuring the model with and without each kernel, for up to about "
        f"{options.guard_time:.0f} s (--guard-time; no limit of the search covers it)"
    )
