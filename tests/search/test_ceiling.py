"""What a search's own climb says about how far it can still come."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge_nb.search.allocate import TargetState, next_target
from kforge_nb.search.ceiling import saved_by_success

SHRINKING = (0.6, 0.76, 0.87, 0.93, 0.96, 0.98)
"""Each step is about two fifths of the way to the original."""
STEADY = (0.6, 0.66, 0.73, 0.81, 0.89, 0.98)
"""Each step is as large as the one before."""

speedups = st.floats(0.01, 50)


def test_shrinking_successes_point_at_a_low_ceiling():
    """Of two searches that stand alike, the one whose steps do not shrink has more to expect."""
    shrinking, steady = (saved_by_success(1.0, 2.0, climb) for climb in (SHRINKING, STEADY))
    assert steady > 3 * shrinking > 0


def test_a_large_late_step_is_a_reason_to_go_on():
    """A search past the original whose latest step was large is worth more than one that creeps."""
    large = saved_by_success(1.5, 4.0, (0.7, 0.8, 1.5))
    creeping = saved_by_success(1.5, 4.0, (0.7, 1.3, 1.45, 1.5))
    assert large > 2 * creeping > 0


def test_one_odd_step_settles_nothing():
    """After a step that no ceiling explains, the rest of the climb still counts."""
    odd = (0.01, *SHRINKING)
    assert saved_by_success(1.0, 2.0, odd) == pytest.approx(
        saved_by_success(1.0, 2.0, SHRINKING), rel=0.5
    )


def test_a_target_at_its_own_ceiling_gives_way_to_a_smaller_one():
    """Money must leave a large target that comes to a stop at the original's speed."""
    large = TargetState(
        0, "a", 0.03, 1.5, reached=0.98, climb=SHRINKING, attempts=20, gains=6, dry=2
    )
    small = TargetState(1, "b", 0.004, 1.5)
    assert next_target([large, small]).index == 1
    steady = TargetState(0, "a", 0.03, 1.5, reached=0.98, climb=STEADY, attempts=20, gains=6, dry=2)
    assert next_target([steady, small]).index == 0


@given(best=speedups, roof=st.floats(0.1, 100), climb=st.lists(speedups, max_size=40))
@settings(deadline=None, max_examples=150, derandomize=True)
def test_it_is_a_part_of_what_is_left_to_the_roofline(best, roof, climb):
    """Whatever was measured, no more is promised than the roofline leaves, nor less than nothing.

    An accepted best below the roofline always leaves something, so that no such target is dropped.
    """
    found = saved_by_success(best, roof, sorted(climb))
    best, roof = max(best, 1.0), max(roof, 1.0)
    assert 0.0 <= found <= max(1 / best - 1 / roof, 0.0) + 1e-12
    if best > 1.0 and roof > best * 1.05 and max(climb, default=best) <= best:
        assert found > 0.0


@given(roof=st.floats(1.1, 20), climb=st.lists(st.floats(0.3, 1.0), max_size=6))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_a_higher_roofline_never_promises_nothing(roof, climb):
    """The belief always keeps the roofline as a ceiling, however the search went."""
    near = [*sorted({round(s, 3) for s in climb}), 1.0]
    assert all(a <= b for a, b in itertools.pairwise(near))
    assert saved_by_success(1.0, roof, near) > 0.0
