"""What a graph's edges do not say: sizes, storages, writes, and the order they impose.

Every later step (cutting, rewriting, capturing) takes its order from ``Dataflow.deps``, in which a
write comes after all earlier reads of its storage and before all later ones. Tensors that a graph
is given count as one storage there: no guard stops a later call from passing two views of the same
memory. How the facts are found out is in ``observe``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from kforge_nb.targets.observe import Observation, observe
from kforge_nb.targets.operators import Operator, describe
from kforge_nb.targets.target import TensorSpec

__all__ = ["Dataflow", "analyse"]

_GIVEN = -1
"""Stands for the storages of all placeholders and attributes together."""
_HANDS_BACK = {"dropout", "cast", "contiguous", "detach"}


@dataclass(slots=True)
class Dataflow:
    """Facts about each node of ``nodes`` (position = place in the graph of ``gm``).

    ``specs[i]`` is the TensorSpec where the node's value is one tensor of static size, else None.
    ``roots[i]`` are the storages that the value's tensors live in; ``creator[root]`` is the node
    that made the storage. ``mutated[i]`` are the storages that the node writes to. ``deps[i]`` are
    the positions that must come before i. ``aliases[i]`` says that the value shares the storage of
    an argument (a view, or an operator that handed its input back).
    ``autocast[i]`` says that autocast changes what the node computes. ``source`` is the graph that
    was asked about, of which ``gm`` may be another spelling.
    """

    nodes: list[fx.Node]
    index: dict[fx.Node, int]
    operators: list[Operator]
    gm: fx.GraphModule
    specs: list[TensorSpec | None] = field(default_factory=list)
    roots: list[tuple[int, ...]] = field(default_factory=list)
    mutated: list[tuple[int, ...]] = field(default_factory=list)
    deps: list[list[int]] = field(default_factory=list)
    aliases: list[bool] = field(default_factory=list)
    autocast: list[bool] = field(default_factory=list)
    creator: dict[int, int] = field(default_factory=dict)
    source: fx.GraphModule | None = None

    def stands_for(self, i: int) -> fx.Node | None:
        """The argument that node ``i`` hands back unchanged, or None if it computes or views.

        So do ``dropout`` in eval and a cast to the dtype that the tensor has already.
        """
        op = self.operators[i]
        if op.name not in _HANDS_BACK or not self.aliases[i] or self.mutated[i]:
            return None
        first = self.nodes[i].args[0] if self.nodes[i].args else None
        if not isinstance(first, fx.Node) or self.specs[i] is None:
            return None
        at = self.index[first]
        same = self.specs[i] == self.specs[at] and self.roots[i] == self.roots[at]
        return first if same else None

    def mutated_placeholders(self) -> list[fx.Node]:
        """Placeholders whose storage some node writes to (a replay must give it a copy)."""
        written = {root for roots in self.mutated for root in roots}
        return [
            node
            for i, node in enumerate(self.nodes)
            if node.op in ("placeholder", "get_attr") and written.intersection(self.roots[i])
        ]


def analyse(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Dataflow:
    """The facts about ``gm`` on these inputs; near-linear in nodes. The inputs are not changed.

    Runs the graph once: on the inputs themselves where they are real tensors of static size, so
    that strides and aliases are those of the kernels that run here, else on fake tensors.
    """
    nodes = list(gm.graph.nodes)
    flow = Dataflow(nodes, {n: i for i, n in enumerate(nodes)}, [describe(n) for n in nodes], gm)
    order = _Order(flow)
    for i, seen in enumerate(observe(gm, example_inputs, flow.operators)):
        for root in seen.roots:
            flow.creator.setdefault(root, i)
        flow.specs.append(seen.spec)
        flow.roots.append(seen.roots)
        flow.mutated.append(seen.written)
        flow.aliases.append(seen.aliases)
        flow.autocast.append(seen.autocast)
        flow.deps.append(order.place(i, seen))
    return flow


class _Order:
    """Turns reads and writes of storages into dependencies between positions."""

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow
        self.last_write: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.barrier = -1
        self.effect = -1

    def place(self, i: int, seen: Observation) -> list[int]:
        """What must come before node ``i``."""
        node = self.flow.nodes[i]
        deps = {self.flow.index[source] for source in node.all_input_nodes}
        deps.update(self._storages(i, seen.reads, seen.written))
        if node.op not in ("placeholder", "get_attr"):
            deps.update(self._effects(i, node, seen.failed))
        deps.discard(i)
        return sorted(deps)

    def _storages(self, i: int, reads: Iterable[int], written: Iterable[int]) -> set[int]:
        reads, written = self._with_given(reads), self._with_given(written)
        deps = {self.last_write[root] for root in reads if root in self.last_write}
        for root in written:
            deps.update(self.readers.pop(root, ()))
            self.last_write[root] = i
        for root in reads:
            self.readers.setdefault(root, []).append(i)
        return deps

    def _with_given(self, roots: Iterable[int]) -> tuple[int, ...]:
        """These storages, with the one that stands for all given ones if it is among them."""
        known = tuple(roots)
        makers = (self.flow.nodes[self.flow.creator[root]] for root in known)
        given = any(maker.op in ("placeholder", "get_attr") for maker in makers)
        return (*known, _GIVEN) if given else known

    def _effects(self, i: int, node: fx.Node, failed: bool) -> set[int]:
        """Barriers separate everything; random and unknown calls keep their own order."""
        deps: set[int] = set()
        kind = self.flow.operators[i].kind
        if self.barrier >= 0:
            deps.add(self.barrier)
        if kind == "barrier" or node.op == "output" or (failed and kind == "opaque"):
            deps.update(range(max(self.barrier, 0), i))
            self.barrier = self.effect = i
        elif kind in ("random", "opaque"):
            if self.effect >= 0:
                deps.add(self.effect)
            self.effect = i
        return deps
