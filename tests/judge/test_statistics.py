"""Pure statistics: ratios, intervals, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge_nb.judge.statistics import (
    MIN_PAIRS,
    Interval,
    decide,
    interval,
    next_look,
    paired_ratio,
)

times = st.lists(st.floats(1e-6, 10.0), min_size=MIN_PAIRS, max_size=40)


@given(times, st.floats(0.1, 10.0))
def test_a_constant_factor_is_found_exactly(ours, factor):
    """However the machine drifts, pairs that differ by a factor give that factor."""
    found = paired_ratio(ours, [t * factor for t in ours])
    assert found.ratio == pytest.approx(factor, rel=1e-9)
    assert found.low <= found.ratio <= found.high


@given(times, st.randoms(use_true_random=False))
def test_swapping_sides_inverts_the_ratio(ours, random):
    """Neither side is favoured."""
    against = [t * random.uniform(0.5, 2.0) for t in ours]
    there, back = paired_ratio(ours, against), paired_ratio(against, ours)
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.low * back.high == pytest.approx(1.0)


def test_outliers_do_not_move_it():
    """A fifth of the pairs hit by another program leaves the figure where it was."""
    generator = np.random.default_rng(1)
    logs = math.log(1.5) + 0.02 * generator.standard_normal(40)
    clean = interval(logs).ratio
    logs[::5] += 3.0
    assert interval(logs).ratio == pytest.approx(clean, rel=0.03)


def test_unpaired_samples_are_an_error():
    """Samples of different length were not taken together."""
    with pytest.raises(ValueError, match="not pairs"):
        paired_ratio([1.0, 2.0], [1.0])


def _search(ratio: float, noise: float, generator: np.random.Generator, most: int = 240) -> str:
    """A whole adaptive session on simulated pairs, looks and all."""
    logs = math.log(ratio) + noise * generator.standard_t(3, most)
    n = MIN_PAIRS
    while n < most:
        decision = decide(interval(logs[:n]), 0.10)
        if decision:
            return decision
        n = next_look(n)
    found = interval(logs)
    return "faster" if found.low > 1 else "slower" if found.high < 1 else "equal"


@pytest.mark.parametrize("noise", [0.02, 0.10])
def test_equal_things_are_seldom_told_apart(noise):
    """Looking again and again at A against A must not find a difference in more than 5%."""
    generator = np.random.default_rng(2)
    found = [_search(1.0, noise, generator) for _ in range(300)]
    assert sum(f != "equal" for f in found) <= 15


def test_five_per_cent_are_found():
    """A twin 5% faster is found at the noise of a quiet machine, and never called slower."""
    generator = np.random.default_rng(3)
    found = [_search(1.05, 0.02, generator) for _ in range(100)]
    assert found.count("faster") >= 80
    assert found.count("slower") == 0


def test_a_slower_twin_is_never_called_faster():
    """3% slower: the mistake that would install a slow kernel."""
    generator = np.random.default_rng(4)
    found = [_search(0.97, 0.05, generator) for _ in range(200)]
    assert found.count("faster") <= 2


@given(st.integers(0, 500))
def test_looks_grow(n):
    """The number of looks stays logarithmic in the number of pairs."""
    assert next_look(n) >= max(MIN_PAIRS, n + 1)


def test_a_wide_interval_decides_nothing():
    """Too few or too noisy samples ask for more instead of guessing."""
    assert decide(Interval(1.2, 1.01, 1.5, 10), 0.10) is None
    assert decide(Interval(3.0, 2.0, 4.5, 10), 0.10) == "faster"
    assert decide(Interval(1.0, 0.99, 1.01, 99), 0.10) == "equal"


@settings(max_examples=20)
@given(st.integers(1, MIN_PAIRS - 3))
def test_a_handful_of_pairs_has_no_interval(n):
    """Where the level cannot be reached, the interval says so by being infinite."""
    found = interval(np.zeros(n))
    assert found.low == 0.0
    assert found.high == math.inf
