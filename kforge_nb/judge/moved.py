"""What CPU time says that the clock does not: work in other calls, and who waited for a core.

The inputs of the next pair of batches are in their places before this pair runs, and a ratio rests
on what is usual. So the work of some timed calls could be done in others, or in the calls before a
batch, which do not count: results would be right, made in this process, of these very inputs. What
it takes of the CPU is spent all the same, and is read from the system.

On a busy machine both sides wait for a core, and of two that are equally fast one may wait several
times as long as the other, pair after pair. What they use of the CPU knows nothing of that.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Sequence

import numpy as np

from kforge_nb.judge.statistics import MIN_PAIRS, Interval, interval, middle, paired_ratio

__all__ = ["SPIN_SECONDS", "Busy", "Used", "by_cpu"]

Busy = tuple[float, float]
"""CPU seconds that a batch used, and seconds that it took."""

SPIN_SECONDS = 1.2e-3
"""An idle OpenMP thread waits for more work so long, awake."""
_AHEAD, _AHEAD_SECONDS = 3.0, 2e-3  # CPU time before a batch, over that in it, and how much more
_SPARED = 0.05  # of the pairs, those that used most of the CPU: a busy machine's doing
_UNEVEN_SECONDS = 0.3e-3  # of the CPU in a pair: a thread that wakes takes less
_LEAST_SHARE = -0.9
_WAKING_SECONDS = 0.15e-3  # of the CPU, usually, for each thread that wakes before a batch


class Used:
    """CPU time that the candidate's process used in its batches, and in the calls before them.

    ``waiting``: as in ``timing.Tried``; those threads are awake for a while before they sleep.
    """

    def __init__(self, waiting: int = 0) -> None:
        self._usually = _UNEVEN_SECONDS + SPIN_SECONDS * waiting
        self._waking = _WAKING_SECONDS * (1 + waiting)
        self._cpu = self._wall = 0.0
        self._all: list[tuple[float, int]] = []  # timed calls; the others only where calls lead
        self._lead: list[tuple[float, int]] = []
        self._timed: list[tuple[float, int]] = []

    def add(self, wall: float, lead: tuple[float, int], timed: tuple[float, int]) -> None:
        """Seconds of a batch, and CPU seconds and calls of what came before and of the batch."""
        self._cpu += max(0.0, timed[0])
        self._wall += wall
        self._all.append(timed)
        if lead[1]:
            self._lead.append(lead)
            self._timed.append(timed)

    def ahead(self) -> str | None:
        """Words, if calls that do not count use far more of the CPU than those that do.

        Of a handful of pairs a busy machine may have spoilt most; they are never accepted anyway.
        """
        if len(self._lead) < MIN_PAIRS:
            return None
        lead, timed = (
            plain.median(cpu / calls for cpu, calls in rows) for rows in (self._lead, self._timed)
        )
        more = (lead - timed) * plain.median(calls for _, calls in self._lead)
        if lead <= _AHEAD * timed or more < _AHEAD_SECONDS:
            return None
        return (
            f"a call uses {timed * 1e6:.3g} µs of the CPU when it is timed and {lead * 1e6:.3g} µs "
            "just before that: work done ahead of the clock"
        )

    def uneven(self) -> float:
        """CPU time of a call on average, over what is usual when it is timed; 1 if much the same.

        A ratio rests on what most pairs say, so a candidate could do the work of some pairs in
        others, or in calls that do not count: the inputs of the next pair are there already. What
        it saves is then spent elsewhere in its process, and means show that. One call ahead serves
        one pair, so the few most costly pairs can be spared: they gain nothing.
        """
        if len(self._all) < MIN_PAIRS:
            return 1.0
        shares = [max(cpu, 1e-9) / calls for cpu, calls in self._all]
        usual = interval(np.log(np.asarray(shares))).ratio
        both = [
            (lead[0] + timed[0], lead[1] + timed[1])
            for lead, timed in zip(self._lead, self._timed, strict=True)
        ]
        worst = 1.0
        for rows in filter(None, (self._all, self._lead, both)):
            kept = sorted(rows, key=lambda row: row[0] / row[1])
            kept = kept[: len(kept) - math.ceil(_SPARED * len(kept))]
            calls = sum(row[1] for row in kept)
            more = sum(row[0] for row in kept) - usual * calls
            if calls and more > self._usually * len(kept):
                worst = max(worst, 1.0 + more / (usual * calls))
        return worst

    def shifted(self) -> float:
        """How many times as long a timed call would take with what calls before it use too much.

        A little in the calls before each batch is no more than honest kernels differ by in one
        pair, and it is all that a ratio near 1 needs. But it is there as often as the ratio gains
        by it: the same estimate over the pairs, of these seconds over those of the next batch,
        which is the one whose inputs were there, tells by how much that may be.
        """
        if len(self._lead) < MIN_PAIRS:
            return 1.0
        rows = zip(self._lead, self._timed, self._timed[1:], strict=False)
        shares = []
        for (lead, before), (cpu, calls), (following, _) in rows:
            more = lead - before * cpu / calls - self._waking
            shares.append(math.log1p(max(_LEAST_SHARE, more / max(following, 1e-9))))
        return math.exp(max(0.0, middle(shares)))

    @property
    def cores(self) -> float:
        """How many it kept busy in its own batches."""
        return self._cpu / self._wall if self._wall > 0 else 0.0


def by_cpu(ours: Sequence[Busy], against: Sequence[Busy]) -> Interval | None:
    """The ratio of paired batches if neither side had waited for a core; None if it is not known.

    A side that keeps several cores busy takes its CPU time by so many: as it did in the quarter of
    its batches in which it had most of them.
    """
    if len(ours) < MIN_PAIRS or any(min(row) <= 0.0 for row in (*ours, *against)):
        return None
    return paired_ratio(_unhindered(ours), _unhindered(against))


def _unhindered(rows: Sequence[Busy]) -> list[float]:
    """Seconds that each batch would have taken with all its cores for itself."""
    cores = max(1.0, plain.quantiles((cpu / wall for cpu, wall in rows), n=4)[-1])
    return [cpu / cores for cpu, _ in rows]
