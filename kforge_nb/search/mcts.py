"""Which node of a tree to grow next: UCT over normalised log speed-up.

Speed-up, unlike milliseconds, means the same for a 5 µs and a 5 ms target, and its logarithm makes
a doubling worth the same everywhere. It is normalised by the spread seen in this tree, so that the
choice is neither round-robin (all values alike) nor greedy (values far apart). Failures count as
zero but may be repaired; a branch that brought no gain for long is left until nothing else is
open. With the same tree, limits and random state the choice is always the same.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from kforge_nb.proposers.protocol import Action
from kforge_nb.search.tree import Node, Tree

__all__ = ["Choice", "Limits", "choose", "exhausted"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The knobs of the search; defaults were set on the landscapes of tests/search.

    ``drafts``: first attempts from nothing before anything is refined. ``repairs``: repair
    children of one failed node. ``repair_depth``: failures in a row that are repaired.
    ``refusals``: refusals in a row after which a node counts as exhausted. ``stale``: visits
    without gain after which a branch rests. ``exploration``: weight of the unknown. ``greed``:
    weight of a branch's best against its mean. ``momentum``: weight of the gain below a node over
    the node itself, so that a poor start that keeps improving is followed. ``least_gain``: log
    speed-up that counts as a gain. ``widen_from`` and ``widen_to``: exponent of progressive
    widening, at the first visit and after ``widen_visits``. ``smallest_spread`` and
    ``largest_spread``: bounds of the log speed-up that the scores are normalised by.
    """

    drafts: int = 4
    repairs: int = 2
    repair_depth: int = 2
    refusals: int = 3
    stale: int = 8
    exploration: float = 0.5
    greed: float = 0.6
    momentum: float = 0.6
    least_gain: float = math.log(1.02)
    widen_from: float = 0.4
    widen_to: float = 0.3
    widen_visits: int = 1000
    smallest_spread: float = math.log(1.1)
    largest_spread: float = math.log(8.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """Grow ``node`` (None: start anew) by ``action``; ``ticket`` is the pending child's id."""

    node: str | None
    action: Action
    ticket: str


def choose(tree: Tree, rng: random.Random, limits: Limits | None = None) -> Choice | None:
    """The next node to grow, marked as pending in the tree (virtual loss).

    Args:
        tree: The target's tree; grows by one pending node.
        rng: Breaks ties between equal scores.
        limits: The knobs.

    Returns:
        The choice, to be answered with ``tree.record(choice.ticket, …)`` or
        ``tree.refuse(choice.ticket, …)``; None where nothing can be grown (now).
    """
    limits = limits or Limits()
    for rested in (False, True):
        view = _View(tree, limits, rested)
        if view.open(tree.root):
            node = view.descend(rng)
            action = _action(tree, node, limits)
            parent = None if node is tree.root else node.id
            return Choice(parent, action, tree.expect(parent, action).id)
    return None


def exhausted(tree: Tree, limits: Limits | None = None) -> bool:
    """Whether nothing can be grown and nothing is pending that could change it."""
    return not tree.root.pending and not _View(tree, limits or Limits(), True).open(tree.root)


def _action(tree: Tree, node: Node, limits: Limits) -> Action:
    if node is tree.root:
        return "draft" if len(node.children) < limits.drafts else "restart"
    return "repair" if node.repairable else "optimise"


class _View:
    """One reading of a tree: scores and what is open, each worked out once."""

    def __init__(self, tree: Tree, limits: Limits, rested: bool) -> None:
        self.tree, self.limits, self.rested = tree, limits, rested
        values = sorted(tree.log_speedups())
        self.high = values[-1] if values else 0.0
        low = values[len(values) // 4] if values else 0.0
        self.spread = min(max(self.high - low, limits.smallest_spread), limits.largest_spread)
        self._open: dict[str, bool] = {}
        self._sums: dict[str, float] = {}
        for node in reversed([tree.root, *tree]):  # children stand after their parents
            below = tree.children(node)
            self._sums[node.id] = self.norm(node.own_value) + sum(self._sums[c.id] for c in below)
            self._open[node.id] = not self._resting(node) and (
                self.can_grow(node) or any(self._open[c.id] for c in below)
            )

    def norm(self, value: float | None) -> float:
        """A log speed-up as 0 … 1 of this tree's spread; 0 for a failure."""
        if value is None:
            return 0.0
        # The worst correct node is still worth more than a failure.
        return 0.1 + 0.9 * min(max(1 - (self.high - value) / self.spread, 0.0), 1.0)

    def open(self, node: Node) -> bool:
        return self._open[node.id]

    def can_grow(self, node: Node) -> bool:
        """Whether the rules allow one more child here (widening aside)."""
        if node.closed or node.refusals >= self.limits.refusals:
            return False
        if node is self.tree.root:
            return True
        if node.repairable:
            return (
                len(node.children) < self.limits.repairs
                and self._failures_in_a_row(node) <= self.limits.repair_depth
            )
        return node.evaluation is not None and node.evaluation.correct

    def descend(self, rng: random.Random) -> Node:
        """From the root to the node that is to get a child."""
        node = self.tree.root
        while True:
            below = [c for c in self.tree.children(node) if self.open(c)]
            if not below or (self.can_grow(node) and len(node.children) < self._room(node)):
                return node
            scores = [self._score(node, c) for c in below]
            top = max(scores)
            node = rng.choice([c for c, s in zip(below, scores, strict=True) if s == top])

    def _failures_in_a_row(self, node: Node) -> int:
        count = 0
        for n in self.tree.path(node):
            if not n.repairable:
                break
            count += 1
        return count

    def _resting(self, node: Node) -> bool:
        if self.rested or node is self.tree.root or node.visits < self.limits.stale:
            return False
        own = node.own_value
        return node.value is None or (own is not None and node.value < own + self.limits.least_gain)

    def _room(self, node: Node) -> int:
        k = self.limits
        done = min(self.tree.root.visits / k.widen_visits, 1.0)
        exponent = k.widen_from + (k.widen_to - k.widen_from) * done
        least = k.drafts if node is self.tree.root else 1
        return max(least, int((node.visits + node.pending) ** exponent))

    def _score(self, parent: Node, node: Node) -> float:
        visits = node.visits + node.pending
        mean = self._sums[node.id] / visits
        best = self.norm(node.value) * node.visits / visits
        seen = max(parent.visits + parent.pending, 2)
        unknown = math.sqrt(math.log(seen) / visits)
        k = self.limits
        known = k.greed * best + (1 - k.greed) * mean + k.momentum * self._climb(node)
        return known + k.exploration * unknown

    def _climb(self, node: Node) -> float:
        """How far the branch has come since its first node, as 0 … 1 of the spread."""
        own = node.own_value
        if own is None or node.value is None or node.value - own < self.limits.least_gain:
            return 0.0
        return min((node.value - own) / self.spread, 1.0)
