"""What all parts of the store stand on: the open file, blobs, and small tools."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Any

from kforge_nb.errors import StoreError
from kforge_nb.store.database import Database
from kforge_nb.store.records import now

__all__ = ["Base", "insert", "raw_of"]


class Base:
    """An open store file with its blobs; :class:`kforge_nb.store.store.Store` adds the records."""

    def __init__(self, path: str | Path, *, read_only: bool = False, busy_s: float = 15.0) -> None:
        self.database = Database(Path(path), read_only=read_only, busy_s=busy_s)
        self.path = self.database.path

    def transaction(self) -> AbstractContextManager[Connection]:
        """All calls of this thread inside the block are committed together or not at all."""
        return self.database.write()

    def put_blob(self, data: str | bytes) -> str:
        """Keep bytes (text as UTF-8) by content; returns their sha256 in hex."""
        raw = raw_of(data) if isinstance(data, str) else data
        digest = hashlib.sha256(raw).hexdigest()
        with self.database.write() as c:
            if not c.execute("SELECT 1 FROM blobs WHERE digest = ?", (digest,)).fetchone():
                columns = {"digest": digest, "size": len(raw), "data": zlib.compress(raw)}
                insert(c, "blobs", columns)
        return digest

    def blob(self, digest: str) -> bytes:
        """Bytes by their digest.

        Raises:
            StoreError: No such blob, or it is damaged.
        """
        rows = self._rows("SELECT data FROM blobs WHERE digest = ?", digest)
        if not rows:
            raise StoreError(f"the store {self.path} holds no blob {digest!r}")
        try:
            raw = zlib.decompress(rows[0]["data"])
        except zlib.error as e:
            raise StoreError(f"blob {digest!r} of {self.path} is damaged: {e}") from e
        if hashlib.sha256(raw).hexdigest() != digest:
            raise StoreError(f"blob {digest!r} of {self.path} is damaged: its content has changed")
        return raw

    def _rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        with self.database.read() as c:
            return [dict(r) for r in c.execute(query, values)]

    def _update(
        self, table: str, columns: Mapping[str, Any], where: str, keys: tuple, missing: str
    ) -> None:
        parts = ", ".join(f"{k} = ?" for k in columns)
        with self.database.write() as c:
            done = c.execute(
                f"UPDATE {table} SET {parts} WHERE {where}",  # noqa: S608 - names from this file
                (*columns.values(), *keys),
            )
            if not done.rowcount:
                raise StoreError(f"the store {self.path} holds {missing}")

    def _must_exist(self, c: Connection, run: str) -> Row:
        row = c.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise StoreError(f"the store {self.path} holds no run with id {run!r}")
        return row

    def _touch(self, c: Connection, run: str) -> None:
        self._must_exist(c, run)
        c.execute("UPDATE runs SET updated = ? WHERE id = ?", (now(), run))


def raw_of(text: str) -> bytes:
    """A text as it is kept: UTF-8; halves of characters, which UTF-8 cannot hold, are replaced."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def insert(c: Connection, table: str, columns: Mapping[str, Any]) -> int:
    """Insert one row; the names come from this package, the values are bound."""
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    done = c.execute(
        f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 - names from this file
        tuple(columns.values()),
    )
    return done.lastrowid or 0
