"""Region granularity: grow fusible groups along the graph, the larger whole first.

One pass in graph order. A node joins the groups of its arguments where one row domain holds both
and the schedule allows it; a rotary embedding is recognised as a pattern first, because its slices
and concatenation would otherwise end the row. So is an unrolled recurrence, which is a group as it
stands and which nothing joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from kforge_nb.targets.dataflow import Dataflow
from kforge_nb.targets.domain import Domain, join, piece_of
from kforge_nb.targets.recurrences import find_recurrences
from kforge_nb.targets.schedule import Schedule

__all__ = ["MAX_NODES", "find_regions"]

MAX_NODES = 64


def find_regions(flow: Dataflow, schedule: Schedule) -> list[list[int]]:
    """Disjoint groups of node positions that one kernel may compute, in graph order.

    ``schedule`` is left holding all nodes with the groups contracted.
    """
    return _Grower(flow, schedule).run()


class _Grower:
    def __init__(self, flow: Dataflow, schedule: Schedule) -> None:
        self.flow = flow
        self.schedule = schedule
        self.domains: dict[int, Domain] = {}
        self.alone: list[list[int]] = []
        self.preset = _rotaries(flow)
        self.preset_group: dict[int, int] = {}
        self.whole = {group[0]: group for group in find_recurrences(flow)}

    def run(self) -> list[list[int]]:
        end = -1
        for i, node in enumerate(self.flow.nodes):
            if i <= end or node.op in ("placeholder", "get_attr", "output"):
                continue
            if i in self.whole:
                self.schedule.append_group(self.whole[i])
                end = self.whole[i][-1]
                continue
            self.schedule.append(i)
            if i in self.preset:
                self._place_preset(i)
            else:
                self._place(i)
        grown = [self.schedule.members[g] for g in self.domains if g in self.schedule.members]
        return sorted([*grown, *self.alone, *self.whole.values()])

    def _place_preset(self, i: int) -> None:
        """Nodes of one recognised pattern go together, whatever their domains."""
        pattern, domain = self.preset[i]
        group = i
        known = self.preset_group.get(pattern)
        if known is not None:
            merged = self.schedule.merge(self.schedule.group_of[known], i)
            if merged is None:
                return
            group = merged
        self.preset_group[pattern] = i
        self.domains.pop(i, None)
        self.domains[group] = domain

    def _place(self, i: int) -> None:
        flow = self.flow
        piece = piece_of(flow, i)
        if flow.operators[i].kind in ("pooling", "loss") and flow.specs[i] is not None:
            self.alone.append([i])
        if piece is None:
            return
        owner = self._owner(i)
        if flow.mutated[i] and owner is None:
            return
        group, domain = i, piece
        self.domains[i] = piece
        if flow.operators[i].kind == "channel_norm":
            return
        for candidate in self._neighbours(i, owner):
            grown = self._try(i, group, domain, candidate)
            if grown is not None:
                group, domain = grown
        if owner is not None and i not in self._group(flow.creator[owner]):
            self.domains.pop(group)

    def _owner(self, i: int) -> int | None:
        """The storage that node ``i`` writes to, if a grown group made it."""
        written = self.flow.mutated[i]
        if len(written) != 1:
            return None
        maker = self.flow.creator[written[0]]
        home = self.schedule.group_of.get(maker)
        return written[0] if home in self.domains else None

    def _group(self, node: int) -> list[int]:
        return self.schedule.members[self.schedule.group_of[node]]

    def _neighbours(self, i: int, owner: int | None) -> list[int]:
        """Groups of the arguments: the owner of a written storage first, then the largest."""
        found: dict[int, int] = {}
        for source in self.flow.nodes[i].all_input_nodes:
            home = self.schedule.group_of.get(self.flow.index[source])
            if home is not None and home in self.domains:
                found[self.flow.index[source]] = home
        order = sorted(found, key=lambda n: (-len(self.schedule.members[found[n]]), n))
        if owner is not None:
            order.insert(0, self.flow.creator[owner])
        return list(dict.fromkeys(order))

    def _try(self, i: int, group: int, domain: Domain, node: int) -> tuple[int, Domain] | None:
        candidate = self.schedule.group_of[node]
        if candidate == group:
            return group, domain
        theirs = self.domains.get(candidate)
        if theirs is None:
            return None
        both = join(theirs, domain)
        members = self.schedule.members
        if both is None or len(members[group]) + len(members[candidate]) > MAX_NODES:
            return None
        inside = {*members[group], *members[candidate]}
        if theirs.shape != both.shape and not self._private(candidate, inside):
            return None
        if domain.shape != both.shape and group != i and not self._private(group, inside):
            return None
        merged = self.schedule.merge(candidate, group)
        if merged is None:
            return None
        self.domains.pop(candidate, None)
        self.domains.pop(group, None)
        self.domains[merged] = both
        return merged, both

    def _private(self, group: int, inside: set[int]) -> bool:
        """Whether nothing outside needs a small group's values (else it is kept apart)."""
        index = self.flow.index
        return all(
            index[user] in inside
            for node in self.schedule.members[group]
            for user in self.flow.nodes[node].users
        )


def _rotaries(flow: Dataflow) -> dict[int, tuple[int, Domain]]:
    """Nodes of each ``x * cos + rotate_half(x) * sin``: position -> (pattern, domain)."""
    found: dict[int, tuple[int, Domain]] = {}
    for i, node in enumerate(flow.nodes):
        if flow.operators[i].name != "cat":
            continue
        nodes = _rotary_at(flow, node)
        spec = flow.specs[i]
        if nodes is None or spec is None or flow.autocast[i]:
            continue
        at = {flow.index[n] for n in nodes}
        if not at & found.keys():
            found.update(dict.fromkeys(at, (i, Domain(spec.shape, 1))))
    return found


def _rotary_at(flow: Dataflow, cat: fx.Node) -> list[fx.Node] | None:
    parts = cat.args[0] if cat.args else cat.kwargs.get("tensors")
    if not isinstance(parts, Sequence) or len(parts) != 2:
        return None
    negated, plain = parts
    if not isinstance(negated, fx.Node) or not isinstance(plain, fx.Node):
        return None
    if flow.operators[flow.index[negated]].name != "neg":
        return None
    half = negated.args[0]
    base = _sliced(flow, half)
    if base is None or _sliced(flow, plain) is not base or not isinstance(half, fx.Node):
        return None
    if flow.specs[flow.index[base]] is None or not _same_shape(flow, base, cat):
        return None
    inner = [half, plain, negated, cat]
    if not all(user in inner for n in (half, plain, negated) for user in n.users):
        return None
    return _with_products(flow, base, cat, inner)


def _with_products(
    flow: Dataflow, base: fx.Node, cat: fx.Node, inner: list[fx.Node]
) -> list[fx.Node] | None:
    """Add ``cat * sin``, ``base * cos`` and their sum, where each is used only there."""
    times_sin = _only_user(flow, cat, "mul")
    total = _only_user(flow, times_sin, "add") if times_sin is not None else None
    if total is None or times_sin is None or flow.mutated[flow.index[total]]:
        return None
    for other in total.all_input_nodes:
        is_product = flow.operators[flow.index[other]].name == "mul" and other is not times_sin
        if is_product and base in other.all_input_nodes and len(other.users) == 1:
            return [*inner, other, times_sin, total]
    return None


def _only_user(flow: Dataflow, node: fx.Node, name: str) -> fx.Node | None:
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    return user if flow.operators[flow.index[user]].name == name else None


def _sliced(flow: Dataflow, node: Any) -> fx.Node | None:
    """What ``node`` is a slice (or one chunk) of."""
    if not isinstance(node, fx.Node) or flow.operators[flow.index[node]].name != "getitem":
        return None
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return None
    if flow.operators[flow.index[source]].name in ("chunk", "split", "tensor_split"):
        return None
    return source


def _same_shape(flow: Dataflow, one: fx.Node, other: fx.Node) -> bool:
    a, b = flow.specs[flow.index[one]], flow.specs[flow.index[other]]
    return a is not None and b is not None and a.shape == b.shape
