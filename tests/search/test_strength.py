"""Is the tree search worth it? Synthetic landscapes, fifty fixed seeds, equal evaluations."""

import math
import statistics

import pytest

from tests.search.landscapes import (
    deceptive,
    deep_good_parent,
    flat,
    mostly_failing,
    run_greedy,
    run_mcts,
    run_random,
    speedup,
)

SEEDS = range(50)
BUDGET = 60


def scores(policy, landscape):
    """Log speed-up of the best found, by seed."""
    return [math.log(max(speedup(policy(landscape(s), s, BUDGET)), 0.1)) for s in SEEDS]


@pytest.mark.parametrize("landscape", [deep_good_parent, deceptive, mostly_failing])
def test_beats_random_and_greedy(landscape):
    """Where structure is to be found the tree search must find more of it than simple policies."""
    ours = scores(run_mcts, landscape)
    for other in (run_random, run_greedy):
        theirs = scores(other, landscape)
        gains = [a - b for a, b in zip(ours, theirs, strict=True)]
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        assert statistics.mean(gains) > 2 * error


def test_reaches_the_optimum_more_often_than_random():
    """On the deceptive landscape the far optimum must be reached far more often than by chance."""
    near = math.log(6.0 * 0.7)
    ours = sum(x > near for x in scores(run_mcts, deceptive))
    theirs = sum(x > near for x in scores(run_random, deceptive))
    assert ours >= 5 * max(theirs, 1)


def test_loses_nothing_on_flat_ground():
    """Where nothing is to be found the tree search must be within noise of random."""
    gap = statistics.mean(scores(run_mcts, flat)) - statistics.mean(scores(run_random, flat))
    assert abs(gap) < 0.005
