"""Which node of a tree to grow next: UCT over normalised log speed-up, with an arm for widening.

Speed-up, unlike milliseconds, means the same for a 5 µs and a 5 ms target, and its logarithm makes
a doubling worth the same everywhere. It is normalised by the spread seen in this tree, so that the
choice is neither round-robin (all values alike) nor greedy (values far apart).

On the way down from the root each node offers its children's branches and one arm more, a new
child of its own. A branch counts by the best found in it, more where it has climbed since its
first node, less the longer it has brought no gain; a new child counts by the node it would be made
from, less the more of its children were in vain. The unknown weighs little while the tree still
gains, so what pays is followed, and more the longer it has not. Failures may be repaired, a limited
number of times. With the same tree, limits and random state the choice is always the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kforge_nb.proposers.protocol import Action
from kforge_nb.search.tree import Node, Tree

__all__ = ["Choice", "Limits", "choose", "exhausted"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The knobs of the search; docs/decisions/019 says how the defaults were found.

    ``drafts``: first attempts from nothing before anything is refined. ``repairs``: repair
    children of one failed node. ``repair_depth``: failures in a row that are repaired.
    ``refusals``: refusals in a row after which a node counts as exhausted. ``exploration``: weight
    of the unknown once the whole tree is dry; it has half of that after ``half_dry`` attempts
    without a gain, and none right after one. ``fade``: what a branch loses with each doubling of
    its attempts without a gain. ``failed``: how much of an attempt a failure is in these counts.
    ``momentum``: weight of what a branch gained over its first node. ``trust``: what a repair is
    hoped to be worth, as a part of what it was to refine. ``hope``: what a draft that fails was
    hoped to be worth, as 0 … 1 of the spread. ``least_gain``: log speed-up that counts as a gain.
    ``smallest_spread`` and ``largest_spread``: bounds of the log speed-up that the scores are
    normalised by.
    """

    drafts: int = 5
    repairs: int = 2
    repair_depth: int = 2
    refusals: int = 3
    exploration: float = 0.8
    half_dry: float = 15.0
    fade: float = 0.08
    failed: float = 0.35
    momentum: float = 1.1
    trust: float = 0.9
    hope: float = 0.6
    least_gain: float = math.log(1.02)
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
    view = _View(tree, limits)
    if not view.open(tree.root):
        return None
    node = view.descend(rng)
    action = _action(tree, node, limits)
    parent = None if node is tree.root else node.id
    return Choice(parent, action, tree.expect(parent, action).id)


def exhausted(tree: Tree, limits: Limits | None = None) -> bool:
    """Whether nothing can be grown and nothing is pending that could change it."""
    return not tree.root.pending and not _View(tree, limits or Limits()).open(tree.root)


def _action(tree: Tree, node: Node, limits: Limits) -> Action:
    if node is tree.root:
        return "draft" if len(node.children) < limits.drafts else "restart"
    return "repair" if node.repairable else "optimise"


@dataclass(slots=True)
class _Seen:
    """What one reading of the tree says about a node and all below it.

    ``dry`` counts the attempts since the last gain in the branch, ``vain`` the node's own children
    that were no gain over it; both count a failure as a part of an attempt, and one that is under
    way as a whole one.
    """

    above: Node | None
    kids: list[Node]
    open: bool = False
    best: float | None = None
    dry: float = 0.0
    vain: float = 0.0


class _View:
    """One reading of a tree: scores and what is open, each worked out once."""

    def __init__(self, tree: Tree, limits: Limits) -> None:
        self.tree, self.limits = tree, limits
        values = sorted(tree.log_speedups())
        self.high = values[-1] if values else 0.0
        low = values[len(values) // 4] if values else 0.0
        self.spread = min(max(self.high - low, limits.smallest_spread), limits.largest_spread)
        nodes = [tree.root, *tree]
        self._seen = {"": _Seen(None, [])}
        for node in nodes[1:]:  # parents stand before their children
            above = tree.parent(node)
            self._seen[node.id] = _Seen(above, [])
            self._seen[above.id].kids.append(node)
            self._count(node)
        dry = self._seen[""].dry
        self._explore = limits.exploration * dry / (dry + limits.half_dry)
        for node in reversed(nodes):
            seen = self._seen[node.id]
            seen.open = self.can_grow(node) or any(self._seen[c.id].open for c in seen.kids)

    def norm(self, value: float | None) -> float:
        """A log speed-up as 0 … 1 of this tree's spread; 0 for a failure."""
        if value is None:
            return 0.0
        # The worst correct node is still worth more than a failure.
        return 0.1 + 0.9 * min(max(1 - (self.high - value) / self.spread, 0.0), 1.0)

    def open(self, node: Node) -> bool:
        """Whether anything here or below may be grown."""
        return self._seen[node.id].open

    def can_grow(self, node: Node) -> bool:
        """Whether the rules allow one more child here."""
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
        if self.can_grow(node) and len(node.children) < self.limits.drafts:
            return node
        while True:
            arms = [c for c in self._seen[node.id].kids if self.open(c)]
            scores = [self._branch(node, c) for c in arms]
            if self.can_grow(node):
                arms.append(node)
                scores.append(self._new(node))
            chosen = _top(arms, scores, rng)
            if chosen is node:
                return node
            node = chosen

    def _count(self, node: Node) -> None:
        """Tells a node's attempt to all above it, in the order of the nodes."""
        k, value = self.limits, node.own_value
        weight = k.failed if value is None and not node.waiting else 1.0
        self._seen[node.id].best = value
        parent = self.tree.parent(node)
        if value is None or value <= (parent.own_value or 0.0) + k.least_gain:
            self._seen[parent.id].vain += weight
        above: Node | None = parent
        while above is not None:
            seen = self._seen[above.id]
            if value is not None and (seen.best is None or value > seen.best + k.least_gain):
                seen.best, seen.dry = value, 0.0
            else:
                seen.dry += weight
            above = seen.above

    def _failures_in_a_row(self, node: Node) -> int:
        count = 0
        at: Node | None = node
        while at is not None and at.repairable:
            count += 1
            at = self._seen[at.id].above
        return count

    def _branch(self, parent: Node, node: Node) -> float:
        """What going into a child's branch is worth."""
        k = self.limits
        known = self._hoped(node) if node.value is None else self.norm(node.value)
        faded = k.fade * math.log2(1 + self._seen[node.id].dry)
        unknown = self._unknown(parent, node.visits + node.pending)
        return known + k.momentum * self._climb(node) - faded + unknown

    def _new(self, node: Node) -> float:
        """What one more child of a node is worth."""
        seen = self._seen[node.id]
        unknown = self._unknown(node, 1 + len(seen.kids))
        if node is self.tree.root:
            done = [self.norm(c.own_value) for c in seen.kids if not c.waiting]
            return sum(done) / len(done) + unknown if done else 1.0
        return self._hoped(node) - self.limits.fade * math.log2(1 + seen.vain) + unknown

    def _hoped(self, node: Node) -> float:
        """A node's own worth; for a failed one, what its repair would be worth."""
        at = node
        while at.repairable:
            at = self.tree.parent(at)
        if at is node:
            return self.norm(node.own_value)
        before = self.limits.hope if at is self.tree.root else self.norm(at.own_value)
        return self.limits.trust * before

    def _unknown(self, parent: Node, tried: int) -> float:
        seen = max(parent.visits + parent.pending, 2)
        return self._explore * math.sqrt(math.log(seen) / tried)

    def _climb(self, node: Node) -> float:
        """How far the branch has come since its first node, as 0 … 1 of the spread."""
        own = node.own_value
        if own is None or node.value is None or node.value - own < self.limits.least_gain:
            return 0.0
        return min((node.value - own) / self.spread, 1.0)


def _top(arms: Sequence[Node], scores: Sequence[float], rng: random.Random) -> Node:
    top = max(scores)
    return rng.choice([a for a, s in zip(arms, scores, strict=True) if s == top])
