"""Policies that search a landscape with a number of evaluations: ours, and what it must beat.

Ours is the search of the package itself: its tree, its choice of node, its rules for stopping, its
allocation, with two candidates under way as in a run. The others are told each verdict at once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from benchmarks.landscapes import Landscape, Point
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.protocol import Action
from kforge_nb.search import allocate, mcts, stopping
from kforge_nb.search.tree import Node, Tree

__all__ = ["POLICIES", "Searched", "best_of_n", "greedy", "random_growth", "tree_search"]

UNDER_WAY = 2
_DRAFTS = 3


class Searched:
    """A tree grown on a landscape, with the point of each node."""

    def __init__(self, landscape: Landscape) -> None:
        self.landscape = landscape
        self.tree = Tree(0)
        self.points: dict[str, Point] = {}

    def propose(self, ticket: str, moves: random.Random) -> Evaluation:
        """Writes the candidate of a pending node and measures it; the tree hears of it later."""
        node = self.tree[ticket]
        parent = None if node.parent is None else self.points[node.parent]
        self.points[ticket] = self.landscape.step(parent, node.action, moves)
        return self.landscape.measure(self.points[ticket], len(self.points))

    def grow(self, parent: str | None, action: Action, moves: random.Random) -> Node:
        """One candidate, proposed and judged."""
        ticket = self.tree.expect(parent, action).id
        return self.tree.record(ticket, ticket, self.propose(ticket, moves))

    @property
    def reached(self) -> float:
        """True speed-up of the kernel that would be installed; 1 where none would be."""
        best = self.tree.best()
        found = best.evaluation if best else None
        if best is None or found is None or found.verdict is not Verdict.ACCEPTED:
            return 1.0
        return self.landscape.truth(self.points[best.id]) or 1.0


Policy = Callable[[Landscape, int, int], Searched]
"""Landscape, seed and evaluations to what was searched."""


def tree_search(
    landscape: Landscape, seed: int, budget: int, limits: mcts.Limits | None = None
) -> Searched:
    """The package's own search, as a run conducts it for its only target."""
    found = Searched(landscape)
    tree, rng, moves = found.tree, random.Random(seed), random.Random(seed + 1)
    rules = stopping.RunRules(budget=budget)
    own = stopping.TargetRules(patience=budget + 1)
    rates = allocate.Rates()
    flying: deque[tuple[str, Evaluation]] = deque()
    while True:
        choice = None
        if len(flying) < UNDER_WAY and _goes_on(tree, rules, own, rates, len(flying)):
            choice = mcts.choose(tree, rng, limits)
        if choice is not None:
            flying.append((choice.ticket, found.propose(choice.ticket, moves)))
            continue
        if not flying:
            return found
        ticket, evaluation = flying.popleft()
        before = stopping.gains(tree)
        node = tree.record(ticket, ticket, evaluation)
        rates.observe("kernel", node.action, stopping.gains(tree) > before)


def _goes_on(
    tree: Tree,
    rules: stopping.RunRules,
    own: stopping.TargetRules,
    rates: allocate.Rates,
    pending: int,
) -> bool:
    if stopping.run(stopping.RunFacts(len(tree), pending), rules) or stopping.target(tree, own):
        return False
    best = tree.best()
    reached = max((best.evaluation.speedup if best and best.evaluation else None) or 1.0, 1.0)
    state = allocate.TargetState(
        0,
        "kernel",
        share=1.0,
        headroom=2 * reached,
        best=reached,
        attempts=len(tree),
        gains=stopping.gains(tree),
        dry=stopping.dry(tree),
        pending=tree.root.pending,
        action="optimise" if len(tree) else "draft",
    )
    return isinstance(allocate.next_target([state], rates), allocate.Pick)


def greedy(landscape: Landscape, seed: int, budget: int) -> Searched:
    """Three drafts, then always refines the fastest so far; what fails is repaired once."""
    found = Searched(landscape)
    moves = random.Random(seed + 1)
    last: Node | None = None
    while len(found.tree) < budget:
        best = found.tree.best()
        if last is not None and last.repairable and last.action != "repair":
            last = found.grow(last.id, "repair", moves)
        elif best is None or len(found.tree) < _DRAFTS:
            last = found.grow(None, "draft", moves)
        else:
            last = found.grow(best.id, "optimise", moves)
    return found


def best_of_n(landscape: Landscape, seed: int, budget: int) -> Searched:
    """Drafts only, each from nothing."""
    found = Searched(landscape)
    moves = random.Random(seed + 1)
    while len(found.tree) < budget:
        found.grow(None, "draft", moves)
    return found


def random_growth(landscape: Landscape, seed: int, budget: int) -> Searched:
    """Grows any node that may be grown, all with the same chance, or starts anew."""
    found = Searched(landscape)
    rng, moves = random.Random(seed), random.Random(seed + 1)
    while len(found.tree) < budget:
        node = rng.choice([None, *found.tree])
        if node is None:
            found.grow(None, "draft", moves)
        else:
            found.grow(node.id, "repair" if node.repairable else "optimise", moves)
    return found


POLICIES: dict[str, Policy] = {
    "tree search": tree_search,
    "greedy": greedy,
    "best of n": best_of_n,
    "random": random_growth,
}
