"""A text buffer with C blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Writer"]


class Writer:
    """Collects lines of C; ``block`` writes braces and indents."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """One line at the current depth; pragmas start in the first column."""
        self.lines.append(text if text.startswith("#") else "  " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """``head {`` … ``}``."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def fresh(self, prefix: str) -> str:
        """A name not used before."""
        self._names += 1
        return f"{prefix}{self._names}"

    def text(self) -> str:
        """Everything written."""
        return "\n".join(self.lines)
