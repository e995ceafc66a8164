"""Region granularity: grow fusible groups along the graph, the larger whole first.

One pass in graph order. A node joins the groups of its arguments where one row domain holds both
and the schedule allows it. Patterns are recognised first, because their slices and concatenations
would otherwise end the row: rotary embeddings, which the norm in front of them joins, and causal
convolutions of single channels. An unrolled recurrence is a group as it stands; nothing joins it.
"""

from __future__ import annotations

from torch import fx

from kforge_nb.targets.biases import bias_of
from kforge_nb.targets.dataflow import Dataflow
from kforge_nb.targets.domain import Domain, join, piece_of
from kforge_nb.targets.patterns import is_alone, patterns
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
        self.preset, self.bases = patterns(flow)
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
        base = self.bases.get(i)
        if base is not None and self.schedule.group_of.get(base) in self.domains:
            self._try(i, group, domain, base)

    def _place(self, i: int) -> None:
        flow = self.flow
        piece = piece_of(flow, i)
        if is_alone(flow, i):
            self.alone.append([i])
        if piece is None:
            return
        owner = self._owner(i)
        if flow.mutated[i] and owner is None:
            return
        group, domain = i, piece
        self.domains[i] = piece
        if flow.operators[i].kind == "channel_norm":
            self._take_bias(i, domain)
            return
        for candidate in self._neighbours(i, owner):
            grown = self._try(i, group, domain, candidate)
            if grown is not None:
                group, domain = grown
        if owner is not None and i not in self._group(flow.creator[owner]):
            self.domains.pop(group)

    def _take_bias(self, i: int, domain: Domain) -> None:
        """A channel norm adds the bias of the convolution before it, where only it needs the sum.

        Anything more in front of it would be computed in each of its passes over memory.
        """
        first = self.flow.nodes[i].args[0] if self.flow.nodes[i].args else None
        if isinstance(first, fx.Node) and bias_of(first) is not None and len(first.users) == 1:
            at = self.flow.index[first]
            if self._group(at) == [at]:
                self._try(i, i, domain, at)

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
