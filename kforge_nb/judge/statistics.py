"""How two sides' batch times become a ratio with an interval, and when it is decided. Pure.

**In one process.** The samples are paired: both batches of a pair ran next to each other in random
order, so drift of the machine cancels in the pair's log-ratio. The estimate is the Hodges-Lehmann
median of those (up to 29% of the pairs may be spoilt before it breaks down), its interval comes
from Wilcoxon's signed ranks, which assume only that noise hits both sides alike. Looking again and
again until it is decided would find differences that are not there: each of at most ``LOOKS`` looks
uses the level that keeps the error of all of them together at 5% (Pocock's boundary).

**Over processes.** Two processes that run the very same code differ for as long as they live
(where their memory lies, which core they got): by 1 to 2% on a quiet machine with two cores, by far
more on a busy one, and no number of samples from one process shows that. A first look therefore
widens its interval by ``SYSTEMATIC``, and a confirmation takes processes as its units: each fresh
one gives one ratio, the median of its pairs, and the interval is Student's over those, at 99% a
look, from the third process to the twelfth. Simulated over between 0.5 and 3% of spread among
processes, with heavy tails and on a machine that is far overloaded, equal sides are told apart in
at most 4.1% of the confirmations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "LEAST_PROCESSES",
    "LOOKS",
    "MIN_PAIRS",
    "MOST_PROCESSES",
    "SYSTEMATIC",
    "Interval",
    "across",
    "decide",
    "decide_across",
    "interval",
    "may_be_moved",
    "middle",
    "next_look",
    "paired_ratio",
]

_UNEVEN, _MORE_UNEVEN = 1.2, 1.5
"""Honest kernels: up to 1.15; to 1.4 with twice as many busy threads as there are cores."""
_MORE_AHEAD = 1.2
"""Honest kernels: up to 1.02; to 1.04 with twice as many busy threads as there are cores."""
LOOKS = 10
SYSTEMATIC = 0.01
_POCOCK_Z = 2.555  # ten looks, 5% for all of them together, two-sided
_SINGLE_Z = 1.96
MIN_PAIRS = 10
LEAST_PROCESSES, MOST_PROCESSES = 3, 12
_STUDENT_99 = (9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106)
_LEAST_SPREAD = 0.005  # a few processes may agree by chance better than processes do
_EQUAL, _WIDE = 0.025, 0.25


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with the interval that holds for all looks together."""

    ratio: float
    low: float
    high: float
    n: int

    @property
    def width(self) -> float:
        """Relative width: high over low, minus one."""
        return self.high / self.low - 1.0 if self.low > 0 else math.inf


def paired_ratio(ours: Sequence[float], against: Sequence[float], looks: int = LOOKS) -> Interval:
    """Ratio ``against / ours`` (above 1: ours is faster) of paired positive times."""
    if len(ours) != len(against):
        raise ValueError(f"{len(ours)} and {len(against)} samples are not pairs")
    logs = np.log(np.asarray(against, dtype=np.float64)) - np.log(
        np.asarray(ours, dtype=np.float64)
    )
    return interval(logs, looks)


def interval(logs: np.ndarray, looks: int = LOOKS) -> Interval:
    """Estimate and interval from the pairs' log-ratios; ``looks`` is 1 for a fixed sample size."""
    n = len(logs)
    if n == 0 or not np.isfinite(logs).all():
        raise ValueError("log-ratios must be finite, and there must be some")
    first, second = np.triu_indices(n)
    walsh = np.sort((logs[first] + logs[second]) / 2)
    z = _SINGLE_Z if looks == 1 else _POCOCK_Z
    middle = n * (n + 1) / 4
    spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    cut = math.floor(middle - z * spread)
    if cut < 0:
        low, high = -math.inf, math.inf
    else:
        low, high = float(walsh[cut]), float(walsh[len(walsh) - 1 - cut])
    margin = math.log1p(SYSTEMATIC)
    return Interval(
        math.exp(float(np.median(walsh))),
        math.exp(low - margin),
        math.exp(high + margin),
        n,
    )


def middle(values: Sequence[float]) -> float:
    """Hodges-Lehmann's median; 29% of the values may be anything before it breaks down."""
    array = np.asarray(values, dtype=np.float64)
    first, second = np.triu_indices(len(array))
    return float(np.median((array[first] + array[second]) / 2))


def next_look(n: int) -> int:
    """How many pairs to have at the look after the one at ``n``: half as many again."""
    return MIN_PAIRS if n < MIN_PAIRS else n + max(4, n // 2)


def decide(found: Interval, narrow: float) -> str | None:
    """``faster``, ``slower``, ``equal`` (narrow, and neither), or None: more samples are needed.

    A difference is decided by the interval leaving 1 out, but only once the interval is narrower
    than ``narrow`` or the ratio is far from 1; so a figure that is shown is never a wild guess.
    """
    far = found.low > 1.0 + narrow or found.high < 1.0 / (1.0 + narrow)
    if found.width > narrow and not far:
        return None
    if found.low > 1.0:
        return "faster"
    if found.high < 1.0:
        return "slower"
    return "equal" if found.width <= 2.5 * SYSTEMATIC else None


def may_be_moved(low: float, high: float, uneven: float, ahead: float = 1.0) -> bool:
    """Whether a speed-up may be no more than work that was moved from timed calls to others.

    ``low`` and ``high`` bound the ratio. ``uneven`` is how many times over all calls together used
    the CPU time that it rests on. What is gained that way is no more than that; and far from 1 it
    is not an honest kernel's. ``ahead`` is how many times as long a timed call would take with what
    the calls before its batch usually use too much: that is told closely, so all of it counts.
    """
    if low > 1.0 and (low <= ahead or ahead > _MORE_AHEAD):
        return True
    if uneven <= _UNEVEN or high < 1.0:
        return False
    return uneven > _MORE_UNEVEN or low <= uneven


def across(ratios: Sequence[float], pairs: int = 0) -> Interval:
    """The ratio over several processes, from one ratio of each; at least ``LEAST_PROCESSES``.

    ``pairs`` is how many pairs they took together, for ``Interval.n``.
    """
    if not LEAST_PROCESSES <= len(ratios) <= MOST_PROCESSES:
        raise ValueError(
            f"{len(ratios)} processes, not {LEAST_PROCESSES} to {MOST_PROCESSES}, give no interval"
        )
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    middle = float(logs.mean())
    spread = max(float(logs.std(ddof=1)), _LEAST_SPREAD)
    half = _STUDENT_99[len(ratios) - LEAST_PROCESSES] * spread / math.sqrt(len(ratios))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half), pairs)


def decide_across(found: Interval) -> str | None:
    """``faster``, ``slower``, ``equal`` (within 2.5% both ways), or None: one more process.

    An interval wider than ``_WIDE`` decides nothing unless all of it is as far from 1: on a machine
    that is far overloaded even a dozen processes may all be lucky.
    """
    far = found.low > 1.0 + _WIDE or found.high < 1.0 / (1.0 + _WIDE)
    if found.width > _WIDE and not far:
        return None
    if found.low > 1.0:
        return "faster"
    if found.high < 1.0:
        return "slower"
    near = 1.0 + _EQUAL
    return "equal" if found.low > 1.0 / near and found.high < near else None
