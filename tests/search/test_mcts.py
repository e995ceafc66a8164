"""Which node is grown next, and which never are."""

import random
from collections import Counter

import pytest

from benchmarks.landscapes import deep_good_parent, evaluation, mostly_failing
from benchmarks.policies import tree_search
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.search.mcts import Limits, choose, exhausted
from kforge_nb.search.tree import Tree


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


def grown(tree, parent, *speedups):
    """Children of a node, judged; None is a failure."""
    for speedup in speedups:
        node = tree.expect(parent, "optimise")
        tree.record(node.id, node.id, evaluation(speedup))


def test_a_stale_branch_is_left_but_not_lost():
    """After long vain work on a branch a poorer one is tried; alone it is taken up again."""
    tree = planted(Verdict.ACCEPTED, Verdict.SLOWER)
    tree.replace_evaluation("0.1", evaluation(0.8, Verdict.SLOWER))
    attempts = 0
    while (choice := choose(tree, random.Random(0))).node != "0.1":
        tree.record(choice.ticket, choice.ticket, evaluation(1.4))
        attempts += 1
        assert attempts < 30
    assert attempts >= 5
    tree.refuse(choice.ticket, exhausted=True)
    assert choose(tree, random.Random(0)).node != "0.1"


def test_what_pays_is_followed():
    """A branch whose every step gains is grown at its end, however many others are open."""
    tree = planted(*[Verdict.ACCEPTED] * 4)
    grown(tree, "0.1", 1.9)
    for _ in range(10):
        choice = choose(tree, random.Random(0))
        assert choice.node == tree.best().id
        grown_to = tree.best().evaluation.speedup * 1.2
        tree.record(choice.ticket, choice.ticket, evaluation(grown_to))


def test_the_unknown_weighs_more_the_longer_nothing_is_gained():
    """The same tree with the gain last goes on from it, and with the gain first looks elsewhere."""
    found = {}
    for name, speedups in (("last", [1.0] * 20 + [2.0]), ("first", [2.0] + [1.0] * 20)):
        tree = planted(Verdict.ACCEPTED, Verdict.ACCEPTED)
        grown(tree, "0.0", *speedups)
        found[name] = choose(tree, random.Random(0), Limits(fade=0.0, momentum=0.0)).node
    assert tree.best().id not in found["first"]
    assert found == {"last": "0.22", "first": "0.1"}


def test_the_same_seed_gives_the_same_tree():
    """A run must be repeatable: same seed, same tree; and the seed must matter."""
    trees = [tree_search(deep_good_parent(1), s, 40).tree.to_document() for s in (5, 5, 6)]
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
        for _ in range(20):
            choice = choose(tree, rng)
            base = tree[choice.node].evaluation.speedup
            tree.record(choice.ticket, choice.ticket, evaluation(base * 0.99))
        assert tree["0.1"].visits > tree["0.0"].visits
        assert tree["0.0"].visits > 1  # but the other is not forgotten


@pytest.mark.parametrize(("momentum", "branch"), [(1.0, "0.0"), (0.0, "0.1")])
def test_momentum_follows_a_poor_start_that_climbs(momentum, branch):
    """A branch that came from far below is preferred to one that started and stayed ahead."""
    tree = planted(Verdict.SLOWER, Verdict.ACCEPTED)
    tree.replace_evaluation("0.0", evaluation(0.6, Verdict.SLOWER))
    tree.replace_evaluation("0.1", evaluation(1.6))
    grown(tree, "0.0", 1.3)
    grown(tree, "0.1", 1.5)
    choice = choose(tree, random.Random(0), Limits(momentum=momentum, exploration=0.0))
    assert tree.path(tree[choice.ticket])[-2].id == branch


@pytest.mark.parametrize(("fade", "branch"), [(0.3, "0.0"), (0.0, "0.1")])
def test_a_branch_fades_with_each_attempt_in_vain(fade, branch):
    """A slightly better branch gives way once it has been tried long without a gain."""
    tree = planted(Verdict.ACCEPTED, Verdict.ACCEPTED)
    tree.replace_evaluation("0.1", evaluation(1.6))
    grown(tree, "0.1", *[1.2] * 8)
    choice = choose(tree, random.Random(0), Limits(fade=fade, exploration=0.0))
    assert tree.path(tree[choice.ticket])[-2].id == branch


def test_a_failure_of_a_good_parent_is_repaired():
    """A repair is hoped to give what its parent gave, so it is worth about as much as a sibling."""
    tree = planted(Verdict.ACCEPTED)
    grown(tree, "0.0", None)
    actions = Counter()
    for _ in range(6):
        choice = choose(tree, random.Random(0))
        actions[choice.action] += 1
        tree.record(choice.ticket, choice.ticket, evaluation(None))
    assert actions["repair"] >= 2
    assert actions["optimise"] >= 2


def test_widening_bounds_the_breadth():
    """Progressive widening: no node may take all children while its branch has others open."""
    tree = tree_search(deep_good_parent(2), 0, 80).tree
    assert max(len(n.children) for n in tree) <= 12
    assert max(len(tree.path(n)) for n in tree) >= 5


def test_a_failing_landscape_ends_in_order():
    """Where most fails the search must still use its whole budget and find what works."""
    tree = tree_search(mostly_failing(0), 0, 60).tree
    assert len(tree) == 60
    assert tree.best() is not None
