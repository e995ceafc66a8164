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
        """The next step as a choice in its tree.

        None at the end of the recording, and where a step waits for its parent's verdict.
        """
        while self._left:
            work, step = self._left[0]
            parent = work.tree.find(step.parent) if step.parent is not None else None
            if step.parent is not None and parent is None:
                if work.tree.root.pending:
                    return None
                self._left.popleft()  # its parent is not in the recording
                continue
            self._left.popleft()
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
