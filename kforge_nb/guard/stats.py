"""Paired in-model samples as a Comparison, by the judge's own statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kforge_nb.judge.evaluation import Comparison
from kforge_nb.judge.statistics import paired_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compare"]


def compare(against: str, ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """The comparison of paired samples in microseconds; ``ratio`` above 1 means ours is faster.

    With too few pairs for an interval, the samples' own extremes stand in for it.

    Raises:
        ValueError: no samples, or of different number.
    """
    found = paired_ratio(ours, theirs, looks=1)
    low, high = found.low, found.high
    if not (math.isfinite(low) and math.isfinite(high) and low > 0):
        each = [b / a for a, b in zip(ours, theirs, strict=True)]
        low, high = min(each), max(each)
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
