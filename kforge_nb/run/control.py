"""The strings by which a run is held: stop, pause and resume, from any thread.

Buttons, magics, signals and ``atexit`` only set events here; the run thread looks at them between
steps (``checkpoint``) and hands the stop event to every step that may take long.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kforge_nb.errors import BadInput

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.judge.evaluation import Evaluation

__all__ = ["Control", "Handed", "Stopped"]


class Stopped(Exception):
    """Raised inside the run thread to leave a stage when the run was asked to stop."""


@dataclass(slots=True)
class Handed:
    """A candidate that a user handed in, and the future of its evaluation.

    ``parent`` is the node that it was made from; None for a draft.
    """

    target: int
    candidate: Candidate
    parent: str | None = None
    result: Future[Evaluation] = field(default_factory=Future)


class Control:
    """Stop, pause and the inbox of handed-in candidates. All methods are thread-safe."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.reason = ""
        self._nudged = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._inbox: queue.SimpleQueue[Handed] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._paused_since: float | None = None
        self._paused_for = 0.0

    def request_stop(self, reason: str) -> None:
        """Asks the run thread to end; the first reason given is kept."""
        with self._lock:
            self.reason = self.reason or reason
            self.stop.set()
            self._running.set()
        self._nudged.set()

    def pause(self) -> None:
        """Holds the run after the step it is in; a run that was asked to stop is not held."""
        with self._lock:
            if self.stop.is_set():
                return
            if self._paused_since is None:
                self._paused_since = time.monotonic()
            self._running.clear()
        self._nudged.set()

    def nudge(self) -> None:
        """Something was asked that the run thread should look at before it waits on."""
        self._nudged.set()

    def look(self) -> None:
        """The run thread is about to look at all that was asked; later wishes are news again."""
        self._nudged.clear()

    def await_nudge(self) -> None:
        """Waits until something is asked, handed in, held or stopped; not counted as searching."""
        begun = time.monotonic()
        self._nudged.wait()
        with self._lock:
            self._paused_for += time.monotonic() - begun

    def resume(self) -> None:
        """Lets a held run go on."""
        with self._lock:
            if self._paused_since is not None:
                self._paused_for += time.monotonic() - self._paused_since
                self._paused_since = None
            self._running.set()

    @property
    def paused(self) -> bool:
        """Whether the run is held (or will be, after the present step)."""
        return not self._running.is_set()

    @property
    def news(self) -> bool:
        """Whether something was asked, held, stopped or handed in that was not yet looked at."""
        return self._nudged.is_set() or self.paused or not self._inbox.empty()

    @property
    def paused_for(self) -> float:
        """Seconds that the run was held in all."""
        with self._lock:
            now = time.monotonic() - self._paused_since if self._paused_since is not None else 0.0
            return self._paused_for + now

    def checkpoint(self, on_pause: Callable[[], None] | None = None) -> None:
        """Called by the run thread between steps: waits while held, raises Stopped on stop."""
        if self.paused and on_pause is not None:
            on_pause()
        self._running.wait()
        if self.stop.is_set():
            raise Stopped(self.reason)

    def hand_in(self, handed: Handed) -> None:
        """Queues a user's candidate; BadInput when the search has ended."""
        with self._lock:
            if self._closed:
                raise BadInput("the search of this run has ended; use %kforge resume first")
            self._inbox.put(handed)
        self._nudged.set()

    def take(self) -> Handed | None:
        """The next candidate that was handed in, if any."""
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def close_inbox(self) -> list[Handed]:
        """No more candidates are taken; returns those left over."""
        with self._lock:
            self._closed = True
        left = []
        while (handed := self.take()) is not None:
            left.append(handed)
        return left
