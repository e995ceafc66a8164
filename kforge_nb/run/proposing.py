"""Proposals under way: a language model, or a person, takes long, and the judge goes on meanwhile.

Proposers that answer at once are asked on the run thread, so that a seed means the same search
every day. Those that take long get a thread for each request, and their answers are taken in the
order in which they come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.failed import failed_candidate

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.proposers.protocol import Failure, Proposer, Refusal, Request
    from kforge_nb.run.work import Work
    from kforge_nb.search.mcts import Choice

__all__ = ["Asked", "Proposals", "failed_node", "settled"]

END_PATIENCE_S = 5.0
"""How long the end of a search waits for proposers that were told to stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A request that was made, and the proposal that is to come."""

    work: Work
    choice: Choice
    request: Request
    begun: float
    proposal: Future[Candidate | Refusal | Failure] = field(default_factory=Future)


class Proposals:
    """Requests to one proposer; with ``parallel`` of 0 each is answered before ``ask`` returns."""

    def __init__(self, proposer: Proposer, parallel: int = 0) -> None:
        self._proposer, self.parallel = proposer, parallel
        self._asked: list[Asked] = []

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def futures(self) -> list[Future[Any]]:
        """What is waited for."""
        return [asked.proposal for asked in self._asked]

    def of(self, work: Work) -> list[Asked]:
        """The requests for one target."""
        return [asked for asked in self._asked if asked.work is work]

    def ask(self, work: Work, choice: Choice, request: Request) -> None:
        """Makes a request."""
        asked = Asked(work, choice, request, time.monotonic())
        self._asked.append(asked)
        if not self.parallel:
            self._answer(asked)
            return
        name = f"kforge-propose-{choice.ticket}"
        threading.Thread(target=self._answer, args=(asked,), name=name, daemon=True).start()

    def take(self) -> Asked | None:
        """A request whose proposal is there, the earliest made first; None where there is none."""
        for asked in self._asked:
            if asked.proposal.done():
                self._asked.remove(asked)
                return asked
        return None

    def close(self, patience: float = END_PATIENCE_S) -> None:
        """Forgets what is under way, after waiting a little for the proposer to tell its costs."""
        wait_for(self.futures, timeout=patience)
        for asked in self._asked:
            asked.work.tree.refuse(asked.choice.ticket, exhausted=False)
        self._asked.clear()

    def _answer(self, asked: Asked) -> None:
        try:
            found = self._proposer.propose(asked.request)
        except BaseException as error:  # noqa: BLE001  raised again on the run thread
            asked.proposal.set_exception(error)
        else:
            asked.proposal.set_result(found)


def failed_node(failure: Failure) -> tuple[Candidate, Evaluation]:
    """An answer without a kernel as a node of the tree: its text, and the reason as verdict."""
    return failed_candidate(failure), Evaluation(Verdict.REFUSED, failure.reason[:4000])


def settled(futures: list[Future[Any]], seconds: float, over: Callable[[], bool]) -> None:
    """Waits until one of the futures is done or ``over`` holds, looked at every ``seconds``."""
    while futures and not over():
        if any(future.done() for future in futures):
            return
        wait_for(futures, timeout=seconds, return_when="FIRST_COMPLETED")
