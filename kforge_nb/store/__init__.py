"""The store: SQLite records of runs, and the run document."""

from kforge_nb.store.store import Store

__all__ = ["Store"]
