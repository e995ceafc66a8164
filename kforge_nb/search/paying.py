"""Allocation where every attempt costs money: which call is worth its price, and when none is.

The order of targets is that of :mod:`kforge_nb.search.allocate`; what is added is the end. The run
stops when the best call left is expected to bring, for its price, less than a small part of what
the run's money has brought so far on average: an attempt that may save a thousandth of the
workload's time is worth a cent and not a dollar, and the run itself says what it has been paying.

How ``max_cost`` is split: each target gets a part by its expected gain (:func:`money_shares`). A
target whose part is used up waits; when nothing else is worth an attempt, the targets that are
not worth one are closed, and their money flows back to those that are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kforge_nb.search.allocate import Pick, Rates, Stop, TargetState, expected_gain, next_target

__all__ = ["LEAST_GAIN", "WORTH", "Close", "money_shares", "next_paid"]

LEAST_GAIN = 1e-6
"""A call that is expected to save no more than this part of the workload's time is not paid for."""

WORTH = 0.01
"""What the next dollar must be expected to bring, as a part of what the average one has brought."""


@dataclass(frozen=True, slots=True)
class Close:
    """The target is to be closed, so that its money flows back to the others; then ask again."""

    index: int
    reason: str


def money_shares(states: Sequence[TargetState], rates: Rates | None = None) -> dict[int, float]:
    """Each target's part of the run's money, by its expected gain; the parts add up to 1.

    Args:
        states: All targets of the run; those that are not open get nothing.
        rates: What was learned; a fresh prior where None.

    Returns:
        Weights by index, all above 0; empty where no target has anything to gain.
    """
    rates = rates or Rates()
    gains = {s.index: expected_gain(s, rates) for s in states if s.open}
    kept = {i: g for i, g in gains.items() if g > LEAST_GAIN}
    total = sum(kept.values())
    return {i: g / total for i, g in sorted(kept.items())}


def next_paid(
    states: Sequence[TargetState],
    rates: Rates | None,
    fits: Callable[[int], bool],
    *,
    spent: float,
    worth: float = WORTH,
) -> Pick | Stop | Close:
    """The target whose next call is worth most for its price, if any is worth it.

    Args:
        states: All targets; ``price`` is the expected cost of one call, in USD.
        rates: What was learned; a fresh prior where None.
        fits: Whether the worst case of a call for a target is within what it may spend
            (:meth:`kforge_nb.proposers.cost.Ledger.fits`).
        spent: USD spent so far.
        worth: See :data:`WORTH`.

    Returns:
        A pick; a target to close (in the ledger too) before asking again; or Stop.
    """
    rates = rates or Rates()
    gained = sum(max(s.share, 0.0) * (1 - 1 / max(s.best, 1.0)) for s in states)
    least = worth * gained / spent if spent > 0 else 0.0
    paid = [s for s in states if s.open and fits(s.index)]
    found = next_target(
        [replace(s, open=s.open and s in paid) for s in states],
        rates,
        least_gain=LEAST_GAIN,
        least_value=least,
    )
    if isinstance(found, Pick):
        return found
    gains = {s.index: expected_gain(s, rates) for s in states if s.open}
    waiting = [
        s
        for s in states
        if s.open
        and s not in paid
        and gains[s.index] > LEAST_GAIN
        and gains[s.index] > least * s.price
    ]
    if not waiting:
        return found
    if paid:
        first = min(paid, key=lambda s: (gains[s.index], -s.index))
        return Close(first.index, "one more call is not expected to be worth its price")
    if len(waiting) > 1:
        first = min(waiting, key=lambda s: (gains[s.index] / max(s.price, 1e-12), -s.index))
        return Close(first.index, "its part of the money is used up")
    return Stop(
        f"the next call, for target {waiting[0].index}, could cost more than what is left of the "
        "money"
    )
