"""Python's garbage collector, held back where its pauses would cost or disturb.

A graph of tens of thousands of nodes makes hundreds of thousands of objects that all stay. The
collector takes that for a reason to look through the whole heap, again and again: a second each
time in a process that has torch and a model's code loaded, and nothing is found.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_gc"]


@contextmanager
def quiet_gc() -> Iterator[None]:
    """No garbage collection while the body runs; also usable as a decorator."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
