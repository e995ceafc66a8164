"""Which target gets the next candidate: the largest expected whole-model gain for its price.

The expected gain of one more attempt is *share × what can still be saved × chance of success*:
share of the workload's time, the part of the target's time between the best so far and the ceiling
that its successes point at (:mod:`kforge_nb.search.ceiling`), and a success rate learned per family
and action (a Beta prior) that shrinks as attempts on this very target fail. A target near its
roofline has none. Nothing is drawn at random, so equal
facts give equal picks. What calls that cost money need beyond this is in
:mod:`kforge_nb.search.paying`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kforge_nb.errors import DocumentError
from kforge_nb.search.ceiling import saved_by_success

__all__ = ["Pick", "Rates", "Stop", "TargetState", "expected_gain", "next_target"]


@dataclass(frozen=True, slots=True)
class TargetState:
    """What is known of one target when the next attempt is given away.

    ``share`` is its part of the workload's time before the search (0 … 1), ``headroom`` its time
    over its roofline time (1 and above; None where unknown), ``best`` the accepted speed-up so far
    (1 while there is none), ``reached`` that of the fastest correct candidate, which may be slower
    than the original (None: not known, or none is correct), ``climb`` the speed-ups of all that
    were a new best when they came, in order. ``attempts`` counts judged candidates, ``gains``
    those that were a new best, ``dry`` those since the last new best, ``pending`` those under way.
    ``price`` is what one more attempt costs, in any unit as long as it is the same for all.
    ``open`` says that the search of this target may go on; ``action`` is what would be tried.
    """

    index: int
    family: str
    share: float
    headroom: float | None = None
    best: float = 1.0
    reached: float | None = None
    climb: tuple[float, ...] = ()
    attempts: int = 0
    gains: int = 0
    dry: int = 0
    pending: int = 0
    price: float = 1.0
    open: bool = True
    action: str = "optimise"


@dataclass(frozen=True, slots=True)
class Pick:
    """The target to try next; ``gain`` is the expected part of the workload's time saved."""

    index: int
    gain: float
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """No target is worth another attempt, and why."""

    reason: str


@dataclass(slots=True)
class Rates:
    """Success rates per family and action: a Beta prior that every attempt sharpens.

    ``successes`` and ``failures`` are the prior's weights; a family that was never seen has the
    rate of the action over all families.
    """

    successes: float = 1.0
    failures: float = 3.0
    counts: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def observe(self, family: str, action: str, success: bool) -> None:
        """One attempt ended; success means a new best."""
        good, bad = self.counts.get((family, action), (0, 0))
        self.counts[family, action] = (good + success, bad + (not success))

    def mean(self, family: str, action: str) -> float:
        """Expected chance that an attempt succeeds, between 0 and 1."""
        prior = self.successes + self.failures
        over_all = [c for (_, a), c in self.counts.items() if a == action]
        base = self._posterior(over_all, self.successes / prior, prior)
        own = self.counts.get((family, action))
        return self._posterior([own] if own else [], base, prior)

    @staticmethod
    def _posterior(counts: Iterable[tuple[int, int]], mean: float, weight: float) -> float:
        seen = list(counts)
        good, bad = sum(c[0] for c in seen), sum(c[1] for c in seen)
        return (weight * mean + good) / (weight + good + bad)

    def to_document(self) -> dict[str, Any]:
        """Plain data."""
        rows = [[f, a, *c] for (f, a), c in sorted(self.counts.items())]
        return {"successes": self.successes, "failures": self.failures, "counts": rows}

    @classmethod
    def from_document(cls, data: Mapping[str, Any]) -> Rates:
        """Inverse of :meth:`to_document`.

        Raises:
            DocumentError: The data is malformed.
        """
        try:
            counts = {(str(f), str(a)): (int(g), int(b)) for f, a, g, b in data["counts"]}
            found = cls(float(data["successes"]), float(data["failures"]), counts)
        except (KeyError, TypeError, ValueError) as e:
            raise DocumentError(f"the learned success rates are malformed: {e!r}") from e
        weights = (found.successes, found.failures)
        if min(weights) <= 0 or any(min(c) < 0 for c in counts.values()):
            raise DocumentError("the learned success rates hold a negative count or empty prior")
        return found


FOURTH = 4
"""No target gets its fourth attempt while one that is worth it has had none (see ``broad``)."""

WORTH_A_DRAFT = 0.05
"""A first attempt is worth it where so large a part of the most that any target can save is."""

_UNKNOWN_HEADROOM = 1.5
_PRIOR_WEIGHT = 8.0


def expected_gain(state: TargetState, rates: Rates) -> float:
    """Part of the workload's time that one more attempt is expected to save.

    Where several successes are needed before anything is saved (the best so far is slower than
    the original), it is the mean over them.
    """
    prior = rates.mean(state.family, state.action)
    # Attempts in vain since the last gain count twice, as do those whose end is not known yet:
    # what worked early says little about what is left.
    tried = state.attempts + state.dry + state.pending
    chance = (_PRIOR_WEIGHT * prior + state.gains) / (_PRIOR_WEIGHT + max(tried, state.gains))
    return max(state.share, 0.0) * _saved(state) * chance


def _saved(state: TargetState) -> float:
    """Part of the target's time that a success is expected to save."""
    best = max(state.best, 1.0)
    known = state.reached if state.reached is not None else best if best > 1.0 else None
    climb = state.climb or (() if known is None else (known,))
    return saved_by_success(best, state.headroom or _UNKNOWN_HEADROOM, climb)


def _first_ones_first(
    states: Sequence[TargetState], ready: Sequence[TargetState]
) -> Sequence[TargetState]:
    """The open targets; only those where nothing was tried once another has had its third.

    As long as there are such, none gets a second attempt before the first one's end is known:
    where nothing is known yet, the first tells most.
    """
    most = max(map(_potential, states))
    fresh = [
        s
        for s in ready
        if not s.attempts + s.pending and _potential(s) >= max(WORTH_A_DRAFT * most, 1e-12)
    ]
    if not fresh:
        return ready
    due = any(s.attempts + s.pending >= FOURTH - 1 for s in states)
    return fresh if due else [s for s in ready if s.attempts or not s.pending]


def _potential(state: TargetState) -> float:
    """Part of the workload's time that the target would save at its roofline."""
    return max(state.share, 0.0) * (1 - 1 / max(state.headroom or _UNKNOWN_HEADROOM, 1.0))


def next_target(
    states: Sequence[TargetState],
    rates: Rates | None = None,
    *,
    least_gain: float = 0.0,
    least_value: float = 0.0,
    broad: bool = False,
) -> Pick | Stop:
    """The target whose next attempt is expected to gain most for its price.

    Args:
        states: All targets of the run.
        rates: What was learned; a fresh prior where None.
        least_gain: An expected gain (part of the workload's time) at or below this is not worth
            an attempt.
        least_value: Nor is an expected gain per price at or below this.
        broad: Whether every target that is worth it gets a first attempt before any other gets its
            fourth, or a second one whose first has not ended: the expected gain of a target where
            nothing was tried is a guess, and what wins alone may still be refused in the model, so
            not all is put on one.

    Returns:
        The pick, with its reason in words; Stop where nothing is open or worth it.
    """
    rates = rates or Rates()
    ready = [s for s in states if s.open]
    if not ready:
        return Stop("every target is done" if states else "there are no targets")
    gains = {s.index: expected_gain(s, rates) for s in ready}
    prices = {s.index: max(s.price, 1e-12) for s in ready}
    allowed = _first_ones_first(states, ready) if broad else ready
    best = max(allowed, key=lambda s: (gains[s.index] / prices[s.index], -s.index))
    gain = gains[best.index]
    if gain == 0:
        return Stop("what is open runs at its roofline already, so no time is left to save")
    if gain <= least_gain or gain / prices[best.index] <= least_value:
        return Stop(
            f"the best next attempt (target {best.index}) is expected to save {gain:.2%} of the "
            "workload's time, which is not worth its price"
        )
    others = f", the most of {len(ready)} open targets" if len(ready) > 1 else ""
    return Pick(
        best.index,
        gain,
        f"one more attempt on target {best.index} is expected to save {gain:.2%} of the "
        f"workload's time{others}",
    )
