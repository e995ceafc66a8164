"""Who spends a run's money on which target: our policy, and the same budget for each.

Both play the same runs. A target's run is searched once, to the end of a uniform budget; a policy
decides only how far into each of these runs it goes, and stops when it thinks best. Each attempt is
a call, with tokens drawn around what the paper's repository records (643 calls, 9.83 M tokens in,
2.62 M out), booked through the real ledger with its worst case set apart first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.cost import Ledger, OverBudget, Price, Usage
from kforge_nb.proposers.protocol import Action
from kforge_nb.search import allocate, paying, stopping
from kforge_nb.search.tree import Tree

__all__ = ["Attempt", "Played", "Recorded", "Spent", "ours", "uniform"]

PRICE = Price(5.0, 0.5, 25.0, "opus", "the paper's repository", "2026-04")
TOKENS_IN, TOKENS_OUT = 9.83e6 / 643, 2.62e6 / 643
BOUND_IN, MAX_TOKENS = 60_000, 16_000
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate of a recorded run: where it stood, what came of it, what its call used."""

    parent: str | None
    action: Action
    evaluation: Evaluation
    usage: Usage
    true: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """A target and its whole run, in order."""

    index: int
    family: str
    share: float
    headroom: float
    attempts: tuple[Attempt, ...]


@dataclass(slots=True)
class Played:
    """A recorded run as far as a policy has gone into it."""

    record: Recorded
    tree: Tree = field(init=False)
    best: float = 1.0
    measured: float = 1.0
    usd: float = 0.0
    closed: bool = False
    _state: allocate.TargetState | None = None

    def __post_init__(self) -> None:
        self.tree = Tree(self.record.index)

    @property
    def over(self) -> bool:
        """Whether the recorded run has nothing more."""
        return len(self.tree) >= len(self.record.attempts)

    def step(self) -> Attempt:
        """The next attempt, into the tree."""
        self._state = None
        attempt = self.record.attempts[len(self.tree)]
        node = self.tree.expect(attempt.parent, attempt.action)
        self.tree.record(node.id, node.id, attempt.evaluation)
        found = attempt.evaluation
        if found.verdict is Verdict.ACCEPTED and (found.speedup or 0.0) > self.measured:
            self.measured, self.best = found.speedup or 1.0, attempt.true
        return attempt

    def state(self, rules: stopping.TargetRules, price: float) -> allocate.TargetState:
        """What the allocation knows of the target; ``price`` is that of a call elsewhere."""
        if self._state is None:
            record, judged = self.record, len(self.tree)
            self._state = allocate.TargetState(
                record.index,
                record.family,
                record.share,
                record.headroom,
                best=self.measured,
                reached=stopping.reached(self.tree),
                climb=stopping.climb(self.tree),
                attempts=judged,
                gains=stopping.gains(self.tree),
                dry=stopping.dry(self.tree),
                open=not self.over and stopping.target(self.tree, rules) is None,
                action="optimise" if judged else "draft",
            )
        own = self.usd / self._state.attempts if self._state.attempts else price
        return replace(self._state, price=own, open=self._state.open and not self.closed)


@dataclass(frozen=True, slots=True)
class Spent:
    """After each call: USD spent, and the part of the workload's time saved; why it ended."""

    usd: tuple[float, ...]
    saved: tuple[float, ...]
    reason: str

    def until(self, saved: float) -> float | None:
        """USD spent when so much was saved; None where it never was."""
        pairs = zip(self.usd, self.saved, strict=True)
        return next((usd for usd, got in pairs if got >= saved - 1e-12), None)


def usage_of(rng: random.Random) -> Usage:
    """Tokens of one call, within the limits that it is sent with."""
    spread = rng.lognormvariate(0.0, 0.3)
    out = rng.lognormvariate(0.0, 0.3)
    return Usage(min(int(TOKENS_IN * spread), BOUND_IN), 0, min(int(TOKENS_OUT * out), MAX_TOKENS))


def uniform(records: Sequence[Recorded]) -> Spent:
    """The same number of attempts for each target, by turns, to the end of all runs."""
    played = [Played(r) for r in records]
    total = 0.0
    usd: list[float] = []
    saved: list[float] = []
    while not all(p.over for p in played):
        for p in played:
            if not p.over:
                total += PRICE.cost(p.step().usage) / 1e12
                usd.append(total)
                saved.append(_saved(played))
    return Spent(tuple(usd), tuple(saved), "the budgets are used up")


def ours(
    records: Sequence[Recorded], max_cost: float, rules: stopping.TargetRules | None = None
) -> Spent:
    """Expected whole-model gain per dollar decides the next call, and whether there is one."""
    played = [Played(r) for r in records]
    by_index = {p.record.index: p for p in played}
    rates, rules = allocate.Rates(), rules or stopping.TargetRules(patience=None)
    ledger = Ledger(PRICE, max_cost, paying.money_shares(_states(played, rules), rates))
    usd: list[float] = []
    saved: list[float] = []
    while True:
        states = _states(played, rules)
        for state in states:
            if not state.open:
                ledger.close(state.index)
        found = paying.next_paid(
            states,
            rates,
            lambda i: ledger.fits(i, BOUND_IN, MAX_TOKENS, ATTEMPTS),
            spent=ledger.spent,
        )
        if isinstance(found, allocate.Stop):
            return Spent(tuple(usd), tuple(saved), found.reason)
        if isinstance(found, paying.Close):
            by_index[found.index].closed = True
            continue
        _call(by_index[found.index], ledger, rates)
        usd.append(ledger.spent)
        saved.append(_saved(played))


def _call(one: Played, ledger: Ledger, rates: allocate.Rates) -> None:
    made = ledger.reserve(one.record.index, BOUND_IN, MAX_TOKENS, ATTEMPTS)
    assert not isinstance(made, OverBudget), made.reason
    before = stopping.gains(one.tree)
    attempt = one.step()
    one.usd += made.settle(attempt.usage)
    rates.observe(one.record.family, attempt.action, stopping.gains(one.tree) > before)


def _states(played: Sequence[Played], rules: stopping.TargetRules) -> list[allocate.TargetState]:
    calls = sum(len(p.tree) for p in played)
    expected = PRICE.cost(Usage(int(TOKENS_IN), 0, int(TOKENS_OUT))) / 1e12
    price = sum(p.usd for p in played) / calls if calls else expected
    return [p.state(rules, price) for p in played]


def _saved(played: Sequence[Played]) -> float:
    return sum(p.record.share * (1 - 1 / max(p.best, 1e-3)) for p in played)
