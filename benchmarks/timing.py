"""Interleaved timing that can be trusted, or says that it cannot.

Two things timed one after the other see different machines; so every round times every contender
once, in random order, over a batch long enough for the clock. What is compared is the ratio inside
a round. While the rounds run, :class:`Watch` counts the CPU time that *other* processes took: a
comparison under foreign load is marked, never silently reported.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ALLOCATOR", "Comparison", "Watch", "allocator_environment", "compare", "interleave"]

Call = Callable[[], object]

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
"""glibc keeps freed blocks, so that both sides time kernels rather than page faults."""


def allocator_environment(threads: int) -> dict[str, str]:
    """This process's environment with :data:`ALLOCATOR` and a number of OpenMP threads."""
    return {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": str(threads)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """``ratio`` is against / ours (above 1: ours is faster), with its 95% interval."""

    ratio: float
    low: float
    high: float
    n: int
    ours_us: float
    against_us: float


class Watch:
    """CPU time that other processes took while this one was timing.

    ::

        with Watch() as watch:
            ...
        watch.foreign   # share of one CPU that others used, 0.0 to the number of CPUs
    """

    def __init__(self) -> None:
        self.foreign = 0.0
        self.known = Path("/proc/stat").exists()
        self._start = (0.0, 0.0, 0.0)

    def __enter__(self) -> Watch:
        self._start = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        busy, own, clock = (b - a for a, b in zip(self._start, self._read(), strict=True))
        if self.known and clock > 0:
            self.foreign = max(0.0, busy - own) / clock

    def _read(self) -> tuple[float, float, float]:
        """Seconds that all CPUs were busy (or stolen), that this process ran, and the clock."""
        times = os.times()
        busy = 0.0
        if self.known:
            fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            user, nice, system, _idle, _wait, irq, soft, steal = fields
            busy = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
        return busy, times.user + times.system, time.perf_counter()


def _batch(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def interleave(
    calls: Mapping[str, Call],
    *,
    seconds: float,
    batch_seconds: float = 0.01,
    least: int = 10,
    most: int = 400,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Seconds per call of every contender, one figure a round, rounds in random order.

    Runs until ``seconds`` have passed, but at least ``least`` and at most ``most`` rounds. Each
    figure is the mean of enough calls to fill ``batch_seconds``.
    """
    rng = random.Random(seed)
    repeats = {}
    for name, call in calls.items():
        _batch(call, 2)
        repeats[name] = max(1, round(batch_seconds / max(_batch(call, 2), 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    end = time.perf_counter() + seconds
    for done in range(most):
        if done >= least and time.perf_counter() >= end:
            break
        rng.shuffle(order)
        for name in order:
            samples[name].append(_batch(calls[name], repeats[name]))
    return samples


def compare(ours: list[float], against: list[float], *, seed: int = 0) -> Comparison:
    """Median ratio of paired rounds, with a bootstrap interval of that median (2000 draws)."""
    rng = random.Random(seed)
    ratios = [a / o for o, a in zip(ours, against, strict=True)]
    draws = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return Comparison(
        ratio=statistics.median(ratios),
        low=draws[int(0.025 * len(draws))],
        high=draws[int(0.975 * len(draws))],
        n=len(ratios),
        ours_us=statistics.median(ours) * 1e6,
        against_us=statistics.median(against) * 1e6,
    )
