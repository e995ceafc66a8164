"""Where a handle reads its run from: the store, or one saved file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kforge_nb.store import document

if TYPE_CHECKING:
    from kforge_nb.run.record import Record

__all__ = ["FileSource", "Source", "StoreSource"]


class Source(Protocol):
    """Gives the run document as it is now."""

    record: Record | None

    def document(self, *, details: bool = True) -> dict[str, Any]:
        """The document, with or without the nodes' details."""


class StoreSource:
    """A run in a store, live or not."""

    def __init__(self, record: Record) -> None:
        self.record: Record | None = record
        self._record = record

    def document(self, *, details: bool = True) -> dict[str, Any]:
        """The document as the store knows it now."""
        return document.build(self._record.store, self._record.id, details=details)


class FileSource:
    """A run saved as one file; raises DocumentError when it is not a valid document."""

    record: Record | None = None

    def __init__(self, path: str | Path) -> None:
        self._data = document.load(path)

    def document(self, *, details: bool = True) -> dict[str, Any]:
        """The document as it was saved."""
        return self._data if details else {**self._data, "details": {}}
