"""What the guard's time goes to: what its steps took, and so which of them may still be begun.

A trace by Dynamo and a compile in this process cannot be broken off. Such a step is begun only if
what is left is at least what the last one like it took; so the guard ends late by one step at most.
Everything else looks at the timer. What was left out for want of time is told with its reason.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kforge_nb.guard.measure import FLOOR, Timer

if TYPE_CHECKING:
    from kforge_nb.guard.stage import Stage

__all__ = ["AHEAD_SHARE", "FIDELITY_SECONDS", "TIME_OVER", "Spending"]

AHEAD_SHARE = 0.7
"""So much of the time that is left a compile ahead may take."""
FIDELITY_SECONDS = 30.0
"""Fidelity of the first rest is a gate and no figure: it gets so long even where time is over."""
SIDES = 3
"""A rest with its kernels, without, and the untouched model: the fewest that are measured."""
COMPILES = 2
"""A rest that compiles is compiled with its kernels and without."""
AHEAD_TRACES = 15
"""A compile by Inductor takes about so many times what Dynamo's trace of the graph took."""
TIME_OVER = "the guard's time was over"


class Spending:
    """The timer of a guard, and what its steps took so far; all in seconds.

    ``reserve`` is what measuring leaves to a compile ahead that is still to come,
    ``trace_seconds`` what Dynamo's last trace took, ``compile_reserve`` what one more compile in
    this process is taken to need, ``run_seconds`` a run of the workload, ``fidelity_seconds`` the
    last check on all inputs.
    """

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.total = max(timer.left, 1e-9)
        self.reserve = 0.0
        self.trace_seconds = 0.0
        self.compile_reserve = 0.0
        self.run_seconds = 0.0
        self.fidelity_seconds = 0.0
        self.late: dict[str, str] = {}
        """Rests that were left out for want of time, and why."""

    def part(self, share: float) -> Timer:
        """A timer over this share of what is left and not kept for steps that are still to come."""
        kept = self.reserve + self.fidelity_seconds
        return Timer.of(max(0.0, (self.timer.left - kept) * share), self.timer.stop)

    def measuring(self) -> float:
        """The least that measuring a compiled rest takes: some rounds, and fidelity."""
        return FLOOR * SIDES * self.run_seconds + self.fidelity_seconds

    def for_compile(self, share: float = AHEAD_SHARE) -> Timer:
        """How long a compile ahead may take: this share, and what comes after has to fit."""
        after = COMPILES * self.compile_reserve + self.measuring()
        left = min(share * self.timer.left, self.timer.left - after)
        return Timer.of(max(0.0, left), self.timer.stop)

    def for_fidelity(self, rest: str) -> Timer:
        """How long one check may take: the first rest's, which decides, may end late once."""
        left = self.timer.left
        more = FIDELITY_SECONDS if rest == "eager" else 0.0
        return Timer.of(max(0.4 * left, min(FIDELITY_SECONDS, left + more)), self.timer.stop)

    def room_for(self, stage: Stage) -> str:
        """Why a rest can go no further; empty where there is time, or where it is the first."""
        return "" if stage.rest == "eager" or self.timer.left > 0 else self.over()

    def over(self) -> str:
        """That the time is over, with the limit that was given and one that would do, about."""
        return f"{TIME_OVER} (--guard-time {self.total:.0f}; about {self.wanted()} would do)"

    def wanted(self) -> int:
        """Seconds that would do for every rest, about, in whole tens."""
        begun = self.total - max(self.timer.left, 0.0)
        needed = begun + AHEAD_TRACES * self.trace_seconds + COMPILES * self.measuring()
        return 10 * math.ceil(max(needed, 1.5 * self.total) / 10)
