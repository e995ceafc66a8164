"""Timing for the profile: many small things, interleaved, medians; on a CPU or a CUDA device.

This tells where time goes. What decides about candidates is the judge's own timing. The figure of
a call is the lower quartile of its samples: on a machine with other work, the slow samples tell of
that work. How much of it there was is told by ``ForeignLoad``.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kforge_nb.profile.device import kind_of, synchronize
from kforge_nb.workload.collection import quiet_gc

__all__ = ["ForeignLoad", "interleaved_us", "quiet_value", "sample_us"]

_SAMPLE_US = 200.0


class ForeignLoad:
    """Cores that other processes kept busy while the ``with`` body ran, in ``cores`` afterwards.

    0.0 where the system does not tell.
    """

    def __init__(self) -> None:
        self.cores = 0.0

    def __enter__(self) -> ForeignLoad:
        self._start = time.perf_counter()
        self._before = (_busy_seconds(), _own_seconds())
        return self

    def __exit__(self, *_: object) -> None:
        passed = time.perf_counter() - self._start
        busy = _busy_seconds() - self._before[0]
        own = _own_seconds() - self._before[1]
        # Both clocks tick in hundredths of a second: too short a time tells nothing.
        self.cores = max(0.0, (busy - own) / passed) if passed > 0.2 else 0.0


def _busy_seconds() -> float:
    """Seconds that all cores together spent working since the start of the machine."""
    try:
        fields = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system


def quiet_value(samples: list[float]) -> float:
    """The lower quartile."""
    return sorted(samples)[(len(samples) - 1) // 4]


def sample_us(call: Callable[[], Any], device: str, number: int = 1) -> float:
    """Microseconds per call over ``number`` calls: wall time on a CPU, events on a GPU."""
    if kind_of(device) == "cuda":
        return _cuda_sample_us(call, device, number)
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number * 1e6


def _cuda_sample_us(call: Callable[[], Any], device: str, number: int) -> float:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.device(device):
        start.record()
        for _ in range(number):
            call()
        end.record()
    synchronize(device)
    return start.elapsed_time(end) / number * 1e3


def interleaved_us(
    calls: Mapping[int, Callable[[], Any]],
    device: str,
    *,
    seconds: float = 5.0,
    rounds: tuple[int, int] = (3, 30),
    seed: int = 0,
) -> dict[int, float]:
    """Microseconds of each call (lower quartile), measured in rounds of random order.

    Each gets at least ``rounds[0]`` samples and at most ``rounds[1]``; in between ``seconds`` of
    wall time ends it. A sample repeats a short call until it lasts about 200 µs.
    """
    numbers: dict[int, int] = {}
    samples: dict[int, list[float]] = {key: [] for key in calls}
    shuffle = random.Random(seed)  # noqa: S311 - an order, not a secret
    with quiet_gc():
        for key, call in calls.items():
            call()
            once = sample_us(call, device)
            numbers[key] = max(1, min(200, int(_SAMPLE_US / max(once, 0.1))))
        deadline = time.perf_counter() + seconds
        for done in range(rounds[1]):
            if done >= rounds[0] and time.perf_counter() > deadline:
                break
            order = list(calls)
            shuffle.shuffle(order)
            for key in order:
                samples[key].append(sample_us(calls[key], device, numbers[key]))
    return {key: quiet_value(values) for key, values in samples.items()}
