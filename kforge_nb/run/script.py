"""A recorded run played again: the next step is the recording's, not the search's.

Which node grows next depends on measured times, and these differ from day to day. A proposer that
has ``steps`` (:class:`kforge_nb.proposers.replay.ReplayProposer`) therefore says the order itself.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kforge_nb.search.mcts import Choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.proposers.replay import Step
    from kforge_nb.run.work import Work

__all__ = ["PLAYED", "Script", "script_of"]

PLAYED = "the recording was played to its end"


class Script:
    """The steps of all targets in the recorded order; what a run has judged already is left out."""

    def __init__(self, steps: Sequence[tuple[Work, Step]]) -> None:
        ordered = sorted(steps, key=lambda pair: pair[1].place)
        self._left = deque(
            (work, step) for work, step in ordered if work.tree.find(step.digest) is None
        )

    @property
    def played(self) -> bool:
        """Whether no step is left."""
        return not self._left

    def next(self) -> tuple[Work, Choice] | None:
        """The next step as a choice in its tree; steps of targets that are held wait.

        None at the end of the recording, and where a step waits for its parent's verdict.
        """
        held: list[tuple[Work, Step]] = []
        try:
            return self._next(held)
        finally:
            self._left.extendleft(reversed(held))

    def _next(self, held: list[tuple[Work, Step]]) -> tuple[Work, Choice] | None:
        """The same; steps that wait are moved to ``held``."""
        while self._left:
            work, step = self._left[0]
            parent = work.tree.find(step.parent) if step.parent is not None else None
            orphan = step.parent is not None and parent is None
            if orphan and work.tree.root.pending:
                return None
            self._left.popleft()
            if not work.open or work.ending or orphan:
                continue  # the user ended its target, or its parent is not in the recording
            if work.paused:
                held.append((work, step))
                continue
            above = parent.id if parent is not None else None
            ticket = work.tree.expect(above, step.action).id
            return work, Choice(above, step.action, ticket)
        return None


def script_of(proposer: object, works: Sequence[Work]) -> Script | None:
    """The script of a proposer that has one."""
    steps = getattr(proposer, "steps", None)
    if steps is None:
        return None
    return Script([(work, step) for work in works if work.open for step in steps(work.target)])
