"""Who may use the cores: many may work at once, but a timing has them to itself.

One lock for the whole process, because two runs in one notebook share the same cores.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CORES", "Cores"]


class Cores:
    """A lock with many workers or one timing; a waiting timing goes before new workers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._timing = False
        self._waiting = 0

    @contextmanager
    def work(self) -> Iterator[None]:
        """Hold the cores for work that nobody times."""
        with self._changed:
            self._changed.wait_for(lambda: not self._timing and not self._waiting)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Hold the cores alone."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._timing and self._working == 0)
                self._timing = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._timing = False
                self._changed.notify_all()


CORES = Cores()
"""The cores of this process's machine."""
