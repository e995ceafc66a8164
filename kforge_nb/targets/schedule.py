"""An order of nodes in which groups stay together: the one place that decides what may be fused.

Nodes are appended in graph order. Two groups may be merged only if no path leads from one to the
other through a third; the order is kept valid for all groups *at once*, so that two groups that are
each convex can never need one another's results.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

__all__ = ["Schedule", "contracted_order"]


class Schedule:
    """A valid order of groups. Group ids are the positions of their first node.

    ``window`` bounds how far apart merged groups may lie, which makes the whole near-linear: a
    merge costs at most the number of edges inside the window.
    """

    def __init__(self, deps: Sequence[Sequence[int]], window: int = 512) -> None:
        self._deps = deps
        self._window = window
        self._order: list[int] = []
        self._place: dict[int, int] = {}
        self._outside: dict[int, set[int]] = {}
        self.members: dict[int, list[int]] = {}
        self.group_of: dict[int, int] = {}
        self.steps = 0

    def append(self, node: int) -> int:
        """Put a node at the end as a group of its own; returns the group."""
        self._place[node] = len(self._order)
        self._order.append(node)
        self.members[node] = [node]
        self.group_of[node] = node
        self._outside[node] = {d for d in self._deps[node] if d in self.group_of}
        return node

    def append_group(self, nodes: Sequence[int]) -> int:
        """Put neighbours in graph order at the end as one group; returns the group."""
        group = nodes[0]
        self._place[group] = len(self._order)
        self._order.append(group)
        self.members[group] = list(nodes)
        self.group_of.update(dict.fromkeys(nodes, group))
        needed = {d for node in nodes for d in self._deps[node]}
        self._outside[group] = {d for d in needed if self.group_of.get(d, group) != group}
        return group

    def merge(self, one: int, other: int) -> int | None:
        """Merge two groups; returns the merged group, or None where a third lies between."""
        if one == other:
            return one
        first, second = sorted((one, other), key=self._place.__getitem__)
        start, end = self._place[first], self._place[second]
        if end - start > self._window:
            return None
        between = self._order[start + 1 : end]
        after = self._dependents(first, between)
        self.steps += len(between) + 1
        if any(self.group_of[d] in after for d in self._outside[second]):
            return None
        before = [g for g in between if g not in after]
        behind = [g for g in between if g in after]
        self._order[start : end + 1] = [*before, first, *behind]
        for place in range(start, len(self._order)):
            self._place[self._order[place]] = place
        self.steps += len(self._order) - start
        self._absorb(first, second)
        return first

    def _dependents(self, group: int, between: Iterable[int]) -> set[int]:
        marked = {group}
        for candidate in between:
            if any(self.group_of[d] in marked for d in self._outside[candidate]):
                marked.add(candidate)
        marked.discard(group)
        return marked

    def _absorb(self, first: int, second: int) -> None:
        self.members[first] = sorted([*self.members[first], *self.members.pop(second)])
        for node in self.members[first]:
            self.group_of[node] = first
        merged = self._outside[first] | self._outside.pop(second)
        self._outside[first] = {d for d in merged if self.group_of[d] != first}
        del self._place[second]


def contracted_order(
    deps: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """All nodes in a valid order, each group as one item; earliest position first among equals.

    Raises ValueError if the groups cannot be contracted together (they depend on one another).
    """
    home = {node: g for g, group in enumerate(groups) for node in group}
    items: list[tuple[int, ...]] = [tuple(sorted(g)) for g in groups]
    item_of = dict(home)
    for node in range(len(deps)):
        if node not in item_of:
            item_of[node] = len(items)
            items.append((node,))
    waiting = [0] * len(items)
    users: list[list[int]] = [[] for _ in items]
    for at, item in enumerate(items):
        needed = {item_of[d] for node in item for d in deps[node]} - {at}
        waiting[at] = len(needed)
        for need in needed:
            users[need].append(at)
    ready = [(item[-1], at) for at, item in enumerate(items) if waiting[at] == 0]
    heapq.heapify(ready)
    order: list[tuple[int, ...]] = []
    while ready:
        _, at = heapq.heappop(ready)
        order.append(items[at])
        for user in users[at]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (items[user][-1], user))
    if len(order) != len(items):
        raise ValueError("the groups depend on one another and cannot all be contracted")
    return order
