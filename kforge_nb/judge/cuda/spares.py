"""Runners made ahead, and ended aside: a driver takes its time for both, and disturbs who is timed.

One spare a key, or for a confirmation as many as it needs processes; made in the background, side
by side. While one starts its context it holds the device for work, so that nothing is timed
meanwhile, and while something is timed no spare is started. The same for the end of a process: the
driver unlocks its memory, gives back what it held on the device and wipes it, which takes longer
than a second where inputs are large, and nobody has to wait for that.
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

_AT_ONCE = 3


class Spares:
    """Candidates' processes without a candidate yet; ``hold`` is the device's lock for work."""

    def __init__(self, hold: Callable[[], AbstractContextManager[None]]) -> None:
        self._hold = hold
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kforge-spares")
        self._ends = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kforge-ends")
        self._made: dict[int, list[Future[CudaCandidate]]] = {}
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

    def aside(self, end: Callable[[], None]) -> None:
        """End a process in the background, while nothing is timed; at once where this is closed."""
        with self._lock:
            if not self._closed:
                self._ends.submit(self._ended, end)
                return
        end()

    def _ended(self, end: Callable[[], None]) -> None:
        with self._hold():
            end()

    def make(self, key: int, make: Callable[[], CudaCandidate], count: int = 1) -> None:
        """Have some made in the background, until there are ``count``; none once this is closed."""
        with self._lock:
            there = self._made.setdefault(key, []) if not self._closed else []
            while not self._closed and len(there) < count:
                there.append(self._threads.submit(self.started, make))

    def take(self, key: int) -> CudaCandidate | None:
        """A spare of a key, waited for if need be; None if there is none or it died."""
        with self._lock:
            futures = self._made.get(key)
            future = futures.pop(0) if futures else None
            if not futures:
                self._made.pop(key, None)
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
            futures = [future for made in self._made.values() for future in made]
        return [future.result() for future in futures if future.exception() is None]

    def drop(self, key: int) -> None:
        """End the spares of a key."""
        while key in self._made:
            spare = self.take(key)
            if spare is not None:
                spare.__exit__(None, None, None)

    def close(self) -> None:
        """End all of them and wait for all ends; none is made afterwards. Safe to call twice."""
        with self._lock:
            self._closed = True
            keys = list(self._made)
        for key in keys:
            self.drop(key)
        self._threads.shutdown(wait=True)
        self._ends.shutdown(wait=True)
