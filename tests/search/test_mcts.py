"""Which node is grown next, and which never are."""

import random
from collections import Counter

import pytest

from kforge_nb.judge.evaluation import Verdict
from kforge_nb.search.mcts import Limits, choose, exhausted
from kforge_nb.search.tree import Tree
from tests.search.landscapes import deep_good_parent, evaluation, mostly_failing, run_mcts


def planted(*verdicts, speedup=1.5):
    """A tree with one root child for each verdict, whose root is closed."""
    tree = Tree(0)
    for verdict in verdicts:
        node = tree.expect(None, "draft")
        tree.record(node.id, node.id, evaluation(speedup, verdict))
    tree.root.closed = True
    return tree


def test_starts_with_drafts():
    """The first choices on an empty tree must be drafts from nothing, and later ones refine."""
    tree, rng, limits = Tree(0), random.Random(0), Limits(drafts=3)
    actions = []
    for _ in range(5):
        choice = choose(tree, rng, limits)
        actions.append(choice.action)
        tree.record(choice.ticket, choice.ticket, evaluation(1.5))
    assert actions[:3] == ["draft"] * 3
    assert actions[3] == "optimise"


@pytest.mark.parametrize(
    "verdict", [Verdict.SUSPICIOUS, Verdict.REFUSED, Verdict.WRAPPER, Verdict.WEAK_TASK]
)
def test_never_grows_a_cheat(verdict):
    """What cheats, breaks the contract or calls a library must never be refined or repaired."""
    tree = planted(verdict)
    assert choose(tree, random.Random(0)) is None
    assert exhausted(tree)


@pytest.mark.parametrize(
    "verdict", [Verdict.WRONG, Verdict.COMPILE_FAILED, Verdict.CRASHED, Verdict.TIMED_OUT]
)
def test_repairs_are_limited(verdict):
    """An honest failure must be repaired a limited number of times, in depth too, then left."""
    tree = planted(verdict)
    limits = Limits(repairs=2, repair_depth=2)
    actions = Counter()
    while (choice := choose(tree, random.Random(0), limits)) is not None:
        actions[choice.action] += 1
        tree.record(choice.ticket, choice.ticket, evaluation(None, verdict))
        assert sum(actions.values()) < 50
    assert actions == {"repair": 2 + 2 * 2}
    assert exhausted(tree, limits)


def test_a_repaired_node_is_refined():
    """Where a repair succeeds, the search must go on from it."""
    tree = planted(Verdict.WRONG)
    first = choose(tree, random.Random(0))
    assert (first.node, first.action) == ("0.0", "repair")
    tree.record(first.ticket, "fixed", evaluation(1.7))
    nodes = set()
    for _ in range(6):
        choice = choose(tree, random.Random(0))
        nodes.add((choice.node, choice.action))
        tree.record(choice.ticket, choice.ticket, evaluation(1.6))
    assert (first.ticket, "optimise") in nodes


def test_virtual_loss_spreads_workers():
    """Several choices without results between them must not all land on the same branch."""
    tree = planted(*[Verdict.ACCEPTED] * 4)
    parents = {choose(tree, random.Random(0)).node for _ in range(4)}
    assert len(parents) >= 3


def test_pending_children_are_not_grown():
    """A candidate without an evaluation cannot be refined."""
    tree, rng = Tree(0), random.Random(0)
    tickets = [choose(tree, rng) for _ in range(6)]
    assert all(t.node is None for t in tickets)
    tree.root.closed = True
    assert choose(tree, rng) is None
    assert not exhausted(tree)  # what is pending may still open something


def test_refusals_close_a_node():
    """A proposer with nothing more to offer must end that node at once or after a few times."""
    for closing, times in ((True, 1), (False, 3)):
        tree, rng = planted(Verdict.ACCEPTED), random.Random(0)
        count = 0
        while (choice := choose(tree, rng, Limits(refusals=3))) is not None:
            tree.refuse(choice.ticket, exhausted=closing)
            count += 1
            assert count < 10
        assert count == times
        assert exhausted(tree)


def test_a_success_forgives_refusals():
    """Refusals end a node only in a row: duplicates now and then must not close a good parent."""
    tree, rng = planted(Verdict.ACCEPTED), random.Random(0)
    for i in range(6):
        choice = choose(tree, rng, Limits(refusals=2))
        if i % 2:
            tree.record(choice.ticket, choice.ticket, evaluation(0.1, Verdict.SUSPICIOUS))
        else:
            tree.refuse(choice.ticket, exhausted=False)
    assert not exhausted(tree, Limits(refusals=2))


def test_a_stale_branch_rests_but_is_not_lost():
    """After long vain work on a branch others come first; with no others it is taken up again."""
    tree = planted(Verdict.ACCEPTED, Verdict.SLOWER)
    tree.replace_evaluation("0.1", evaluation(0.5, Verdict.SLOWER))
    for _ in range(9):
        node = tree.expect("0.0", "optimise")
        tree.record(node.id, node.id, evaluation(0.2, Verdict.SUSPICIOUS))
    assert choose(tree, random.Random(0), Limits(stale=8)).node == "0.1"
    tree["0.1"].closed = True
    assert choose(tree, random.Random(0), Limits(stale=8)).node == "0.0"


def test_the_same_seed_gives_the_same_tree():
    """A run must be repeatable: same seed, same tree; and the seed must matter."""
    trees = [run_mcts(deep_good_parent(1), s, 40).to_document() for s in (5, 5, 6)]
    assert trees[0] == trees[1]
    assert trees[0] != trees[2]


def test_ties_are_broken_by_the_seed():
    """Among equal branches the random state decides, so that seeds explore differently."""
    picks = {choose(planted(*[Verdict.ACCEPTED] * 6), random.Random(s)).node for s in range(30)}
    assert len(picks) >= 3


def test_scale_of_speedups_does_not_matter_for_order():
    """Normalisation: the better branch is visited more, whether the gap is 1.3x or 30x."""
    for good in (1.3, 30.0):
        tree = planted(Verdict.ACCEPTED, Verdict.ACCEPTED)
        tree.replace_evaluation("0.1", evaluation(good))
        tree.replace_evaluation("0.0", evaluation(1.03))
        rng = random.Random(0)
        for _ in range(12):
            choice = choose(tree, rng)
            base = tree[choice.node].evaluation.speedup
            tree.record(choice.ticket, choice.ticket, evaluation(base * 0.99))
        assert tree["0.1"].visits > tree["0.0"].visits
        assert tree["0.0"].visits > 1  # but the other is not forgotten


@pytest.mark.parametrize(("greed", "branch"), [(0.9, "0.1"), (0.1, "0.0")])
def test_greed_weighs_best_against_mean(greed, branch):
    """Two equal starts, one with good children, one with bad ones and the best: greed decides."""
    tree = planted(Verdict.ACCEPTED, Verdict.ACCEPTED)
    for parent, speedups in (("0.0", (1.5, 1.5, 1.5)), ("0.1", (0.4, 0.4, 0.4, 2.2))):
        for speedup in speedups:
            node = tree.expect(parent, "optimise")
            tree.record(node.id, node.id, evaluation(speedup))
    choice = choose(tree, random.Random(0), Limits(greed=greed, momentum=0.0, exploration=0.0))
    assert tree.path(tree[choice.node])[-2].id == branch


def test_widening_bounds_the_breadth():
    """Progressive widening: no node may take all children while its branch has others open."""
    tree = run_mcts(deep_good_parent(2), 0, 80)
    assert max(len(n.children) for n in tree) <= 12
    assert max(len(tree.path(n)) for n in tree) >= 5


def test_a_failing_landscape_ends_in_order():
    """Where most fails the search must still use its whole budget and find what works."""
    tree = run_mcts(mostly_failing(0), 0, 60)
    assert len(tree) == 60
    assert tree.best() is not None
