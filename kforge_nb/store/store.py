"""The store: every run's facts, on disk before anybody sees them.

It holds plain records (see :mod:`kforge_nb.store.migrations`) and draws no conclusions. Each method
is one transaction; several belong together inside ``with store.transaction():``. All methods may
be called from any thread. Runs are named by their id; ``find_run`` turns a name into one.
"""

from __future__ import annotations

from types import TracebackType

from kforge_nb.store.nodes import NodeRecords
from kforge_nb.store.runs import RunRecords

__all__ = ["Store"]


class Store(RunRecords, NodeRecords):
    """Runs, targets, nodes, costs, events, decisions and blobs in one SQLite file.

    Args:
        path: The file; made, with its folder, when it is not there.
        read_only: Never write; the file must exist.
        busy_s: How long to wait for another process's transaction before it is an error.

    Raises:
        StoreError: See :class:`kforge_nb.store.database.Database`; any method may raise it too.
    """

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def close(self) -> None:
        """Close the file. Safe to call twice; other threads' next call raises StoreError."""
        self.database.close()
