"""Winners are timed again on fresh samples, since the best of many noisy ones is flattered.

Against eager always. Against torch.compile too where that is asked for: compiling and timing it
takes tens of seconds a target, so only for a winner that clearly stands against eager (or has just
held up against it), and for a bounded number of winners and seconds.
"""

from __future__ import annotations

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

__all__ = ["Confirmation"]

CONFIRM_AT_MOST = 3
"""Runners-up that are timed again when the winner does not hold up on fresh samples."""

COMPILE_AT_MOST = 8
COMPILE_S = 120.0
"""Winners that are timed against torch.compile too, and seconds after which no more is begun."""

COMPILE_NODES = 200
"""Nodes of a target's graph above which compiling it may take minutes, and is left out."""

CLEAR = 1.1
"""A lower bound over eager from which a winner is taken to stand before it is timed again."""


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
        self._timed, self._seconds, self._left_out = 0, 0.0, 0

    def confirm(self, work: Work) -> None:
        """Times the best again, and what then looks better, before one of them is the winner."""
        tried = {work.confirmed} - {None}
        for _ in range(CONFIRM_AT_MOST):
            best = work.tree.best()
            if best is None or best.id in tried or not work.accepted(best.id):
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

    def tell(self) -> None:
        """A figure that is missing for want of time is told, not left to be wondered about."""
        if self._left_out:
            self._record.add_note(
                f"winners timed against eager only: {self._left_out}; timing them against "
                f"torch.compile too ends after {COMPILE_AT_MOST} winners or {COMPILE_S:.0f} s, and "
                f"leaves out graphs of more than {COMPILE_NODES} nodes"
            )

    def _room_for(self, work: Work) -> bool:
        """Whether another winner may be timed against torch.compile, and may be this one."""
        graph = work.target.graph
        small = graph is None or len(graph.graph.nodes) <= COMPILE_NODES
        room = self._timed < COMPILE_AT_MOST and self._seconds < COMPILE_S
        return self._wanted and small and room

    def _against_compile(self, work: Work, node_id: str) -> bool:
        """Times a winner against torch.compile unless that was done; whether it was timed now."""
        if not self._wanted or work.timed_against(node_id, "compile"):
            return False
        if not self._room_for(work):
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
        if compiled:
            self._timed += 1
            self._seconds += time.monotonic() - begun
        self._record.replace_evaluation(node_id, fresh)
        work.tree.replace_evaluation(node_id, fresh)


def _fastest(work: Work, node_ids: list[str]) -> str | None:
    accepted = [node_id for node_id in node_ids if work.accepted(node_id)]
    return max(accepted, key=work.speedup, default=None)
