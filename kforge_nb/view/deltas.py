"""What a live view is sent: one whole document when it opens, then only what has changed.

Two kinds of message, both plain JSON, both numbered. A whole one, to begin with::

    {"seq": 7, "doc": {..., "nodes": TABLE, "targets": TABLE, ...}}

and changes to the document that number ``of`` left behind::

    {"seq": 8, "of": 7, "set": {"progress": {...}}, "gone": ["counters"],
     "lists": {"nodes": {"gone": ["0.3"], "new": [[5, row], ...], "put": [["0.1", {"visits": 9}]]},
               "costs": {"length": 12, "put": [[11, row]]}}}

A ``TABLE`` holds a list of records by column, a column of equal values once. ``new`` rows stand at
the place they have afterwards, in ascending order; ``put`` holds changed fields only. The reader of
the browser is ``labextension/src/view/deltas.ts``; tests hold both to one set of messages.

A message holds rows up to a budget of bytes, whatever the tree's size; what did not fit goes with
the next one (:attr:`Encoder.behind`). A reader that missed a number asks for a whole message.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from kforge_nb.view.payload import size

__all__ = ["KEYED", "MESSAGE_BYTES", "Encoder", "apply", "difference", "table", "untable"]

MESSAGE_BYTES = 64_000
"""Rows of one message weigh no more than this, as JSON."""

KEYED = {"targets": "index", "decisions": "target", "nodes": "id"}
"""Lists whose rows have a key, in the order in which they get room; the others go by place."""
LISTED = ("whole", "costs")

Row = Mapping[str, Any]
Doc = Mapping[str, Any]


class Encoder:
    """Makes the messages of one view; safe from any thread."""

    def __init__(self, limit: int = MESSAGE_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._seq = 0
        self._shown: Doc | None = None
        self._behind = False

    @property
    def behind(self) -> bool:
        """Whether the last message left something out that the next one will bring."""
        return self._behind

    def whole(self) -> dict[str, Any]:
        """The document as readers have it now, for one that opens late; ``{}`` before the first."""
        with self._lock:
            return {} if self._shown is None else self._whole(self._shown)

    def advance(self, document: Doc) -> dict[str, Any] | None:
        """The message that brings readers to ``document``, or nearer; None where nothing changed.

        The document must not be changed afterwards; rows that are the same objects as before
        are taken as unchanged without a look inside.
        """
        with self._lock:
            if self._shown is None:
                self._seq, self._shown, self._behind = 1, document, False
                return self._whole(document)
            step, self._behind = _within(self._shown, document, self._limit)
            found = difference(self._shown, step)
            if not found:
                return None
            self._shown = step
            self._seq += 1
            return {"seq": self._seq, "of": self._seq - 1, **found}

    def _whole(self, document: Doc) -> dict[str, Any]:
        tables = (*KEYED, *LISTED)
        shown = {k: table(v) if k in tables else v for k, v in document.items()}
        return {"seq": self._seq, "doc": shown}


def difference(old: Doc, new: Doc) -> dict[str, Any]:
    """``set``, ``gone`` and ``lists`` of a message; empty where both say the same."""
    lists = {}
    for name, key in KEYED.items():
        if name in old and name in new and (found := _keyed(old[name], new[name], key)):
            lists[name] = found
    for name in LISTED:
        if name in old and name in new and (found := _listed(old[name], new[name])):
            lists[name] = found
    told = {n for n in (*KEYED, *LISTED) if n in old}
    parts = {
        "set": {k: v for k, v in new.items() if k not in told and (k not in old or old[k] != v)},
        "gone": [k for k in old if k not in new],
        "lists": lists,
    }
    return {name: part for name, part in parts.items() if part}


def apply(document: Doc, message: Mapping[str, Any]) -> dict[str, Any]:
    """The document after a message: what the browser does, said once more where tests can ask."""
    if "doc" in message:
        tables = (*KEYED, *LISTED)
        return {k: untable(v) if k in tables else v for k, v in message["doc"].items()}
    gone = message.get("gone", ())
    found = {k: v for k, v in document.items() if k not in gone} | message.get("set", {})
    for name, change in message.get("lists", {}).items():
        found[name] = _changed(list(found[name]), change, KEYED.get(name))
    return found


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Records by column: ``n`` rows, ``all`` what every row says, ``cols`` the rest.

    Records of unequal fields come as ``rows``, as they are.
    """
    if not rows:
        return {"n": 0}
    first = rows[0]
    if any(row.keys() != first.keys() for row in rows):
        return {"n": len(rows), "rows": rows}
    same: dict[str, Any] = {}
    columns: dict[str, list[Any]] = {}
    for key, value in first.items():
        column = [row[key] for row in rows]
        if all(v is value or (type(v) is type(value) and v == value) for v in column):
            same[key] = value
        else:
            columns[key] = column
    return {"n": len(rows), "all": same, "cols": columns}


def untable(packed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Inverse of :func:`table`, up to the order of fields."""
    if packed["n"] == 0:
        return []
    if "rows" in packed:
        return [dict(row) for row in packed["rows"]]
    same, columns = packed["all"], packed["cols"]
    return [{**same, **{k: c[i] for k, c in columns.items()}} for i in range(packed["n"])]


# -- inside --------------------------------------------------------------------------------


def _keyed(old: list[Row], new: list[Row], key: str) -> dict[str, Any]:
    before = {row[key]: row for row in old}
    after = {row[key]: row for row in new}
    kept = [row[key] for row in new if row[key] in before and _fields(before[row[key]], row)]
    stay = set(kept)
    if kept != [row[key] for row in old if row[key] in stay]:  # their order changed: all anew
        kept, stay = [], set()
    put = []
    for k in kept:
        if before[k] is not after[k]:
            changed = {f: v for f, v in after[k].items() if before[k][f] != v}
            if changed:
                put.append([k, changed])
    parts = {
        "gone": [row[key] for row in old if row[key] not in stay],
        "new": [[place, row] for place, row in enumerate(new) if row[key] not in stay],
        "put": put,
    }
    return {name: part for name, part in parts.items() if part}


def _fields(a: Row, b: Row) -> bool:
    return a is b or a.keys() == b.keys()


def _listed(old: list[Row], new: list[Row]) -> dict[str, Any]:
    put = [
        [place, row]
        for place, row in enumerate(new)
        if place >= len(old) or (old[place] is not row and old[place] != row)
    ]
    return {"length": len(new), "put": put} if put or len(new) != len(old) else {}


def _changed(rows: list[Any], change: Mapping[str, Any], key: str | None) -> list[Any]:
    if key is None:
        rows = rows[: change["length"]]
        for place, row in change["put"]:
            rows[place : place + 1] = [row]
        return rows
    gone = set(change.get("gone", ()))
    rows = [row for row in rows if row[key] not in gone]
    for place, row in change.get("new", ()):
        rows.insert(place, row)
    put = dict(change.get("put", ()))
    return [{**row, **put[row[key]]} if row[key] in put else row for row in rows]


def _within(old: Doc, new: Doc, limit: int) -> tuple[Doc, bool]:
    """``new``, but with no more changed rows than fit, and whether any had to wait.

    Rows that wait stay as they were, or stay away: each message is a step towards ``new``.
    """
    step, left, behind = dict(new), limit, False
    for name in (*KEYED, *LISTED):
        if name not in old or name not in new:
            continue
        step[name], left, waits = _rows_within(old[name], new[name], KEYED.get(name), left)
        behind = behind or waits
    return step, behind


def _rows_within(
    old: list[Row], new: list[Row], key: str | None, left: int
) -> tuple[list[Row], int, bool]:
    before: dict[Any, Row] = {row[key] if key else i: row for i, row in enumerate(old)}
    found: list[Row] = []
    waits = False
    for i, row in enumerate(new):
        known = before.get(row[key] if key else i)
        if known is row or known == row:
            found.append(known if known is not None else row)
            continue
        if left <= 0:
            waits = True
            if known is not None:
                found.append(known)
            continue
        left -= size(row) if known is None or key is None else _weight(known, row)
        found.append(row)
    return found, left, waits


def _weight(known: Row, row: Row) -> int:
    """Bytes of the fields that changed."""
    changed = {f: v for f, v in row.items() if f not in known or known[f] != v}
    return size(changed) + 16
