"""Where the nodes of a search tree stand, for SVG and matplotlib: levels down, leaves apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Place", "arrange", "path_to"]


@dataclass(frozen=True, slots=True)
class Place:
    """One candidate's place: ``x`` in leaf widths, ``level`` 1 for drafts (the root is eager)."""

    node: Mapping[str, Any]
    parent: str | None
    x: float
    level: int


def arrange(nodes: Iterable[Mapping[str, Any]]) -> tuple[list[Place], float]:
    """Places of all nodes in drawing order, and the root's ``x``. Parents stand over the middle.

    Works without recursion, so a chain of thousands is fine. A node whose parent is missing hangs
    from the root.
    """
    rows = {node["id"]: node for node in nodes}
    below: dict[str | None, list[str]] = {}
    for key, node in rows.items():
        parent = node["parent"] if node["parent"] in rows else None
        below.setdefault(parent, []).append(key)
    order: list[tuple[str, str | None, int]] = []
    waiting: list[tuple[str, str | None, int]] = [(k, None, 1) for k in below.get(None, [])[::-1]]
    while waiting:
        key, parent, level = waiting.pop()
        order.append((key, parent, level))
        waiting.extend((child, key, level + 1) for child in below.get(key, [])[::-1])

    across: dict[str | None, float] = {}
    leaves = 0
    for key, _, _ in order:
        if key not in below:
            across[key] = float(leaves)
            leaves += 1
    for key, _, _ in reversed(order):
        if key in below:
            across[key] = _middle(across, below[key])
    root = _middle(across, below[None]) if order else 0.0
    return [Place(rows[key], parent, across[key], level) for key, parent, level in order], root


def _middle(across: Mapping[str | None, float], children: list[str]) -> float:
    return (across[children[0]] + across[children[-1]]) / 2


def path_to(nodes: Iterable[Mapping[str, Any]], node_id: str | None) -> set[str]:
    """Ids from a node up to its draft, both included."""
    rows = {node["id"]: node for node in nodes}
    path: set[str] = set()
    while node_id is not None and node_id in rows and node_id not in path:
        path.add(node_id)
        node_id = rows[node_id]["parent"]
    return path
