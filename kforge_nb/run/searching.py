"""The search stage: give away the budget, grow trees, judge, keep; confirm the winners at the end.

A few candidates are under way at once (the judge gives each timing the cores alone); their verdicts
are taken in the order in which they were asked for, so that a seed means the same search on every
day. Each finished evaluation is in the store before the tree or any view hears of it, so a kernel
that is killed loses none. The rules are those of :mod:`kforge_nb.search`; here is only their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import KForgeError, MissingTool, StoreError
from kforge_nb.judge.evaluation import Evaluation
from kforge_nb.proposers.protocol import Refusal
from kforge_nb.run import facts
from kforge_nb.run.confirming import Confirmation
from kforge_nb.run.flights import Flight, Flights
from kforge_nb.search import allocate, mcts, stopping

if TYPE_CHECKING:
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.proposers.protocol import Proposer
    from kforge_nb.run.benches import Benches
    from kforge_nb.run.control import Control, Handed
    from kforge_nb.run.record import Record
    from kforge_nb.run.work import Work
    from kforge_nb.search.mcts import Choice

__all__ = ["Search"]


class Search:
    """The search of one run over its targets.

    ``changed`` is called after everything worth showing. ``seconds_before`` is what earlier
    sessions of a resumed run have used of its time limit.
    """

    def __init__(
        self,
        works: list[Work],
        options: OptimizeOptions,
        record: Record,
        control: Control,
        benches: Benches,
        proposer: Proposer,
        device: dict[str, Any],
        changed: Callable[[], None] = lambda: None,
        seconds_before: float = 0.0,
    ) -> None:
        self.works, self.options, self.record, self.control = works, options, record, control
        self.benches, self.proposer, self.device, self.changed = benches, proposer, device, changed
        self.rules = stopping.RunRules(options.budget, options.max_cost, options.time_limit)
        self.rates = allocate.Rates()
        self._flights = Flights(benches, control)
        self._begun = time.monotonic()
        self._before = seconds_before
        self._winners = Confirmation(options, record, control, benches, self._show)
        for work in works:
            facts.learn_from(work, self.rates)

    @property
    def judged(self) -> int:
        """Candidates judged so far, in earlier sessions too."""
        return sum(len(work.tree) for work in self.works)

    @property
    def seconds(self) -> float:
        """Seconds searched so far, pauses left out."""
        return self._before + time.monotonic() - self._begun - self.control.paused_for

    def run(self) -> str:
        """Searches until a rule ends it; returns the rule's words. Raises Stopped on stop."""
        while True:
            self.control.checkpoint(on_pause=lambda: self._show("paused"))
            over = None if self._flights.full else self._begin_one()
            if over is None and not self._flights.full:
                continue
            if self._flights:
                self._land()
            elif over is not None:
                break
        for work in self.works:
            self._settle(work, over)
        self._winners.tell()
        return over

    def close(self) -> None:
        """Ends what is under way; candidates that were handed in learn that their turn is over."""
        self._flights.close()
        for left in self.control.close_inbox():
            left.result.set_exception(KForgeError("the run ended before its turn came"))

    def judge_handed(self, handed: Handed) -> None:
        """Judges a user's own candidate now, as a draft of its target's tree."""
        self._submit_handed(handed)
        while self._flights:
            self._land()
        work = self._work(handed.target)
        if work.tree.best() is work.tree.find(handed.candidate.digest):
            self._winners.confirm(work)

    # -- one step ---------------------------------------------------------------------------

    def _begin_one(self) -> str | None:
        """Begins one candidate, or says why there is none to begin (now)."""
        handed = self.control.take()
        if handed is not None:
            self._submit_handed(handed)
            return None
        over = stopping.run(self._facts(), self.rules)
        if over is not None:
            return over
        self._retire()
        pick = allocate.next_target([facts.state_of(work) for work in self.works], self.rates)
        if isinstance(pick, allocate.Stop):
            return pick.reason
        return self._grow(self._work(pick.index))

    def _grow(self, work: Work) -> str | None:
        """One choice and one proposal; None when something was done about the target."""
        if work.state != "searching":
            work.set("searching")
        choice = mcts.choose(work.tree, facts.rng_for(work, self.options.seed))
        if choice is None:
            if work.tree.root.pending:
                return "nothing can be grown before a verdict is there"
            self._settle(work, "there is nothing more to try")
            return None
        self._show(f"{choice.action} for target {work.index} ({work.target.name})")
        begun = time.monotonic()
        under_way = self._flights.digests(work)
        request = facts.request_for(work, choice, self.device, self.options.seed, under_way)
        proposal = self.proposer.propose(request)
        if isinstance(proposal, Refusal):
            self._refuse(work, choice, proposal.reason, proposal.exhausted)
        elif proposal.digest in request.tried:
            self._refuse(work, choice, "the same candidate was judged before", False)
        else:
            self._flights.send(work, choice.ticket, proposal, begun)
        return None

    def _submit_handed(self, handed: Handed) -> None:
        work = self._work(handed.target)
        ticket = work.tree.expect(None, "draft").id
        self._flights.send(work, ticket, handed.candidate, time.monotonic(), handed)

    def _land(self) -> None:
        """Waits for the oldest candidate under way and takes its verdict."""
        flight, found = self._flights.land()
        if isinstance(found, Exception):
            self._crashed(flight, found)
            return
        self._keep(flight, found)
        if flight.handed is not None:
            flight.handed.result.set_result(found)

    def _crashed(self, flight: Flight, error: Exception) -> None:
        """One target's failure ends that target; what would fail them all ends the run."""
        work = flight.work
        work.tree.refuse(flight.node_id, exhausted=True)
        if flight.handed is not None:
            flight.handed.result.set_exception(error)
        if isinstance(error, MissingTool | StoreError):
            raise error
        self.benches.drop(work.index)
        named = "" if isinstance(error, KForgeError) else f"{type(error).__name__}: "
        work.set("failed", f"the judge failed: {named}{error}"[:2000])
        self._show(f"target {work.index} failed")

    def _keep(self, flight: Flight, evaluation: Evaluation) -> None:
        """Store first, then tree, then view."""
        work, node = flight.work, flight.work.tree[flight.node_id]
        seconds = time.monotonic() - flight.begun
        self.record.add_node(node, work.index, flight.candidate, evaluation, seconds)
        before = stopping.gains(work.tree)
        work.candidates[node.id] = flight.candidate
        work.asked = 0
        work.tree.record(node.id, flight.candidate.digest, evaluation)
        self.rates.observe(work.target.family, node.action, stopping.gains(work.tree) > before)
        self.record.set_statistics(work.tree, [n.id for n in work.tree.path(node)[:-1]])
        if work.tree.best() is node:
            self.record.set_target(work.index, best=node.id)
        self._show(f"{node.id}: {evaluation.verdict}")

    def _refuse(self, work: Work, choice: Choice, reason: str, exhausted: bool) -> None:
        work.tree.refuse(choice.ticket, exhausted=exhausted)
        self.record.note(
            "refusal", target=work.index, node=choice.node, action=choice.action, reason=reason
        )

    # -- the end of a target ----------------------------------------------------------------

    def _retire(self) -> None:
        """Settles the targets that have had enough, once nothing of theirs is under way."""
        for work in self.works:
            if not work.open:
                continue
            why = stopping.target(work.tree, facts.rules_of(work, self.options.patience))
            work.closing = why is not None
            if why is not None and not work.tree.root.pending:
                self._settle(work, why)

    def _settle(self, work: Work, reason: str) -> None:
        """Confirms the winner on fresh samples and closes the target."""
        if not work.open:
            return
        self._winners.confirm(work)
        self.benches.drop(work.index)
        work.set("done", reason)
        self._show(f"target {work.index} is done: {reason}")

    # -- facts --------------------------------------------------------------------------------

    def _work(self, index: int) -> Work:
        return next(work for work in self.works if work.index == index)

    def _facts(self) -> stopping.RunFacts:
        spent = self.record.spent() if self.options.max_cost is not None else 0.0
        return stopping.RunFacts(self.judged, len(self._flights), spent=spent, seconds=self.seconds)

    def _show(self, message: str) -> None:
        judged, seconds, limit = self.judged, self.seconds, self.options.time_limit
        left = [limit - seconds] if limit is not None else []
        if judged:
            left.append(seconds / judged * max(self.options.budget - judged, 0))
        self.record.set_progress(
            phase="searching",
            judged=judged,
            budget=self.options.budget,
            seconds=seconds,
            time_limit=limit,
            eta_s=max(min(left), 0.0) if left else None,
            message=message,
        )
        self.changed()
