"""Paired in-model samples as a Comparison, by the judge's own statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kforge_nb.judge.evaluation import Comparison
from kforge_nb.judge.statistics import LOOKS, SYSTEMATIC, paired_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compare", "looked", "told"]


def compare(
    against: str, ours: Sequence[float], theirs: Sequence[float], *, looks: int = 1
) -> Comparison:
    """The comparison of paired samples in microseconds; ``ratio`` above 1 means ours is faster.

    With too few pairs for an interval, the samples' own extremes stand in for it (they hold for all
    looks together from eight pairs on, as 2/2**8 is below the level of one look).

    Args:
        against: what the other side is.
        ours: our samples, in microseconds.
        theirs: the other side's, taken next to ours.
        looks: 1 where the number of samples did not depend on what they say; see :func:`looked`.

    Raises:
        ValueError: no samples, or of different number.
    """
    found = paired_ratio(ours, theirs, looks=looks)
    low, high = found.low, found.high
    if not (math.isfinite(low) and math.isfinite(high) and low > 0):
        each = [b / a for a, b in zip(ours, theirs, strict=True)]
        low, high = min(each) / (1 + SYSTEMATIC), max(each) * (1 + SYSTEMATIC)
    return Comparison(
        against=against,
        ratio=found.ratio,
        low=low,
        high=high,
        n=found.n,
        ours_us=float(np.median(ours)),
        against_us=float(np.median(theirs)),
        ours_samples_us=tuple(ours),
        against_samples_us=tuple(theirs),
    )


def looked(against: str, ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """As :func:`compare`, of samples that were looked at while they were taken, to stop in time.

    Stopping where the samples look good finds differences that are not there. The interval is wide
    enough that it holds for all looks of one measurement together.
    """
    return compare(against, ours, theirs, looks=LOOKS)


def told(ratio: float, low: float, high: float) -> str:
    """A ratio with its interval as all views write it: ``1.16× (0.91 to 1.41)``.

    With a third digit where two would hide on which side of 1 an end lies.
    """
    if "1.00" in (f"{low:.2f}", f"{high:.2f}"):
        return f"{ratio:.3f}× ({low:.3f} to {high:.3f})"
    return f"{_short(ratio)}× ({_short(low)} to {_short(high)})"


def _short(value: float) -> str:
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
