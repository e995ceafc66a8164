"""Where the items of a search tree stand in still pictures: steps to the right, siblings down.

The browser's twin is ``labextension/src/view/layout.ts``; a test holds both to one fixture. A
parent stands in the row of its first child, the next sibling in the first free row below, so that
lines cross nothing; many failures that led nowhere are one item, where the first of them was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FOLD_ABOVE", "Place", "arrange", "path_to", "won_by"]

FOLD_ABOVE = 3
"""Failed leaves under one parent that are still shown one by one."""
_RIGHT = frozenset({"accepted", "slower", "undecided"})


@dataclass(slots=True, eq=False)
class Place:
    """An item and its place: the root (eager), a candidate, or a crowd of failures.

    ``level`` counts steps from the root, ``row`` lines from the top. ``node`` is None for the root
    and for a crowd, which has the failures it stands for in ``folded``.
    """

    key: str
    node: Mapping[str, Any] | None
    parent: Place | None
    folded: tuple[Mapping[str, Any], ...] = ()
    level: int = 0
    row: int = 0
    children: list[Place] = field(default_factory=list)


def arrange(nodes: Iterable[Mapping[str, Any]], keep: Collection[str] = ()) -> list[Place]:
    """Places of all items, parents before children, the root first.

    Works without recursion, so a chain of thousands is fine. A node whose parent does not come
    before it hangs from the root, so a ring in an untrusted document loses none; failures in
    ``keep`` are never folded.
    """
    seen: set[str] = set()
    below: dict[str, list[Mapping[str, Any]]] = {}
    for node in nodes:
        below.setdefault(node["parent"] if node["parent"] in seen else "", []).append(node)
        seen.add(node["id"])
    places: list[Place] = []
    waiting = [Place("", None, None)]
    while waiting:
        place = waiting.pop()
        places.append(place)
        if not place.folded:
            place.children = _family(place, below, keep)
        waiting.extend(reversed(place.children))
    _settle(places)
    return places


def _family(
    of: Place, below: Mapping[str, list[Mapping[str, Any]]], keep: Collection[str]
) -> list[Place]:
    children = below.get(of.key, [])
    failed = [
        c
        for c in children
        if c["verdict"] not in _RIGHT and c["id"] not in below and c["id"] not in keep
    ]
    level = of.level + 1
    if len(failed) <= FOLD_ABOVE:
        return [Place(c["id"], c, of, level=level) for c in children]
    hidden = {c["id"] for c in failed}
    crowd = Place(f"{of.key}/failed", None, of, tuple(failed), level)
    shown = []
    for c in children:
        if c is failed[0]:
            shown.append(crowd)
        elif c["id"] not in hidden:
            shown.append(Place(c["id"], c, of, level=level))
    return shown


def _settle(places: list[Place]) -> None:
    """Rows: a chain of first children shares one, the next sibling gets the first that is free."""
    free: dict[int, int] = {}
    for start in places:
        if start.parent is not None and start.parent.children[0] is start:
            continue  # placed with its parent
        chain = [start]
        while chain[-1].children:
            chain.append(chain[-1].children[0])
        row = max(free.get(place.level, 0) for place in chain)
        for place in chain:
            place.row = row
            free[place.level] = row + 1
        if start.parent is not None:  # the line down from the parent stays free
            free[start.parent.level] = row + 1


def path_to(nodes: Iterable[Mapping[str, Any]], node_id: str | None) -> set[str]:
    """Ids from a node up to its draft, both included."""
    rows = {node["id"]: node for node in nodes}
    path: set[str] = set()
    while node_id is not None and node_id in rows and node_id not in path:
        path.add(node_id)
        node_id = rows[node_id]["parent"]
    return path


def won_by(nodes: Iterable[Mapping[str, Any]], best: str | None) -> set[str]:
    """What looks like success on the way to the best: nothing before that one was accepted.

    A wrong candidate that was mended keeps its own look.
    """
    rows = {node["id"]: node for node in nodes}
    if best not in rows or rows[best]["verdict"] != "accepted":
        return set()
    return {key for key in path_to(rows.values(), best) if rows[key]["verdict"] in _RIGHT}
