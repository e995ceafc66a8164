"""Device time of calls on a GPU with a cold cache: what a kernel costs, not what its launch does.

Events around each call read the device's clock; a wait at the head of the queue lets the host run
ahead, so that a call of many small kernels shows what the device does and not how fast Python
launches. Before every call more than the second-level cache holds is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from kforge_nb.profile.timing import quiet_value
from kforge_nb.workload.collection import quiet_gc

__all__ = ["ColdTimer"]

_FLUSHES = 3
_LEAST_US = 0.2
_BATCH = 8
_MOST_AHEAD_S = 0.02
_LAUNCH_S = 40e-6  # what the host takes to enqueue the flush and the two events of one sample


class ColdTimer:
    """Times calls on one GPU, on torch's current stream there."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        properties = torch.cuda.get_device_properties(self.device)
        size = _FLUSHES * (int(getattr(properties, "L2_cache_size", 0)) or 64 << 20)
        self._clock_hz = 1e3 * float(getattr(properties, "clock_rate", 0) or 2_000_000)
        self._flushed = torch.ones(size // 4, device=self.device)
        self._sink = torch.zeros((), device=self.device)

    def us(self, call: Callable[[], Any], *, seconds: float = 0.05) -> float:
        """Microseconds of the device for one call: the lower quartile of cold samples.

        ``seconds`` is about how long it may take; three batches are measured in any case. What
        ``call`` raises passes through.
        """
        with torch.cuda.device(self.device), quiet_gc():
            host = self._host_seconds(call)
            samples: list[float] = []
            nothing: list[float] = []
            deadline = time.perf_counter() + seconds
            batches = 0
            while batches < 3 or (batches < 20 and time.perf_counter() < deadline):
                self._batch(call, host, samples, nothing)
                batches += 1
        return max(quiet_value(samples) - min(nothing), _LEAST_US)

    def _host_seconds(self, call: Callable[[], Any]) -> float:
        """What the host takes to launch a call once it is warm."""
        call()
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        call()
        spent = time.perf_counter() - start
        torch.cuda.synchronize(self.device)
        return spent

    def _batch(
        self, call: Callable[[], Any], host: float, samples: list[float], nothing: list[float]
    ) -> None:
        """Samples of the call, in µs, and one of two events with nothing in between."""
        number = max(1, min(_BATCH, int(_MOST_AHEAD_S / (host + _LAUNCH_S))))
        pairs = [self._pair() for _ in range(number + 1)]
        ahead = min((number + 1) * (1.5 * host + _LAUNCH_S), _MOST_AHEAD_S)
        torch.cuda._sleep(int(ahead * self._clock_hz))
        for index, (start, end) in enumerate(pairs):
            torch.sum(self._flushed, dim=0, out=self._sink)
            start.record()
            if index:
                call()
            end.record()
        torch.cuda.synchronize(self.device)
        times = [1e3 * start.elapsed_time(end) for start, end in pairs]
        nothing.append(times[0])
        samples.extend(times[1:])

    @staticmethod
    def _pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
