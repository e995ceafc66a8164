"""What a target's next successes may save, seen through how its search has been climbing.

A roofline says what the hardware allows and not what a search can reach; often that is no more than
the original. The search tells it itself: each success makes a part of the way to the ceiling, so
where successes shrink, the ceiling is near. So there is a belief about the ceiling: before
the search it is the original for some targets and anything up to the roofline for the others; each
new best makes ceilings unlikely from which it would have been an odd step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["saved_by_success"]

_UNKNOWN_START = 0.7  # a first correct candidate is slower than eager more often than not
_SLOWEST = 0.01  # slower than that is as far off as anything
_STEP = 0.4  # part of the way to its ceiling (of the logarithm) that a success is expected to make
_FAR = 8  # successes that are looked ahead
_NEAR = 1.05  # a best so close to the roofline is at it, as far as anyone can measure
_HOPELESS = 0.4  # targets that cannot be made faster at all, before anything was tried
_CEILINGS = 16  # others that are told apart, up to the roofline
_NOISE = 0.02  # of a speed-up's logarithm, between two timings
_ODD = 0.02  # steps that follow no rule, so that a single one settles nothing
_REMEMBERED = 24  # of the latest new bests: earlier ones say nothing that these do not


def saved_by_success(best: float, roof: float, climb: Sequence[float]) -> float:
    """Part of the target's time that a success is expected to save.

    Where several successes are needed before anything is saved (the fastest candidate is slower
    than the original), it is the mean over them.

    Args:
        best: Accepted speed-up so far; 1 while there is none.
        roof: Speed-up at the roofline.
        climb: Speed-ups of the correct candidates that were a new best when they came, in order;
            empty where none was correct.

    Returns:
        0 … 1; 0 where the best is at the roofline, and nowhere else if it is accepted.
    """
    best, roof = max(best, 1.0), max(roof, 1.0)
    if roof <= best * _NEAR:
        return 0.0
    return _saved(best, roof, tuple(climb[-_REMEMBERED:]))


@lru_cache(maxsize=4096)
def _saved(best: float, roof: float, climb: tuple[float, ...]) -> float:
    steps = [math.log(max(speedup, _SLOWEST)) for speedup in climb]
    at = steps[-1] if steps else math.log(_UNKNOWN_START)
    if best > 1.0:
        at = max(at, math.log(best))
    belief = [(top, weight) for top, weight in _belief(math.log(roof), steps, at) if top > at]
    most = 0.0
    for n in range(1, _FAR + 1):
        left = (1 - _STEP) ** n
        saved = (w * max(1 / best - math.exp((top - at) * left - top), 0.0) for top, w in belief)
        most = max(most, sum(saved) / n)
    return most


def _belief(roof: float, steps: Sequence[float], at: float) -> list[tuple[float, float]]:
    """Ceilings (as logarithms) with their weights, which add up to 1; the roofline is the last."""
    others = (1 - _HOPELESS) / _CEILINGS
    before = [(0.0, _HOPELESS)]
    before += [(roof * i / _CEILINGS, others) for i in range(1, _CEILINGS + 1)]
    weights = [
        weight * _likelihood(top, steps) if top >= at - _NOISE or top == roof or not steps else 0.0
        for top, weight in before
    ]
    total = sum(weights)
    return [(top, weight / total) for (top, _), weight in zip(before, weights, strict=True)]


def _likelihood(top: float, steps: Sequence[float]) -> float:
    """How well a ceiling explains the steps: each makes a part of the way, as Beta(2, 3) has it."""
    found = 1.0
    for below, above in itertools.pairwise(steps):
        way = max(top - below, 0.0) + _NOISE
        part = (above - below) / way
        usual = 12 * part * (1 - part) ** 2 / way if 0 < part < 1 else 0.0
        found *= _ODD + (1 - _ODD) * usual
    return found
