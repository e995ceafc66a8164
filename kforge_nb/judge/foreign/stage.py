"""Timed calls of a foreign candidate on a GPU where no CUDA graph can hold them.

Much that others write launches on the default stream, waits for the device, or compiles when it is
first called; none of that can be captured. Its calls are then made on a stream, flush and call by
turns, and the whole device is waited for at the end, so that work on other streams counts too. What
the host needs between launches counts as well, and that is said.
"""

from __future__ import annotations

from typing import Any

import torch

from kforge_nb.judge.extension.stage import DeviceStage

__all__ = ["StreamedStage"]


class StreamedStage(DeviceStage):
    """Calls one by one instead of a graph; the rest is a :class:`DeviceStage`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._wait = torch.cuda.synchronize  # as it was before the candidate was loaded
        self._calls = 1

    def prepare(self, calls: int) -> None:
        """Make a few calls that do not count."""
        self._calls = calls
        self._held.clear()
        for inputs in self._slots[:2]:
            self._flush()
            self._forward(inputs)
        self._wait(self._device)

    def replay(self, count: int, empty: bool) -> int:
        """So many times ``calls`` flushes, with or without a call after each; nanoseconds."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        forward, slots, held = self._forward, self._slots, self._held
        start.record()
        for _ in range(count):
            for i in range(self._calls):
                self._flush()
                if not empty:
                    held.append(forward(slots[i % len(slots)]))
        end.record()
        self._wait(self._device)
        return int(start.elapsed_time(end) * 1e6)
