"""When the whole model overrules what kernels won at their places."""

from __future__ import annotations

import pytest

from kforge_nb.guard.decider import Decider
from kforge_nb.guard.measure import Timer
from kforge_nb.guard.stage import Stage
from kforge_nb.judge.evaluation import Comparison

WHOLE_US = 1000.0
SAVED_US = 40.0
"""One kernel saves 40 of 1000 µs at its places: a whole-model ratio of 1.042 is promised."""


@pytest.mark.parametrize(
    ("rest", "low", "ratio", "high", "dropped"),
    [
        ("eager", 1.01, 1.04, 1.07, False),  # as promised
        ("eager", 0.96, 0.99, 1.06, False),  # noise: neither 1 nor the promise is excluded
        ("eager", 0.98, 0.99, 1.02, True),  # the promise is excluded
        ("eager", 0.90, 0.95, 0.99, True),  # surely slower
        ("inductor", 0.98, 0.99, 1.06, True),  # a rest that fuses promises nothing
        ("inductor", 0.80, 0.99, 1.20, False),  # too noisy to say anything
        ("inductor", 0.99, 1.01, 1.03, False),
    ],
)
def test_the_whole_model_overrules_only_what_it_can_see(rest, low, ratio, high, dropped):
    """Kernels that won at their places go where the whole excludes 1 or their promise."""
    decider = Decider([], [], Timer.of(1.0), None, (), 0)
    decider.in_model["kernel"] = Comparison(
        "original", 3.0, 2.9, 3.1, 20, ours_us=20.0, against_us=20.0 + SAVED_US
    )
    stage = Stage(rest, None, frozenset({"kernel"}))
    empty = Comparison("empty", ratio, low, high, 20, ours_us=WHOLE_US / ratio, against_us=WHOLE_US)

    assert decider._loses(stage, empty) is dropped
