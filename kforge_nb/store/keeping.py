"""Which details a document keeps when all of them would be too many bytes.

A run of thousands of candidates, each with its source, samples and what a model was asked, is
hundreds of megabytes; its file and its notebook must stay what people can send and open. The rows
of all nodes always stay. Details stay in the order of what a reader will want to see, up to a
budget; everything is still in the run's store, and the view says where something was left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["SAVED_BYTES", "bounded", "size"]

SAVED_BYTES = 32_000_000
"""A saved document is no larger than this, as far as leaving out details goes."""
NEWEST = 20
_ASKED = ("prompt", "answer")


def size(value: Any) -> int:
    """Bytes of a value as JSON; half a character, which JSON may hold, counts as three."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))


def bounded(document: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """The document at no more than ``limit`` bytes where details are what makes it larger.

    First what language models were asked and said goes, except for the winners; then, from the
    least interesting node on, all details of a node. ``left_out`` in what stays names what went;
    of a node without details all went. A document that is small enough is not changed.
    """
    whole = dict(document)
    details: Mapping[str, Any] = document["details"]
    sizes = {key: size(value) for key, value in details.items()}
    room = limit - size({**whole, "details": {}})
    if sum(sizes.values()) + 20 * len(sizes) <= room:
        return whole
    winners = _winners(document)
    kept: dict[str, Any] = {}
    for node in _ranked(document, winners):
        for entry in _smaller(details.get(node), first=node in winners):
            cost = (sizes[node] if entry is details[node] else size(entry)) + 20
            if cost <= room:
                kept[node] = entry
                room -= cost
                break
    whole["details"] = {key: kept[key] for key in details if key in kept}
    return whole


def _winners(document: Mapping[str, Any]) -> set[str]:
    chosen = {t["best"] for t in document["targets"]}
    chosen |= {
        d["node"]
        for d in document["decisions"]
        if d["installed"] or any(rest["installed"] for rest in d.get("rests", ()))
    }
    return chosen - {None}


def _ranked(document: Mapping[str, Any], winners: set[str]) -> Iterator[str]:
    """Each node once: winners, the way to them, the newest, accepted ones by speed-up, the rest."""
    rows = {row["id"]: row for row in document["nodes"]}
    newest = sorted(rows, key=lambda key: rows[key]["created"], reverse=True)
    right = [key for key in rows if rows[key]["verdict"] == "accepted"]
    right.sort(key=lambda key: rows[key]["speedup"] or 0.0, reverse=True)
    paths = [key for winner in sorted(winners) for key in _path(rows, winner)]
    order = [*sorted(winners), *paths, *newest[:NEWEST], *right, *newest]
    yield from dict.fromkeys(order)


def _path(rows: Mapping[str, Mapping[str, Any]], node: str | None) -> list[str]:
    """Ids from a node up to its draft."""
    path: list[str] = []
    while node in rows and node not in path:
        path.append(str(node))
        node = rows[str(node)]["parent"]
    return path


def _smaller(details: Mapping[str, Any] | None, first: bool) -> Iterator[Mapping[str, Any]]:
    """The forms in which details may be kept: whole only for the first, then without the asking."""
    if details is None:
        return
    gone = [field for field in _ASKED if details.get(field)]
    if first or not gone:
        yield details
    if gone:
        left_out = [*details.get("left_out", ()), *gone]
        yield {**details, **dict.fromkeys(gone, ""), "left_out": left_out}
