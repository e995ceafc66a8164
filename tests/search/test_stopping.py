"""Each rule for stopping, at its edge."""

from dataclasses import replace

import pytest

from benchmarks.landscapes import evaluation
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.search import stopping
from kforge_nb.search.stopping import RunFacts, RunRules, TargetRules
from kforge_nb.search.tree import Tree


def tree_of(*speedups, share=None):
    """A tree of drafts; None is a failure."""
    tree = Tree(0)
    for i, speedup in enumerate(speedups):
        node = tree.expect(None, "draft")
        found = evaluation(speedup)
        tree.record(node.id, str(i), replace(found, roofline_share=share if speedup else None))
    return tree


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (RunFacts(judged=49), None),
        (RunFacts(judged=50), "budget of 50"),
        (RunFacts(judged=48, pending=2), "budget of 50"),
        (RunFacts(seconds=59.9), None),
        (RunFacts(seconds=60.0), "time limit of 60 s"),
        (RunFacts(spent=1.5, next_cost=0.5), None),
        (RunFacts(spent=1.5, next_cost=0.51), "could exceed the 2.00 USD"),
        (RunFacts(spent=1.0, reserved=0.6, next_cost=0.5), "could exceed the 2.00 USD"),
        (RunFacts(spent=2.0, next_cost=0.0), None),
        (RunFacts(stop="stopped by the user"), "stopped by the user"),
    ],
)
def test_a_run_stops_at_its_limits(facts, word):
    """Budget, time, money and Stop each end a run exactly at the limit, never after it."""
    found = stopping.run(facts, RunRules(budget=50, max_cost=2.0, time_limit=60.0))
    assert (found is None) if word is None else (word in found)


def test_sums_of_cents_do_not_stop_early():
    """Ten calls of 0.1 USD fit into 1 USD although their floating-point sum does not."""
    rules = RunRules(max_cost=1.0)
    assert stopping.run(RunFacts(spent=sum([0.1] * 9), next_cost=0.1), rules) is None
    assert stopping.run(RunFacts(spent=sum([0.1] * 10), next_cost=0.1), rules) is not None


def test_no_limits_never_stop():
    """Without limits a run goes on."""
    assert stopping.run(RunFacts(10**6, 0, 1e6, 0, 1e6, 1e9), RunRules()) is None


def test_a_target_stops_at_its_roofline():
    """Near the roofline there is nothing left to win."""
    rules = TargetRules(roofline=0.9)
    assert stopping.target(tree_of(2.0, share=0.89), rules) is None
    assert "90% of the roofline" in stopping.target(tree_of(2.0, share=0.9), rules)


def test_roofline_share_from_times():
    """Where the judge gave no share, the times of original and roofline must do."""
    tree = tree_of(2.0)
    assert stopping.best_share(tree) is None
    assert stopping.best_share(tree, eager_us=100.0, roofline_us=40.0) == pytest.approx(0.8)
    assert stopping.best_share(tree_of(0.5), eager_us=100.0, roofline_us=40.0) is None


def test_patience_counts_since_the_last_gain():
    """Vain candidates in a row end a target; a new best starts the count again."""
    rules = TargetRules(patience=3)
    assert stopping.target(tree_of(1.5, 1.4, None), rules) is None
    assert "3 candidates in a row" in stopping.target(tree_of(1.5, 1.4, None, 1.5), rules)
    assert stopping.target(tree_of(1.5, 1.4, None, 1.6, 1.2), rules) is None
    assert "3 candidates" in stopping.target(tree_of(None, None, None), rules)


def test_a_gain_within_noise_is_none():
    """A best that is better by half a percent must not renew the patience."""
    assert stopping.dry(tree_of(1.5, 1.505)) == 1
    assert stopping.gains(tree_of(1.5, 1.505, 2.0)) == 2


def test_own_budget_of_a_target():
    """A target's own budget counts candidates under way too."""
    tree = tree_of(1.5)
    assert stopping.target(tree, TargetRules(budget=2)) is None
    tree.expect(None, "draft")
    assert "2 candidates" in stopping.target(tree, TargetRules(budget=2))


def test_weak_task_ends_the_target():
    """Inputs that cannot tell right from wrong make every further candidate a waste."""
    tree = Tree(0)
    node = tree.expect(None, "draft")
    tree.record(node.id, "d", evaluation(1.5, Verdict.WEAK_TASK))
    assert "cannot tell right from wrong" in stopping.target(tree)


def test_exhausted_tree():
    """A proposer that has nothing more ends the target, but not while something is under way."""
    tree = Tree(0)
    first, second = tree.expect(None, "draft"), tree.expect(None, "draft")
    tree.refuse(first.id, exhausted=True)
    assert stopping.target(tree) is None
    tree.refuse(second.id, exhausted=True)
    assert "nothing more to try" in stopping.target(tree)


def test_coming_closer_to_the_original_is_a_gain():
    """Candidates that are still slower, but faster than all before, are not in vain."""
    tree = tree_of(0.4, None, 0.6, 0.9)
    assert (stopping.gains(tree), stopping.dry(tree)) == (3, 0)
    assert stopping.reached(tree) == pytest.approx(0.9)
    assert stopping.reached(tree_of(None)) is None


def test_the_climb_ends_at_the_fastest():
    """Each new best in order, failures and luck left out; the last one is the fastest there is."""
    tree = tree_of(0.4, None, 0.6, 0.604, 0.5)
    assert stopping.climb(tree) == pytest.approx((0.4, 0.604))
    assert stopping.climb(tree)[-1] == stopping.reached(tree)
    assert stopping.climb(tree_of(None)) == ()


def test_no_patience_where_money_decides():
    """Without patience no number of vain candidates ends a target."""
    assert stopping.target(tree_of(*[None] * 50), TargetRules(patience=None)) is None
