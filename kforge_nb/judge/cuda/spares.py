"""Runners made ahead: starting a driver takes a good part of a second, and disturbs who is timed.

One spare a key, made in the background. While it starts its context it holds the device for work,
so that nothing is timed meanwhile, and while something is timed no spare is started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge_nb.judge.cuda.session import CudaCandidate

__all__ = ["Spares"]


class Spares:
    """Candidates' processes without a candidate yet; ``hold`` is the device's lock for work."""

    def __init__(self, hold: Callable[[], AbstractContextManager[None]]) -> None:
        self._hold = hold
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kforge-spares")
        self._made: dict[int, Future[CudaCandidate]] = {}
        self._closed = False

    def started(self, make: Callable[[], CudaCandidate]) -> CudaCandidate:
        """One made now; returns when its context stands."""
        with self._hold():
            made = make()
            try:
                made.runner.ready()
            except BaseException:
                made.__exit__(None, None, None)
                raise
            return made

    def make(self, key: int, make: Callable[[], CudaCandidate]) -> None:
        """Have one made in the background, unless there is one already or this is closed."""
        with self._lock:
            if not self._closed and key not in self._made:
                self._made[key] = self._thread.submit(self.started, make)

    def take(self, key: int) -> CudaCandidate | None:
        """The spare of a key, waited for if need be; None if there is none or it died."""
        with self._lock:
            future = self._made.pop(key, None)
        if future is None or future.cancelled() or future.exception() is not None:
            return None
        spare = future.result()
        if spare.runner.child.alive():
            return spare
        spare.__exit__(None, None, None)
        return None

    def waiting(self) -> list[CudaCandidate]:
        """Those that are there now, once what is under way is made."""
        with self._lock:
            futures = list(self._made.values())
        return [future.result() for future in futures if future.exception() is None]

    def drop(self, key: int) -> None:
        """End the spare of a key."""
        spare = self.take(key)
        if spare is not None:
            spare.__exit__(None, None, None)

    def close(self) -> None:
        """End all of them; none is made afterwards. Safe to call twice."""
        with self._lock:
            self._closed = True
            keys = list(self._made)
        for key in keys:
            self.drop(key)
        self._thread.shutdown(wait=True)
