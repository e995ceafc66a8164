"""Synthetic kernel landscapes with a known optimum, and the policies that search them.

A candidate is a point; a landscape answers an action on a parent with a new point and its
evaluation. All of them are pure functions of a seed, so a search over them can be repeated.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.search import mcts
from kforge_nb.search.tree import Tree

Point = tuple[int, ...]
Score = Callable[[Point], float | None]  # speed-up, None for a failure
"""Points are tuples: (family, move, move, …)."""


def evaluation(speedup: float | None, verdict: Verdict | None = None) -> Evaluation:
    if speedup is None:
        return Evaluation(verdict or Verdict.COMPILE_FAILED, "does not compile")
    timing = Comparison("eager", speedup, speedup * 0.98, speedup * 1.02, 15, 100 / speedup, 100)
    word = verdict or (Verdict.ACCEPTED if speedup > 1.02 else Verdict.SLOWER)
    return Evaluation(word, f"{speedup:.2f}x", timings=(timing,))


def chance(seed: int, *what: object) -> float:
    """A number in [0, 1) that depends on the arguments alone."""
    return int(hashlib.sha256(repr((seed, what)).encode()).hexdigest()[:12], 16) / 16**12


def deep_good_parent(seed: int) -> Score:
    """Each family looks alike at first; one path, whose every step gains, leads to 8x."""
    good = int(chance(seed, "family") * 4)

    def score(point: Point) -> float:
        base = 1.0 + 0.2 * chance(seed, "base", point[0])
        gain = 1.0
        for depth, move in enumerate(point[1:]):
            right = point[0] == good and move == int(chance(seed, "move", depth) * 3)
            gain *= 1.25 if right else 0.85 + 0.1 * chance(seed, point[: depth + 2])
        return min(base * gain, 8.0)

    return score


def deceptive(seed: int) -> Score:
    """The family that starts best ends at 2x; one that starts at 0.8x ends at 6x."""
    good = int(chance(seed, "family") * 4)

    def score(point: Point) -> float:
        steps = sum(m == int(chance(seed, "move", d) * 3) for d, m in enumerate(point[1:]))
        if point[0] == good:
            return min(0.8 * 1.4**steps * 0.97 ** (len(point) - 1 - steps), 6.0)
        top = 1.6 + 0.4 * chance(seed, "top", point[0])
        return top * (1 - 0.02 * chance(seed, point))

    return score


def flat(seed: int) -> Score:
    """Nothing is better than anything else, up to a percent of noise."""
    return lambda point: 1.1 * (1 + 0.01 * chance(seed, point))


def mostly_failing(seed: int) -> Score:
    """Four of five candidates fail; what works gains a little with depth."""

    def score(point: Point) -> float | None:
        if chance(seed, "fails", point) < 0.8:
            return None
        return 1.2 ** (len(point) - 1) * (1 + 0.3 * chance(seed, point))

    return score


def run_mcts(score: Score, seed: int, budget: int, limits: mcts.Limits | None = None) -> Tree:
    """The tree search; the proposer draws moves at random, the tree decides where."""
    rng = random.Random(seed)
    moves = random.Random(seed + 1)
    tree = Tree(0)
    points: dict[str, Point] = {}
    while len(tree) < budget:
        choice = mcts.choose(tree, rng, limits)
        if choice is None:
            break
        points[choice.ticket] = _step(points, choice.node, choice.action, moves)
        tree.record(choice.ticket, choice.ticket, evaluation(score(points[choice.ticket])))
    return tree


def run_random(score: Score, seed: int, budget: int) -> Tree:
    """Grows any node that may be grown, all with the same chance, or starts anew."""
    rng = random.Random(seed)
    moves = random.Random(seed + 1)
    tree = Tree(0)
    points: dict[str, Point] = {}
    while len(tree) < budget:
        parents = [None, *(n.id for n in tree)]
        node = rng.choice(parents)
        action = "draft" if node is None else "repair" if tree[node].repairable else "optimise"
        ticket = tree.expect(node, action).id
        points[ticket] = _step(points, node, action, moves)
        tree.record(ticket, ticket, evaluation(score(points[ticket])))
    return tree


def run_greedy(score: Score, seed: int, budget: int) -> Tree:
    """Three drafts, then always refines the best so far."""
    moves = random.Random(seed + 1)
    tree = Tree(0)
    points: dict[str, Point] = {}
    while len(tree) < budget:
        best = tree.best()
        node = None if best is None or len(tree) < 3 else best.id
        action = "draft" if node is None else "optimise"
        ticket = tree.expect(node, action).id
        points[ticket] = _step(points, node, action, moves)
        tree.record(ticket, ticket, evaluation(score(points[ticket])))
    return tree


def _step(points: dict[str, Point], node: str | None, action: str, moves: random.Random) -> Point:
    if node is None:
        return (moves.randrange(4), *(() if action == "draft" else (moves.randrange(3),)))
    parent = points[node]
    if action == "repair":  # the same place, tried again another way
        return (*parent[:-1], moves.randrange(1000))
    return (*parent, moves.randrange(3))


def speedup(tree: Tree) -> float:
    best = tree.best()
    return (best.evaluation.speedup if best else None) or 0.0
