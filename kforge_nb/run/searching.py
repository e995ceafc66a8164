"""The search stage: give away the budget, grow trees, judge, keep; confirm the winners at the end.

A few candidates are under way at once (the judge gives each timing the cores alone). Where the
proposer answers at once, verdicts are taken in the order in which they were asked for, so that a
seed means the same search on every day; where it takes long (a language model, a person), several
proposals are asked for while the judge works, and whatever is there first is taken first. Each
finished evaluation is in the store before the tree or any view hears of it, so a kernel that is
killed loses none. The rules are those of :mod:`kforge_nb.search`; here is only their order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import KForgeError, MissingTool, StoreError
from kforge_nb.judge.evaluation import Evaluation
from kforge_nb.proposers.protocol import Failure, Refusal
from kforge_nb.run import facts
from kforge_nb.run.confirming import Confirmation
from kforge_nb.run.ending import Ending
from kforge_nb.run.flights import AT_ONCE, STOP_LATENCY_S, Flight, Flights
from kforge_nb.run.proposing import Asked, Proposals, failed_node, settled
from kforge_nb.run.script import PLAYED, Script, script_of
from kforge_nb.run.wishes import held
from kforge_nb.search import allocate, mcts, stopping
from kforge_nb.search.paying import Close
from kforge_nb.store.records import now

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.proposers.protocol import Action, Proposer
    from kforge_nb.run.benches import Benches
    from kforge_nb.run.control import Control, Handed
    from kforge_nb.run.paying import Purse
    from kforge_nb.run.record import Record
    from kforge_nb.run.work import Work
    from kforge_nb.search.allocate import Pick, Stop, TargetState
    from kforge_nb.search.mcts import Choice

__all__ = ["Search"]

_log = logging.getLogger(__name__)

GRACE_S = 30.0
"""Seconds after the time limit in which answers that are paid for may still arrive."""

WAITING = "as many candidates are under way as may be"

BY_HAND = "kernels of this run come from %%kforge kernel cells"

HELD = "targets are paused; resume or stop them to go on"


class Search:
    """The search of one run over its targets.

    ``changed`` is called after everything worth showing. ``seconds_before`` is what earlier
    sessions of a resumed run have used of its time limit. ``parallel`` proposals are asked for at
    once; with 0 the proposer answers at once, on the thread of the run. With a ``purse`` each call
    is weighed against its price.
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
        parallel: int = 0,
        purse: Purse | None = None,
    ) -> None:
        self.works, self.options, self.record, self.control = works, options, record, control
        self.benches, self.proposer, self.device, self.changed = benches, proposer, device, changed
        self.rules = stopping.RunRules(options.budget, options.max_cost, options.time_limit)
        self.rates = allocate.Rates()
        self._flights = Flights(benches, control)
        self._script = script_of(proposer, works)
        self._proposals = Proposals(proposer, parallel)
        self._purse = purse
        self._poor: dict[int | None, str] = {}
        self._failure: KForgeError | None = None
        self._ending: Ending | None = None
        self._begun = time.monotonic()
        self._judged_before = sum(len(work.tree) for work in works)
        self._before = seconds_before
        self._winners = Confirmation(options, record, control, benches, self._show)
        for work in works:
            facts.learn_from(work, self.rates)

    @property
    def judged(self) -> int:
        """Candidates judged so far, in earlier sessions too."""
        return sum(len(work.tree) for work in self.works)

    @property
    def judging(self) -> list[dict[str, Any]]:
        """What is being judged, as in the run document; from any thread."""
        return self._flights.rows

    @property
    def seconds(self) -> float:
        """Seconds searched so far, pauses left out."""
        return self._before + time.monotonic() - self._begun - self.control.paused_for

    def run(self) -> str:
        """Searches until a rule ends it; returns the rule's words. Raises Stopped on stop."""
        while True:
            self.control.look()
            self.control.checkpoint(on_pause=lambda: self._show("paused"))
            self._take_proposals()
            self._take_handed()
            self._end_unwanted()
            over = self._begin_one() if self._room else WAITING
            if over is None:
                continue
            if self._proposals or self._flights:
                self._wait()
            elif over == HELD:
                self._hold()
            elif not self.control.news:
                break
        if self._failure is not None:
            raise self._failure
        poor = dict(self._poor)
        self._ending = Ending(self.works, self.options, over, self._each_s)
        self._show(self._ending.words)
        self._winners.search_ended()
        for work in sorted(self.works, key=_saved, reverse=True):
            self._settle(work, poor.get(work.index, over), "run")
        self._winners.tell()
        return over

    def close(self) -> None:
        """Ends what is under way; candidates that were handed in learn that their turn is over."""
        self._hang_up()
        self._proposals.close()
        self._flights.close()
        for left in self.control.close_inbox():
            left.result.set_exception(KForgeError("the run ended before its turn came"))

    def judge_handed(self, handed: Handed) -> None:
        """Judges a user's own candidate now, as a node of its target's tree."""
        self._submit_handed(handed)
        while self._flights:
            self._land()
        work = self._work(handed.target)
        if work.tree.best() is work.tree.find(handed.candidate.digest):
            self._winners.confirm(work)

    # -- one step ---------------------------------------------------------------------------

    @property
    def _room(self) -> bool:
        """Whether one more candidate may be asked for."""
        if not self._proposals.parallel:
            return not self._flights.full
        asked = len(self._proposals)
        ahead = asked + len(self._flights)
        return asked < self._proposals.parallel and ahead < self._proposals.parallel + AT_ONCE

    def _take_handed(self) -> None:
        """Sends off what the user handed in: at once, or when it is its turn."""
        while self._proposals.parallel or not self._flights.full:
            handed = self.control.take()
            if handed is None:
                return
            self._submit_handed(handed)

    def _begin_one(self) -> str | None:
        """Begins one candidate, or says why there is none to begin (now)."""
        over = stopping.run(self._facts(), self.rules) or self._poor.get(None)
        if over is not None or self._failure is not None:
            return over or str(self._failure)
        if self._script is not None:
            return self._play(self._script)
        self._retire()
        states = [facts.state_of(work) for work in self.works if work.index not in self._poor]
        while not isinstance(pick := self._pick(states), allocate.Stop):
            work = self._work(pick.index)
            if isinstance(pick, Close):
                if not work.tree.root.pending:
                    self._settle(work, pick.reason)
            elif self._grow(work):
                return None
            states = [state for state in states if state.index != pick.index]
        return HELD if held(self.works) else next(iter(self._poor.values()), pick.reason)

    def _pick(self, states: Sequence[TargetState]) -> Pick | Stop | Close:
        """The target that the next candidate is for."""
        if self._purse is None:
            return allocate.next_target(states, self.rates, broad=True)
        return self._purse.pick(states, self.rates)

    def _grow(self, work: Work) -> bool:
        """One choice and one request; False where the target has to wait for a verdict."""
        if work.state != "searching":
            work.set("searching")
        choice = mcts.choose(work.tree, facts.rng_for(work, self.options.seed))
        if choice is None:
            if not work.tree.root.pending:
                by_hand = self.options.proposer == "manual"
                self._settle(work, BY_HAND if by_hand else "there is nothing more to try")
            return not work.open
        self._ask(work, choice)
        return True

    def _play(self, script: Script) -> str | None:
        """The next step of a recording, or why there is none (now)."""
        step = script.next()
        if step is None:
            return PLAYED if script.played else HELD if held(self.works) else WAITING
        work, choice = step
        if work.state != "searching":
            work.set("searching")
        self._ask(work, choice)
        return None

    def _ask(self, work: Work, choice: Choice) -> None:
        """Asks the proposer for what was chosen."""
        self._show(f"{choice.action} for target {work.index} ({work.target.name})")
        under_way = self._flights.digests(work)
        request = facts.request_for(work, choice, self.device, self.options.seed, under_way)
        self._proposals.ask(work, choice, request)

    def _take_proposals(self) -> None:
        """Sends candidates that have come to the judge; what is none joins the tree at once."""
        while (asked := self._proposals.take()) is not None:
            work, choice = asked.work, asked.choice
            try:
                proposal = asked.proposal.result()
            except Exception as error:  # noqa: BLE001  ends the run when what is judged is kept
                known = error if isinstance(error, KForgeError) else self._unforeseen(error)
                self._failure = self._failure or known
                proposal = Refusal(str(known), exhausted=False, ends="run")
            if isinstance(proposal, Refusal):
                self._refuse(work, choice, proposal)
            elif isinstance(proposal, Failure):
                self._fail(asked, proposal)
            elif proposal.digest in work.tree.digests | self._flights.digests(work):
                again = Refusal("the same candidate was judged before", exhausted=False)
                self._refuse(work, choice, again)
            else:
                self._flights.send(work, choice.ticket, proposal, asked.begun)

    def _unforeseen(self, error: Exception) -> KForgeError:
        """An error that no proposer should raise, in words."""
        _log.debug("the proposer failed", exc_info=error)
        said = str(error).encode("utf-8", "backslashreplace").decode()[:1000]
        return KForgeError(
            f"the proposer {self.proposer.name} failed ({type(error).__name__}: {said}); what was "
            "judged is kept, and %kforge resume goes on from there"
        )

    def _wait(self) -> None:
        """Takes the next verdict; where proposals are under way too, whatever comes first."""
        if not self._proposals:
            self._land()
            return
        late = self._late
        for work in self.works if late else ():
            self._withdraw(work, "the time limit is reached")
        if self._too_late:
            self._hang_up()
        futures = [*self._proposals.futures, *self._flights.futures]
        begun = self._too_late
        settled(
            futures,
            STOP_LATENCY_S,
            lambda: self._stirred() or (self._late, self._too_late) != (late, begun),
        )
        if any(verdict.done() for verdict in self._flights.futures):
            self._land()

    def _stirred(self) -> bool:
        """Whether there is news; prompts of unwanted targets that came up late are taken back."""
        for work in self.works:
            if work.open and work.ending:
                self._withdraw(work, work.ending)
        return self.control.news

    def _withdraw(self, work: Work, reason: str) -> None:
        """Takes back requests that nobody needs an answer to any more, where that is free."""
        withdraw = getattr(self.proposer, "withdraw", None)
        if withdraw is None:
            return
        for asked in self._proposals.of(work):
            withdraw(asked.choice.ticket, reason)

    @property
    def _late(self) -> bool:
        limit = self.options.time_limit
        return limit is not None and self.seconds >= limit

    @property
    def _too_late(self) -> bool:
        """Whether answers that were under way at the time limit have had their grace."""
        limit = self.options.time_limit
        return limit is not None and self.seconds >= limit + GRACE_S

    def _hang_up(self) -> None:
        """Ends the proposer's calls."""
        close = getattr(self.proposer, "close", None)
        if close is not None:
            close()

    def _submit_handed(self, handed: Handed) -> None:
        work = self._work(handed.target)
        parent = handed.parent
        above = work.tree[parent] if parent is not None else None
        action: Action = "repair" if above is not None and above.repairable else "optimise"
        ticket = work.tree.expect(parent, action if above is not None else "draft").id
        self._flights.send(work, ticket, handed.candidate, time.monotonic(), handed)

    def _land(self) -> None:
        """Waits for the next candidate under way and takes its verdict."""
        flight, found = self._flights.land(in_order=not self._proposals.parallel)
        if isinstance(found, Exception):
            self._crashed(flight, found)
            return
        self._keep(flight.work, flight.node_id, flight.candidate, found, flight.begun)
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

    def _fail(self, asked: Asked, failure: Failure) -> None:
        """An answer without a kernel is a node too: it was asked for, and perhaps paid for."""
        while self._script is not None and self._flights:
            self._land()  # in its recorded place
        candidate, evaluation = failed_node(failure)
        self._keep(asked.work, asked.choice.ticket, candidate, evaluation, asked.begun)

    def _keep(
        self, work: Work, ticket: str, candidate: Candidate, evaluation: Evaluation, begun: float
    ) -> None:
        """Store first, then tree, then view."""
        node = work.tree[ticket]
        self.record.add_node(node, work.index, candidate, evaluation, time.monotonic() - begun)
        before = stopping.gains(work.tree)
        work.candidates[node.id] = candidate
        work.asked = 0
        work.tree.record(node.id, candidate.digest, evaluation)
        self.rates.observe(work.target.family, node.action, stopping.gains(work.tree) > before)
        self.record.set_statistics(work.tree, [n.id for n in work.tree.path(node)[:-1]])
        self.record.store.put_entry(self.record.id, "seconds", self.seconds)  # should we be killed
        if work.tree.best() is node:
            self.record.set_target(work.index, best=node.id)
            facts.believe(work)
        self._poor.clear()
        self._show(f"{node.id}: {evaluation.verdict}")

    def _refuse(self, work: Work, choice: Choice, refusal: Refusal) -> None:
        """The proposer has nothing; where the money is out, it may come back with other calls."""
        above = work.tree.parent(work.tree[choice.ticket])
        work.tree.refuse(choice.ticket, exhausted=refusal.exhausted and refusal.ends == "node")
        self.record.note(
            "refusal",
            target=work.index,
            node=choice.node,
            action=choice.action,
            reason=refusal.reason,
        )
        if refusal.ends == "node":
            return
        above.refusals -= 1  # the tree has nothing to do with it
        self._poor[None if refusal.ends == "run" else work.index] = refusal.reason

    def _hold(self) -> None:
        """Waits for the user, who has paused all that could go on."""
        waiting = ", ".join(map(str, held(self.works)))
        self._show(f"target {waiting} paused, and nothing else to do: resume or stop it to go on")
        self.control.await_nudge()

    # -- the end of a target ----------------------------------------------------------------

    def _end_unwanted(self) -> None:
        """Settles the targets that the user ends, once nothing of theirs is under way."""
        for work in self.works:
            if not work.open or not work.ending:
                continue
            work.closing = True
            if work.tree.root.pending:
                self._withdraw(work, work.ending)
            else:
                self._settle(work, work.ending, "user")

    def _retire(self) -> None:
        """Settles the targets that have had enough, once nothing of theirs is under way."""
        for work in self.works:
            if not work.open or work.ending:
                continue
            why = stopping.target(work.tree, facts.rules_of(work, self.options.patience))
            work.closing = why is not None
            if why is not None and not work.tree.root.pending:
                self._settle(work, why)
            elif why is not None:
                self._withdraw(work, why)

    def _settle(self, work: Work, reason: str, by: str = "rule") -> None:
        """Confirms the winner on fresh samples and closes the target; ``by`` says whose wish it is.

        What the run had spent by then is kept: it is where the rule fired.
        """
        if not work.open:
            return
        stopped = {"at": now(), "by": by, "reason": reason, **self._spent()}
        self._winners.confirm(work)
        self.benches.drop(work.index)
        if self._purse is not None:
            self._purse.close(work.index)
        self._poor.clear()  # what this target left flows back to the others
        work.set("done", reason, stopped=stopped)
        self._show(f"target {work.index} is done: {reason}")

    # -- facts --------------------------------------------------------------------------------

    def _work(self, index: int) -> Work:
        return next(work for work in self.works if work.index == index)

    @property
    def _each_s(self) -> float | None:
        """Seconds that a candidate took in this session."""
        new = self.judged - self._judged_before
        return (self.seconds - self._before) / new if new else None

    def _spent(self) -> dict[str, Any]:
        """What the run has spent so far, in candidates, calls, US dollars and seconds."""
        costs = self.record.store.costs(self.record.id)
        return {
            "judged": self.judged,
            "calls": sum(cost["calls"] for cost in costs),
            "usd": sum(cost["usd"] or 0.0 for cost in costs),
            "seconds": self.seconds,
        }

    def _facts(self) -> stopping.RunFacts:
        spent = self.record.spent() if self.options.max_cost is not None else 0.0
        under_way = len(self._flights) + len(self._proposals)
        return stopping.RunFacts(self.judged, under_way, spent=spent, seconds=self.seconds)

    def _show(self, message: str) -> None:
        judged, seconds, limit = self.judged, self.seconds, self.options.time_limit
        left = [limit - seconds] if limit is not None else []
        if judged:
            left.append(seconds / judged * max(self.options.budget - judged, 0))
        eta = max(min(left), 0.0) if left else None
        if self._ending is not None:
            eta = self._ending.left
            if message != self._ending.words:
                message = f"{message}; {self._ending.more}"
        self.record.set_progress(
            phase="searching" if self._ending is None else "confirming",
            judged=judged,
            budget=self.options.budget,
            seconds=seconds,
            time_limit=limit,
            eta_s=eta,
            message=message,
        )
        self.changed()


def _saved(work: Work) -> float:
    """The share of the workload's time that the best kernel of a target saves, as it looks."""
    best = work.tree.best()
    return work.share * (1 - 1 / max(work.speedup(best.id), 1.0)) if best is not None else 0.0
