"""The benches of a run: opened when a target is first worked on, few at a time.

A bench holds a worker process with torch and the target's inputs, so only the most recently used
ones stay open. What the judge says about the task itself (its inputs cannot tell right from wrong)
is asked once, when the bench opens.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.targets.target import Target

__all__ = ["Bench", "Benches", "Opener"]

OPEN_AT_ONCE = 3


class Bench(Protocol):
    """Where candidates of one target are judged (:mod:`kforge_nb.judge`)."""

    def evaluate(self, candidate: Candidate, stop: threading.Event | None = None) -> Evaluation:
        """Verdict and evidence for one candidate."""

    def confirm(
        self,
        candidate: Candidate,
        against: Sequence[str] = ("eager",),
        stop: threading.Event | None = None,
        standing: Evaluation | None = None,
    ) -> Evaluation:
        """The same on fresh samples, and more of them; ``standing`` is an earlier confirmation."""

    def close(self) -> None:
        """Ends the bench's processes."""


class Opener(Protocol):
    """The judge, as far as the conductor needs it."""

    def open(self, target: Target) -> Bench:
        """A bench for one target."""


class Benches:
    """At most ``OPEN_AT_ONCE`` benches, least recently used closed first."""

    def __init__(self, judge: Opener) -> None:
        self._judge = judge
        self._open: OrderedDict[int, Bench] = OrderedDict()

    def of(self, index: int, target: Target) -> Bench:
        """The bench of a target, opened if need be (seconds)."""
        if index not in self._open:
            while len(self._open) >= OPEN_AT_ONCE:
                self._open.popitem(last=False)[1].close()
            self._open[index] = self._judge.open(target)
        self._open.move_to_end(index)
        return self._open[index]

    def drop(self, index: int) -> None:
        """Closes the bench of a target that is finished."""
        bench = self._open.pop(index, None)
        if bench is not None:
            bench.close()

    def close(self) -> None:
        """Closes all benches."""
        while self._open:
            self._open.popitem()[1].close()
