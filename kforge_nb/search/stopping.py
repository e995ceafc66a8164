"""When a target, or the whole run, has had enough; each answer is a reason in words or None.

Pure: the caller brings the facts (also the time that has passed), so every rule can be tested at
its edge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kforge_nb.judge.evaluation import Verdict
from kforge_nb.search import mcts
from kforge_nb.search.tree import Node, Tree

__all__ = [
    "RunFacts",
    "RunRules",
    "TargetRules",
    "best_share",
    "climb",
    "dry",
    "gain_flags",
    "gains",
    "reached",
    "run",
    "target",
]

_GAIN = 1.01  # a new best by less than this is luck


@dataclass(frozen=True, slots=True)
class TargetRules:
    """Limits of one target's search.

    ``roofline``: share of the roofline at which a target is done. ``patience``: judged candidates
    in a row without a new best after which it is given up; None where the price of a call decides
    that (:mod:`kforge_nb.search.paying`). ``budget``: most candidates for this
    one target; None for no limit of its own.
    """

    roofline: float = 0.9
    patience: int | None = 12
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class RunRules:
    """Limits of a run: candidates, US dollars, seconds; None for no limit."""

    budget: int | None = None
    max_cost: float | None = None
    time_limit: float | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Where a run stands.

    ``judged`` and ``pending`` candidates, US dollars ``spent`` and ``reserved`` for calls under
    way, the worst case ``next_cost`` of the next call, ``seconds`` since the start, and the words
    of a stop request (empty: none).
    """

    judged: int = 0
    pending: int = 0
    spent: float = 0.0
    reserved: float = 0.0
    next_cost: float = 0.0
    seconds: float = 0.0
    stop: str = ""


def run(facts: RunFacts, rules: RunRules) -> str | None:
    """Why the run must not start another candidate, or None.

    A call that could exceed ``max_cost`` is never begun; candidates under way count against the
    budget.
    """
    if facts.stop:
        return facts.stop
    if rules.budget is not None and facts.judged + facts.pending >= rules.budget:
        return f"the budget of {rules.budget} candidates is used up"
    if rules.time_limit is not None and facts.seconds >= rules.time_limit:
        return f"the time limit of {rules.time_limit:g} s is reached"
    booked = facts.spent + facts.reserved
    # Compared with a hair's breadth of room, so that sums of cents do not stop a run early.
    most = None if rules.max_cost is None else rules.max_cost * (1 + 1e-9)
    if most is not None and facts.next_cost > 0 and booked + facts.next_cost > most:
        return (
            f"the next call could cost {facts.next_cost:.4f} USD, and with {booked:.4f} USD "
            f"spent that could exceed the {rules.max_cost:.2f} USD allowed"
        )
    return None


def target(
    tree: Tree,
    rules: TargetRules | None = None,
    limits: mcts.Limits | None = None,
    *,
    eager_us: float | None = None,
    roofline_us: float | None = None,
) -> str | None:
    """Why a target's search is over, or None.

    Args:
        tree: The target's tree.
        rules: Its rules.
        limits: The search's limits (they say when a tree is exhausted).
        eager_us: Time of the original, for the roofline share where the judge gave none.
        roofline_us: Time at the roofline.
    """
    rules = rules or TargetRules()
    if any(n.evaluation and n.evaluation.verdict is Verdict.WEAK_TASK for n in tree):
        return "its inputs cannot tell right from wrong, so nothing can be accepted"
    share = best_share(tree, eager_us=eager_us, roofline_us=roofline_us)
    if share is not None and share >= rules.roofline:
        return f"the best candidate runs at {share:.0%} of the roofline"
    if rules.budget is not None and len(tree) + tree.root.pending >= rules.budget:
        return f"its {rules.budget} candidates are used up"
    if rules.patience is not None and dry(tree) >= rules.patience:
        return f"{rules.patience} candidates in a row brought no new best"
    if mcts.exhausted(tree, limits):
        return "there is nothing more to try"
    return None


def best_share(
    tree: Tree, *, eager_us: float | None = None, roofline_us: float | None = None
) -> float | None:
    """Roofline time over the time of the best accepted candidate; None where not known."""
    best = tree.best()
    found = best.evaluation if best else None
    if found is None or found.verdict is not Verdict.ACCEPTED:
        return None
    if found.roofline_share is not None:
        return found.roofline_share
    if eager_us and roofline_us and found.speedup:
        return roofline_us * found.speedup / eager_us
    return None


def dry(tree: Tree) -> int:
    """Judged candidates since the last new best (all of them, where there never was one).

    Best is the fastest correct one, be it slower than the original: a search that comes closer to
    it is not in vain.
    """
    flags = gain_flags(tree)
    return len(flags) if True not in flags else flags[::-1].index(True)


def gains(tree: Tree) -> int:
    """How many judged candidates were a new best when they came."""
    return sum(gain_flags(tree))


def reached(tree: Tree) -> float | None:
    """Speed-up of the fastest correct candidate, be it slower than the original; None for none."""
    return max((s for s in map(_correct_speedup, _judged(tree)) if s), default=None)


def climb(tree: Tree) -> tuple[float, ...]:
    """Speed-ups of the correct candidates that were a new best when they came, in order.

    The last of them is the fastest of all, also where a later one was faster by mere luck.
    """
    found: list[float] = []
    for speedup, gained in zip(map(_correct_speedup, _judged(tree)), gain_flags(tree), strict=True):
        if gained:
            found.append(speedup)
        elif found:
            found[-1] = max(found[-1], speedup)
    return tuple(found)


def gain_flags(tree: Tree) -> list[bool]:
    """For each judged node in order: was it correct, and faster than all before it?"""
    best = 0.0
    flags = []
    for speedup in map(_correct_speedup, _judged(tree)):
        flags.append(speedup > best * _GAIN)
        best = max(best, speedup)
    return flags


def _judged(tree: Tree) -> Iterable[Node]:
    return (n for n in tree if not n.waiting)


def _correct_speedup(node: Node) -> float:
    found = node.evaluation
    return (found.speedup or 0.0) if found is not None and found.correct else 0.0
