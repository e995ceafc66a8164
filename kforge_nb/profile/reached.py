"""What was reached at best: many short repeats spread over time, and readings that cannot be true.

A limit is what a device does when nothing disturbs it. One long sample on a machine with other work
is disturbed as a whole, and a hundred calls in a row wait for the same foreign program; so each
figure is the fastest of many short samples, taken in turn with those of the others over a second or
so. What is still impossible then (a cache that is slower than memory) is taken again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["SUSPECT", "fastest_us", "implausible", "monotone", "suspect"]

SHORT_US = 100.0
"""What one sample lasts about, µs: short beside the slices of time that a scheduler gives."""

LEAST = 3
"""Samples of each call, however long they last."""

REPEAT = 0.5
"""A size that is slower than this part of a larger one's bandwidth is measured again."""

SUSPECT = 0.1
"""A size that stays slower than this part of a larger one's says that all of it was disturbed."""

Sampler = Callable[[Callable[[], Any], int], float]


def fastest_us(
    calls: Mapping[str, Callable[[], Any]],
    sample: Sampler,
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Microseconds of each call: the fastest of short samples that are taken in turn.

    ``sample(call, number)`` gives the µs of one of ``number`` calls in a row. Rounds over all calls
    go on for about ``seconds``; a call that takes long has only ``LEAST`` samples.
    """
    best = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    end, rounds = clock() + seconds, 0
    while rounds < LEAST or clock() < end:
        for key, call in calls.items():
            if rounds >= LEAST and best[key] > seconds * 1e6 / 20:
                continue
            number = max(1, min(50, int(SHORT_US / max(best[key], 0.1)))) if rounds else 1
            best[key] = min(best[key], sample(call, number))
        rounds += 1
    return best


def monotone(by_bytes: Mapping[int, float]) -> dict[int, float]:
    """The curve with each size at least as fast as every larger one.

    What fits into a cache that large data does not fit into is also within reach of what is behind
    it, so a smaller size that was measured slower was disturbed (or waited for threads).
    """
    found, best = {}, 0.0
    for size in sorted(by_bytes, reverse=True):
        best = max(best, by_bytes[size])
        found[size] = best
    return dict(sorted(found.items()))


def implausible(by_bytes: Mapping[int, float], part: float = REPEAT) -> list[int]:
    """The sizes whose bandwidth is below ``part`` of that of a larger size."""
    curve = monotone(by_bytes)
    return [size for size in curve if by_bytes[size] < part * curve[size]]


def suspect(by_bytes: Mapping[int, float]) -> bool:
    """Whether the curve is so far from what can be that none of its figures is to be relied on."""
    return bool(implausible(by_bytes, SUSPECT))
