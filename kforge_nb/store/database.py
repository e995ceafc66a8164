"""The SQLite file under a store: opening, migrating, transactions, and errors in words.

One connection a thread (and a process: a fork never inherits one), write-ahead log so that readers
never wait, ``BEGIN IMMEDIATE`` so that writers queue rather than fail, full synchronisation so
that what was committed survives kill -9 and power loss. Every sqlite3 error becomes one
:class:`~kforge_nb.errors.StoreError` that says what to do; a failed transaction is rolled back
whole. A file that is damaged, foreign or newer is never written to.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kforge_nb.errors import StoreError
from kforge_nb.store.migrations import APPLICATION_ID, MIGRATIONS

__all__ = ["Database"]


class _Connection:
    """A connection of one thread; closed when the thread lets go of it."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self.pid = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # Closing a connection inherited through a fork could drop locks of the parent. (The
        # function is held here, because at the interpreter's end the module's names are gone.)
        if self.pid == getpid():
            self.raw.close()


class Database:
    """A store file at ``path``; made, with its folder, when it is not there.

    Args:
        path: The file.
        read_only: Never write; the file must exist.
        busy_s: How long to wait for another process's transaction.

    Raises:
        StoreError: The folder cannot be made, or the file cannot be opened, is not a store, is
            damaged, or was written by a newer version.
    """

    def __init__(self, path: Path, *, read_only: bool = False, busy_s: float = 15.0) -> None:
        self.path = Path(path).absolute()
        self.read_only = read_only
        self.busy_s = busy_s
        self._local = threading.local()
        self._all: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._closed = False
        if not read_only:
            self._make_folder()
        elif not self.path.is_file():
            raise StoreError(f"there is no store at {self.path}; check the path")
        with self.errors():
            self._check(self.connection())

    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        held: _Connection | None = getattr(self._local, "held", None)
        if held is None or held.pid != os.getpid() or self._closed:
            if self._closed:
                raise StoreError(f"the store {self.path} is closed; open it again")
            held = _Connection(self._open())
            self._local.held = held
            self._all.add(held)
        return held.raw

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the store for several queries."""
        with self.errors():
            c = self.connection()
            if c.in_transaction:
                yield c
                return
            c.execute("BEGIN")
            self._local.reading = True
            try:
                yield c
            finally:
                self._local.reading = False
                self._end(c, "ROLLBACK")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: committed when the block ends, undone when it raises."""
        with self.errors():
            c = self.connection()
            if getattr(self._local, "reading", False):
                raise StoreError("a record cannot be written inside a view that only reads")
            if c.in_transaction:  # part of a larger one
                yield c
                return
            c.execute("BEGIN IMMEDIATE")
            try:
                yield c
                c.execute("COMMIT")
            except BaseException:
                self._end(c, "ROLLBACK")
                raise

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns sqlite3 errors into a StoreError in words."""
        try:
            yield
        except sqlite3.Error as e:
            raise StoreError(self._explain(e)) from e

    def close(self) -> None:
        """Close the connections of all threads. Safe to call twice."""
        self._closed = True
        for held in list(self._all):
            if held.pid == os.getpid():
                held.raw.close()
        self._all.clear()

    # -- inside ----------------------------------------------------------------------------

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise StoreError(
                f"the folder {self.path.parent} cannot be made ({e.strerror}); "
                "choose another folder for the store by --store FOLDER (store= in Python)"
            ) from e

    def _open(self) -> sqlite3.Connection:
        mode = "ro" if self.read_only else "rwc"
        with self.errors():
            raw = sqlite3.connect(
                f"{self.path.as_uri()}?mode={mode}",
                uri=True,
                timeout=self.busy_s,
                isolation_level=None,
                check_same_thread=False,
            )
            raw.row_factory = sqlite3.Row
            raw.execute("PRAGMA foreign_keys = ON")
            raw.execute("PRAGMA synchronous = FULL")
        return raw

    def _check(self, c: sqlite3.Connection) -> None:
        version = self._version(c)
        if version < len(MIGRATIONS) and not self.read_only:
            c.execute("PRAGMA journal_mode = WAL")
            with self.write():
                for step in MIGRATIONS[self._version(c) :]:  # another process may be ahead
                    for statement in step:
                        c.execute(statement)
                c.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                c.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        elif version < len(MIGRATIONS):
            raise StoreError(
                f"the store {self.path} has schema {version}, older than {len(MIGRATIONS)}; "
                "open it for writing once to bring it up to date"
            )

    def _version(self, c: sqlite3.Connection) -> int:
        """The schema version of the file, after making sure that it is ours to touch."""
        version = int(c.execute("PRAGMA user_version").fetchone()[0])
        owner = int(c.execute("PRAGMA application_id").fetchone()[0])
        tables = int(c.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
        if owner != APPLICATION_ID and (tables or version):
            raise StoreError(
                f"{self.path} is a database of another program; choose another place for the store"
            )
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the store {self.path} was written by a newer kforge_nb (schema {version}, this "
                f"one knows {len(MIGRATIONS)}); upgrade kforge_nb or choose another store"
            )
        return version

    @staticmethod
    def _end(c: sqlite3.Connection, how: str) -> None:
        if c.in_transaction:  # some errors (a full disk) have already rolled back
            c.execute(how)

    def _explain(self, e: sqlite3.Error) -> str:
        name = str(getattr(e, "sqlite_errorname", "") or "")
        where = f"the store {self.path}"
        if name.startswith("SQLITE_FULL"):
            return f"{where} cannot grow: the disk is full. Free some space, then resume the run"
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return (
                f"{where} has been locked by another process for {self.busy_s:g} s; "
                "close that process or wait, then try again"
            )
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return (
                f"{where} is damaged or not a store ({e}). It was left as it is: move it away to "
                "start a new one, or save what can be saved with `sqlite3 FILE .recover`"
            )
        if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
            return f"{where} cannot be written ({e}); check its permissions or choose another place"
        if name.startswith("SQLITE_CANTOPEN"):
            return (
                f"{where} cannot be opened ({e}); check that its folder exists and can be "
                "written, or choose another place"
            )
        if name.startswith("SQLITE_IOERR"):
            return f"{where} cannot be read or written ({e}, {name}); check the disk, then resume"
        return f"{where} failed: {e}"
