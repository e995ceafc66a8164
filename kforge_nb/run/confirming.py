"""Winners are timed again on fresh samples, since the best of many noisy ones is flattered.

Against eager always. Against torch.compile too where that is asked for: compiling and timing it
takes tens of seconds a target, so only for a winner that clearly stands against eager (or has just
held up against it), and for a bounded number of winners and seconds.

A search with a time limit is followed by at most half as much of this, the most telling winners
first. What is not timed again goes to the guard as it is: there each kernel is timed in the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.run.benches import Benches
    from kforge_nb.run.control import Control
    from kforge_nb.run.record import Record
    from kforge_nb.run.work import Work

__all__ = ["Confirmation", "again_s"]

CONFIRM_AT_MOST = 3
"""Runners-up that are timed again when the winner does not hold up on fresh samples."""

COMPILE_AT_MOST = 8
COMPILE_S = 120.0
"""Winners that are timed against torch.compile too, and seconds after which no more is begun."""

COMPILE_NODES = 200
"""Nodes of a target's graph above which compiling it may take minutes, and is left out."""

AGAIN_SHARE = 0.5
AGAIN_LEAST_S = 30.0
"""Of a search's time limit, and seconds at least: so long its winners may be timed again."""

CLEAR = 1.1
"""A lower bound over eager from which a winner is taken to stand before it is timed again."""


def again_s(options: OptimizeOptions) -> float:
    """Seconds, about, after which no winner is timed again any more; without end where none is set.

    One that was begun before is timed to its end.
    """
    limit = options.time_limit
    return math.inf if limit is None else max(AGAIN_LEAST_S, AGAIN_SHARE * limit)


class Confirmation:
    """Finds the confirmed winner of one target after the other; ``show`` tells what is done."""

    def __init__(
        self,
        options: OptimizeOptions,
        record: Record,
        control: Control,
        benches: Benches,
        show: Callable[[str], None],
    ) -> None:
        self._wanted = options.baseline == "compile"
        self._record, self._control, self._benches = record, control, benches
        self._show = show
        self._most, self._ends, self._last = again_s(options), math.inf, 0.0
        self._timed, self._seconds, self._left_out, self._as_they_are = 0, 0.0, 0, 0

    def search_ended(self) -> None:
        """From now on the time for it runs."""
        self._ends = time.monotonic() + self._most

    def confirm(self, work: Work) -> None:
        """Times the best again, and what then looks better, before one of them is the winner.

        Where there is no time for it the best is the winner as it is.
        """
        if self._over:
            self._take_as_it_is(work)
            return
        tried = {work.confirmed} - {None}
        for _ in range(CONFIRM_AT_MOST):
            best = work.tree.best()
            if best is None or best.id in tried or not work.accepted(best.id):
                break
            if tried and self._over:
                break
            tried.add(best.id)
            self._time_again(
                work, best.id, compiled=self._room_for(work) and work.low(best.id) >= CLEAR
            )
        winners = [node_id for node_id in tried if node_id]
        work.confirmed = _fastest(work, winners)
        if work.confirmed is not None and self._against_compile(work, work.confirmed):
            work.confirmed = _fastest(work, winners)
        best = work.tree.best()
        shown = work.confirmed or (best.id if best else None)
        self._record.set_target(work.index, best=shown)

    @property
    def _over(self) -> bool:
        """Whether there is no time to time one more winner again."""
        return time.monotonic() + self._last >= self._ends

    def _take_as_it_is(self, work: Work) -> None:
        best = work.tree.best()
        if work.confirmed is not None or best is None or not work.accepted(best.id):
            return
        work.confirmed = best.id
        self._as_they_are += 1
        self._record.set_target(work.index, best=best.id)

    @property
    def _compile_s(self) -> float:
        return min(COMPILE_S, 0.5 * self._most)

    def tell(self) -> None:
        """A figure that is missing for want of time is told, not left to be wondered about."""
        if self._left_out:
            self._record.add_note(
                f"winners timed against eager only: {self._left_out}; timing them against "
                f"torch.compile too ends after {COMPILE_AT_MOST} winners or {self._compile_s:.0f} "
                f"s, and leaves out graphs of more than {COMPILE_NODES} nodes"
            )
        if self._as_they_are:
            self._record.add_note(
                f"winners that were not timed again: {self._as_they_are}; for that there were "
                f"{self._most:.0f} s after the search, so their speed alone is told as the search "
                "saw it, and flattered"
            )

    def _room_for(self, work: Work) -> bool:
        """Whether another winner may be timed against torch.compile, and may be this one."""
        graph = work.target.graph
        small = graph is None or len(graph.graph.nodes) <= COMPILE_NODES
        room = self._timed < COMPILE_AT_MOST and self._seconds < self._compile_s
        return self._wanted and small and room

    def _against_compile(self, work: Work, node_id: str) -> bool:
        """Times a winner against torch.compile unless that was done; whether it was timed now."""
        if not self._wanted or work.timed_against(node_id, "compile"):
            return False
        if not self._room_for(work) or self._over:
            self._left_out += 1
            return False
        self._time_again(work, node_id, compiled=True, standing=work.tree[node_id].evaluation)
        return True

    def _time_again(
        self, work: Work, node_id: str, *, compiled: bool, standing: Evaluation | None = None
    ) -> None:
        """The node's evaluation on fresh samples is from now on the one to show.

        What ``standing``, an earlier confirmation, was timed against is not timed anew.
        """
        self._control.checkpoint()
        self._show(f"timing the winner of target {work.index} again ({node_id})")
        against = ("eager", "compile") if compiled else ("eager",)
        begun = time.monotonic()
        bench = self._benches.of(work.index, work.target)
        candidate = work.candidate(node_id)
        fresh = bench.confirm(candidate, against, self._control.stop, standing)
        self._control.checkpoint()
        taken = time.monotonic() - begun
        if compiled:
            self._timed += 1
            self._seconds += taken
        else:
            self._last = taken
        self._record.replace_evaluation(node_id, fresh)
        work.tree.replace_evaluation(node_id, fresh)


def _fastest(work: Work, node_ids: list[str]) -> str | None:
    accepted = [node_id for node_id in node_ids if work.accepted(node_id)]
    return max(accepted, key=work.speedup, default=None)
