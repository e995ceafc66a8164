"""A wait that says now and then how the run stands: one line, renewed in its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["EVERY_S", "wait_telling"]

EVERY_S = 15.0
"""Seconds between two lines."""

WIDTH = 200


class Waited(Protocol):
    """What can be waited for."""

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the end; TimeoutError after ``timeout`` seconds."""

    def status(self) -> str:
        """How it stands, in one line."""


def wait_telling(
    run: Waited,
    tell: Callable[[str], None] | None = None,
    every_s: float = EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Waits for the end of a run; ``tell`` gets a line after each ``every_s`` seconds of it.

    Left out, the line is displayed, and renewed in its place where a notebook can do that. What
    ``run.wait`` raises passes through, but for its TimeoutError.
    """
    tell = _Line() if tell is None else tell
    begun = clock()
    while True:
        try:
            run.wait(every_s)
        except TimeoutError:
            line = f"waiting for {_passed(clock() - begun)}: {run.status()}"
            tell(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…")
        else:
            return


def _passed(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class _Line:
    """One displayed line of text whose words change."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, text: str) -> None:
        from IPython.display import display

        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
