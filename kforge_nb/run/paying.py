"""The money of one search: its ledger, what calls have been costing, and which one is worth making.

The rules are those of :mod:`kforge_nb.search.paying` and the ledger's; here they meet the run's
record: what earlier sessions spent counts, and each call is in the store before it is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kforge_nb.proposers.chat import Chat, Reply
from kforge_nb.proposers.chat import Usage as Answered
from kforge_nb.proposers.cost import Ledger, Price, Usage, tokens_bound, tokens_estimate
from kforge_nb.proposers.prices import usd
from kforge_nb.proposers.prompting import render
from kforge_nb.proposers.protocol import Request
from kforge_nb.run import facts
from kforge_nb.search import allocate, paying

if TYPE_CHECKING:
    from kforge_nb.proposers.prompting import Prompt
    from kforge_nb.proposers.protocol import Proposer
    from kforge_nb.run.conductor import Conductor
    from kforge_nb.run.work import Work
    from kforge_nb.search.allocate import Rates, TargetState

__all__ = ["Purse", "paid_proposer"]

USUAL_TOKENS_OUT = 3000
"""Tokens that an answer is expected to have before any has come."""


class Purse:
    """What a search asks about money. ``attempts``: times that one call is made at most."""

    def __init__(self, conductor: Conductor, ledger: Ledger, attempts: int) -> None:
        self._record, self._ledger, self._attempts = conductor.record, ledger, attempts
        self._max_tokens = conductor.options.max_tokens
        self._first = {w.index: _first_prompt(w, conductor) for w in conductor.works if w.open}

    def pick(
        self, states: Sequence[TargetState], rates: Rates
    ) -> allocate.Pick | allocate.Stop | paying.Close:
        """The target whose next call is worth most for its price; see ``next_paid``."""
        booked = self._costs()
        priced = [replace(s, price=self._expected(s.index, booked)) for s in states]
        return paying.next_paid(priced, rates, self._fits, spent=self._ledger.spent)

    def close(self, target: int) -> None:
        """A target's search is over: what it left flows back to the others."""
        self._ledger.close(target)

    def _fits(self, target: int) -> bool:
        bound = tokens_bound(self._first.get(target, ""))
        return self._ledger.fits(target, bound, self._max_tokens, self._attempts)

    def _costs(self) -> list[dict[str, Any]]:
        return [c for c in self._record.store.costs(self._record.id) if c["state"] == "done"]

    def _expected(self, target: int, booked: Sequence[Mapping[str, Any]]) -> float:
        """USD that one candidate's calls cost: as they did for this target, or for any, so far."""
        for mine in ([c for c in booked if c["target"] == target], booked):
            nodes = {c["node"] for c in mine if c["calls"]}
            total = sum(c["usd"] or 0.0 for c in mine)
            if nodes and total > 0:
                return total / len(nodes)
        tokens = tokens_estimate(self._first.get(target, ""))
        usual = Usage(tokens, 0, min(self._max_tokens, USUAL_TOKENS_OUT))
        return usd(self._ledger.price.cost(usual))


class _Linked(threading.Event):
    """Set by itself or with the run's own Stop; setting it stops the proposer and not the run."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or self._other.is_set()


class _Remembering(Chat):
    """A client that uses answers which an earlier session paid for and could not judge any more."""

    def __init__(self, earlier: Callable[[str], str | None], model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._earlier = earlier

    def complete(self, prompt: Prompt, **options: Any) -> Reply:
        known = self._earlier(prompt.text())
        if known is None:
            return super().complete(prompt, **options)
        return Reply(known, Answered(0), "stop", 0.0, 1, notes=("answered in an earlier session",))


def paid_proposer(conductor: Conductor, price: Price) -> Proposer:
    """The ``openai`` proposer of one search; gives the conductor its purse, if calls cost money.

    Raises:
        BadInput: There is no key for an endpoint that needs one.
        StoreError: A booking of an earlier session cannot be read.
    """
    from kforge_nb.proposers.openai import OpenAIProposer

    options, record = conductor.options, conductor.record
    chat = _Remembering(
        conductor.book.earlier_answer,
        str(options.model),
        temperature=options.temperature,
        reasoning_effort=options.reasoning_effort,
    )
    states = [facts.state_of(work) for work in conductor.works]
    shares = paying.money_shares(states) if options.max_cost is not None else None
    ledger = Ledger(price, options.max_cost, shares or None)
    ledger.restore(
        {"target": c["target"], "usd": c["usd"] or 0.0, "state": "settled"}
        for c in record.store.costs(record.id)
        if c["target"] is not None
    )
    for work in conductor.works:
        if not work.open:
            ledger.close(work.index)
    if not price.free:
        conductor.purse = Purse(conductor, ledger, chat.attempts)
    return OpenAIProposer(
        chat,
        ledger,
        conductor.book,
        stop=_Linked(conductor.control.stop),
        max_tokens=options.max_tokens,
    )


def _first_prompt(work: Work, conductor: Conductor) -> str:
    """What would be sent for a first draft, which says about how long prompts are."""
    request = Request(
        work.target,
        "draft",
        device=conductor.tools.device,
        roofline_us=work.roofline_us,
        baseline_us=work.mean_us,
    )
    return render(request).text()
