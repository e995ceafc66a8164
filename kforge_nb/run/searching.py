"""The search stage: give away the budget, grow trees, judge, keep; confirm the winners at the end.

One candidate at a time, since timing has the cores to itself. Each finished evaluation is in the
store before the tree or any view hears of it, so a kernel that is killed loses none. The stage is
made of the pure rules of :mod:`kforge_nb.search`; nothing is decided here but the order of steps.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import KForgeError, MissingTool, StoreError
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.protocol import Refusal, Request
from kforge_nb.run.choice import UNKNOWN_HEADROOM
from kforge_nb.run.control import Stopped
from kforge_nb.search import allocate, mcts, stopping

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.proposers.protocol import Proposer
    from kforge_nb.run.benches import Benches
    from kforge_nb.run.control import Control, Handed
    from kforge_nb.run.record import Record
    from kforge_nb.run.work import Work
    from kforge_nb.search.mcts import Choice

__all__ = ["Search"]

STEP = 1.25
"""Where no roofline is known, the best so far is taken to have this much above it."""

BEYOND = 1.15
"""A candidate at more than this share of the roofline shows that the roofline does not bind."""

CONFIRM_AT_MOST = 3
"""Runners-up that are timed again when the winner does not hold up on fresh samples."""


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
        self._begun = time.monotonic()
        self._before = seconds_before
        for work in works:
            self._learn_from(work)

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
        try:
            while True:
                self.control.checkpoint(on_pause=lambda: self._show("paused"))
                handed = self.control.take()
                if handed is not None:
                    self.judge_handed(handed)
                    continue
                over = stopping.run(self._facts(), self.rules)
                if over is not None:
                    break
                self._retire()
                pick = allocate.next_target(self._states(), self.rates)
                if isinstance(pick, allocate.Stop):
                    over = pick.reason
                    break
                self._grow(self._work(pick.index))
            for work in self.works:
                self._settle(work, over)
            return over
        finally:
            for left in self.control.close_inbox():
                left.result.set_exception(KForgeError("the run ended before its turn came"))

    # -- one step ---------------------------------------------------------------------------

    def _grow(self, work: Work) -> None:
        """One choice, one proposal, one evaluation."""
        if work.state == "waiting":
            work.set("searching")
        choice = mcts.choose(work.tree, self._random(work))
        if choice is None:
            self._settle(work, "there is nothing more to try")
            return
        begun = time.monotonic()
        self._show(f"{choice.action} for target {work.index} ({work.target.name})")
        proposal = self.proposer.propose(self._request(work, choice))
        if isinstance(proposal, Refusal):
            self._refuse(work, choice, proposal.reason, proposal.exhausted)
            return
        if work.tree.find(proposal.digest) is not None:
            self._refuse(work, choice, "the same candidate was judged before", False)
            return
        try:
            evaluation = self._evaluate(work, proposal)
        except (Stopped, MissingTool, StoreError):
            raise
        except Exception as error:  # noqa: BLE001  one target's failure must not end the run
            work.tree.refuse(choice.ticket, exhausted=True)
            self.benches.drop(work.index)
            work.set("failed", f"the judge failed: {type(error).__name__}: {error}"[:2000])
            return
        self._keep(work, choice.ticket, proposal, evaluation, time.monotonic() - begun)

    def _evaluate(self, work: Work, candidate: Candidate) -> Evaluation:
        """The judge's verdict; Stopped when the run was stopped while it was found."""
        evaluation = self.benches.of(work.index, work.target).evaluate(
            candidate, stop=self.control.stop
        )
        if self.control.stop.is_set() and evaluation.verdict is Verdict.UNDECIDED:
            raise Stopped(self.control.reason)  # it was cut short, so it is judged again later
        return evaluation

    def _keep(
        self,
        work: Work,
        node_id: str,
        candidate: Candidate,
        evaluation: Evaluation,
        seconds: float,
    ) -> None:
        """Store first, then tree, then view."""
        node = work.tree[node_id]
        self.record.add_node(node, work.index, candidate, evaluation, seconds)
        before = self._gains(work)
        work.candidates[node_id] = candidate
        work.asked = 0
        work.tree.record(node_id, candidate.digest, evaluation)
        self.rates.observe(work.target.family, node.action, self._gains(work) > before)
        self.record.set_statistics(work.tree, [n.id for n in work.tree.path(node)[:-1]])
        best = work.tree.best()
        if best is node:
            self.record.set_target(work.index, best=node.id)
        self._show(f"{node_id}: {evaluation.verdict}")

    def _refuse(self, work: Work, choice: Choice, reason: str, exhausted: bool) -> None:
        work.tree.refuse(choice.ticket, exhausted=exhausted)
        self.record.note(
            "refusal", target=work.index, node=choice.node, action=choice.action, reason=reason
        )

    def judge_handed(self, handed: Handed) -> None:
        """A user's own candidate becomes a draft of its target's tree."""
        work, begun = self._work(handed.target), time.monotonic()
        node = work.tree.expect(None, "draft")
        try:
            found = self._evaluate(work, handed.candidate)
            self._keep(work, node.id, handed.candidate, found, time.monotonic() - begun)
        except BaseException as error:
            if node.waiting:
                work.tree.refuse(node.id, exhausted=False)
            handed.result.set_exception(error)
            if not isinstance(error, KForgeError):
                raise
            return
        handed.result.set_result(found)

    # -- the end of a target ----------------------------------------------------------------

    def _retire(self) -> None:
        """Settles the targets that have had enough."""
        for work in self.works:
            if work.open:
                why = stopping.target(work.tree, self._rules_of(work))
                if why is not None:
                    self._settle(work, why)

    def _rules_of(self, work: Work) -> stopping.TargetRules:
        """A roofline that does not bind ends no search."""
        patience = self.options.patience
        share = stopping.best_share(work.tree) or 0.0
        if work.headroom is None or share > BEYOND:
            return stopping.TargetRules(roofline=math.inf, patience=patience)
        return stopping.TargetRules(patience=patience)

    def _settle(self, work: Work, reason: str) -> None:
        """Confirms the winner on fresh samples and closes the target."""
        if not work.open:
            return
        for _ in range(CONFIRM_AT_MOST):
            best = work.tree.best()
            evaluation = best.evaluation if best else None
            if best is None or evaluation is None or evaluation.verdict is not Verdict.ACCEPTED:
                break
            self.control.checkpoint()
            self._show(f"timing the winner of target {work.index} again ({best.id})")
            bench = self.benches.of(work.index, work.target)
            against = ("eager", "compile") if self.options.baseline == "compile" else ("eager",)
            fresh = bench.confirm(work.candidate(best.id), against, self.control.stop)
            self.control.checkpoint()
            self.record.replace_evaluation(best.id, fresh)
            work.tree.replace_evaluation(best.id, fresh)
            if fresh.verdict is Verdict.ACCEPTED:
                work.confirmed = best.id
                break
        best = work.tree.best()
        self.benches.drop(work.index)
        work.set("done", reason, best=work.confirmed or (best.id if best else None))
        self._show(f"target {work.index} is done: {reason}")

    # -- facts --------------------------------------------------------------------------------

    def _work(self, index: int) -> Work:
        return next(work for work in self.works if work.index == index)

    def _gains(self, work: Work) -> int:
        return stopping.gains(work.tree)

    def _learn_from(self, work: Work) -> None:
        """Success rates from what an earlier session has judged."""
        best = 1.0
        for node in work.tree:
            found = node.evaluation
            speedup = (found.speedup or 0.0) if found and found.verdict is Verdict.ACCEPTED else 0
            self.rates.observe(work.target.family, node.action, speedup > best)
            best = max(best, speedup)

    def _facts(self) -> stopping.RunFacts:
        stop = self.control.reason if self.control.stop.is_set() else ""
        spent = self.record.spent() if self.options.max_cost is not None else 0.0
        return stopping.RunFacts(self.judged, spent=spent, seconds=self.seconds, stop=stop)

    def _states(self) -> list[allocate.TargetState]:
        return [self._state(work) for work in self.works]

    def _state(self, work: Work) -> allocate.TargetState:
        best = work.tree.best()
        found = best.evaluation if best else None
        accepted = found is not None and found.verdict is Verdict.ACCEPTED
        reached = max((found.speedup or 1.0) if found and accepted else 1.0, 1.0)
        return allocate.TargetState(
            work.index,
            work.target.family,
            work.share,
            work.headroom or max(UNKNOWN_HEADROOM, reached * STEP),
            best=reached,
            attempts=len(work.tree),
            gains=self._gains(work),
            dry=stopping.dry(work.tree),
            open=work.open,
            action="draft" if not len(work.tree) else "optimise",
        )

    def _random(self, work: Work) -> random.Random:
        """The same choices for the same seed, wherever a run was interrupted."""
        work.asked += 1
        place = f"{self.options.seed}/{work.index}/{len(work.tree)}/{work.asked}"
        return random.Random(place)  # noqa: S311  a search, not a secret

    def _request(self, work: Work, choice: Choice) -> Request:
        return Request(
            target=work.target,
            action=choice.action,
            parent=None if choice.node is None else work.attempt(choice.node),
            siblings=work.children(choice.node),
            device=self.device,
            roofline_us=work.roofline_us,
            seed=self._random(work).randrange(2**31),
        )

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
