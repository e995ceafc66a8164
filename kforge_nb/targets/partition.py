"""Cut a captured graph into targets: the one function that profile and guard share.

Cuts are disjoint, can all be contracted at once, and are safe under mutation and aliasing: a cut
writes only to storages that it made, and hands out tensors that share storage neither with its
inputs nor with one another. Values that are views of something outside stay outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import fx

from kforge_nb.errors import BadInput
from kforge_nb.targets.biases import split_biases
from kforge_nb.targets.dataflow import Dataflow, analyse
from kforge_nb.targets.family import family_of, name_of, worth_fusing
from kforge_nb.targets.fingerprint import fingerprint
from kforge_nb.targets.modules import find_modules, module_path
from kforge_nb.targets.regions import find_regions
from kforge_nb.targets.schedule import Schedule
from kforge_nb.targets.target import Granularity, TensorSpec
from kforge_nb.workload.collection import quiet_gc

__all__ = ["MAX_INPUTS", "MAX_OUTPUTS", "Cut", "cut"]

MAX_INPUTS = 24
MAX_OUTPUTS = 4
_CUTTABLE = {
    "cheap", "costly", "reduction", "row_norm", "channel_norm", "batch_norm", "loss", "pooling",
    "move",
}  # fmt: skip


@dataclass(eq=False)
class Cut:
    """A part of a graph that one call may replace.

    ``nodes`` in graph order; ``inputs`` in order of first use; ``outputs`` in graph order. ``kept``
    are nodes of the cut that are views and also needed outside, where they are computed again.
    """

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    granularity: Granularity
    flow: Dataflow = field(repr=False)
    kept: tuple[fx.Node, ...] = ()
    vendor: bool = False

    @cached_property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The variant's inputs."""
        return tuple(_known(self.flow, n) for n in self.inputs)

    @cached_property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The variant's outputs."""
        return tuple(_known(self.flow, n) for n in self.outputs)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of canonical graph and variant (sha256 hex); equal means interchangeable."""
        return fingerprint(self.flow, self.nodes, self.inputs, self.outputs)

    @cached_property
    def family(self) -> str:
        """What kind of operation this is (see Target.family)."""
        return family_of(self.flow, self.nodes, vendor=self.vendor)

    @cached_property
    def name(self) -> str:
        """A short readable name: its operators in order."""
        return name_of(self.flow, self.nodes)

    @cached_property
    def module_path(self) -> str:
        """Path of the innermost module that holds all nodes, empty for the root."""
        return module_path(self.nodes)

    def to_graph(self) -> fx.GraphModule:
        """The cut as a graph of its own: placeholders in0.., returns a tuple of tensors.

        Operators that hand their argument back unchanged are left out.
        """
        graph = fx.Graph()
        new: dict[fx.Node, fx.Node] = {}
        for i, node in enumerate(self.inputs):
            new[node] = graph.placeholder(f"in{i}")
        for node in self.nodes:
            source = self.flow.stands_for(self.flow.index[node])
            if source is not None:
                new[node] = new[source]
                continue
            copy = graph.node_copy(node, new.__getitem__)
            copy.meta = {}
            new[node] = copy
        graph.output(tuple(new[n] for n in self.outputs))
        graph.lint()
        return fx.GraphModule({}, graph)


@quiet_gc()
def cut(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    granularity: Granularity = "region",
    *,
    vendor: bool = False,
) -> list[Cut]:
    """Disjoint cuts of ``gm`` in graph order, the same on every call; near-linear in nodes.

    ``granularity``: ``op`` (each operator alone), ``module`` (the body of the largest module
    instances without a vendor op) or ``region`` (fusible groups). ``vendor`` adds each vendor op
    (linear, matmul, convolution, attention, embedding) as a cut of its own, marked so. Raises
    BadInput for another granularity. The nodes are those of ``flow.gm``, a copy of ``gm`` in which
    biases of convolutions are additions (see :mod:`kforge_nb.targets.biases`), or ``gm`` itself.
    """
    regions = granularity == "region"
    flow = analyse(split_biases(gm) if regions else gm, example_inputs)
    flow.source = gm
    if regions:
        groups = find_regions(flow, Schedule(flow.deps))
    elif granularity == "module":
        groups = find_modules(flow)
    elif granularity == "op":
        groups = [[i] for i, op in enumerate(flow.operators) if op.kind in _CUTTABLE]
    else:
        raise BadInput(f"granularity is {granularity!r}; choose op, module or region")
    cuts = [made for group in groups for made in _finish(flow, group, granularity)]
    if vendor:
        taken = {node for made in cuts for node in made.nodes}
        singles = (
            [i]
            for i, op in enumerate(flow.operators)
            if op.kind == "vendor" and flow.nodes[i] not in taken
        )
        cuts += [c for s in singles if (c := _make(flow, s, granularity, vendor=True))]
    return sorted(cuts, key=lambda c: flow.index[c.nodes[0]])


def _finish(flow: Dataflow, group: list[int], granularity: Granularity) -> list[Cut]:
    """The cut of one group; a region too large or unsafe as a whole is halved, if it can be."""
    whole = any(flow.operators[i].kind == "write" for i in group)
    if granularity == "region" and not whole and not worth_fusing(flow, group):
        return []
    made = _make(flow, group, granularity)
    if made is not None:
        return [made]
    if granularity != "region" or whole or len(group) < 2:
        return []
    half = len(group) // 2
    parts = [*_connected(flow, group[:half]), *_connected(flow, group[half:])]
    return [made for part in parts for made in _finish(flow, part, granularity)]


def _connected(flow: Dataflow, group: list[int]) -> list[list[int]]:
    """The connected parts of a group of nodes, each in graph order."""
    part_of: dict[int, list[int]] = {}
    for i in group:
        joined = [i]
        for source in flow.nodes[i].all_input_nodes:
            other = part_of.get(flow.index[source])
            if other is not None and other is not joined:
                joined, other = (other, joined) if len(other) > len(joined) else (joined, other)
                joined.extend(other)
                part_of.update(dict.fromkeys(other, joined))
        part_of[i] = joined
    return [sorted(part) for part in {id(p): p for p in part_of.values()}.values()]


def _make(
    flow: Dataflow, group: list[int], granularity: Granularity, *, vendor: bool = False
) -> Cut | None:
    """The cut of these nodes, or None where replacing them would not be safe."""
    inside = set(group)
    if any(not _replaceable(flow, i, inside) for i in group):
        return None
    inputs = _inputs(flow, group)
    handed = _outputs(flow, group, inputs)
    if handed is None:
        return None
    outputs, kept = handed
    specs = [flow.specs[i] for i in (*inputs, *outputs)]
    if any(s is None for s in specs) or not outputs:
        return None
    if len(inputs) > MAX_INPUTS or len(outputs) > MAX_OUTPUTS:
        return None
    if any(s is not None and s.dtype in ("int64", "int32") for s in specs[len(inputs) :]):
        return None
    nodes = flow.nodes
    return Cut(
        tuple(nodes[i] for i in group),
        tuple(nodes[i] for i in inputs),
        tuple(nodes[i] for i in outputs),
        granularity,
        flow,
        tuple(nodes[i] for i in kept),
        vendor,
    )


def _replaceable(flow: Dataflow, i: int, inside: set[int]) -> bool:
    op = flow.operators[i]
    if op.kind in ("opaque", "random", "barrier") or flow.autocast[i]:
        return False
    if op.kind == "write" and (op.name != "setitem" or not flow.mutated[i]):
        return False
    return all(flow.creator[root] in inside for root in flow.mutated[i])


def _inputs(flow: Dataflow, group: list[int]) -> list[int]:
    inside = set(group)
    found: dict[int, None] = {}
    for i in group:
        alias = flow.stands_for(i)
        for source in flow.nodes[i].all_input_nodes if alias is None else [alias]:
            at = flow.index[source]
            if at not in inside:
                found.setdefault(at, None)
    return list(found)


def _outputs(
    flow: Dataflow, group: list[int], inputs: list[int]
) -> tuple[list[int], list[int]] | None:
    """Nodes to hand out and view nodes to compute again outside; None if that is not safe."""
    inside = set(group)
    foreign = {root for i in inputs for root in flow.roots[i]}
    needed = [i for i in group if any(flow.index[u] not in inside for u in flow.nodes[i].users)]
    handed: list[int] = []
    kept: list[int] = []
    queue = sorted(needed, reverse=True)
    seen: set[int] = set()
    by_root: dict[int, list[int]] = {}
    for i in needed:
        for root in flow.roots[i]:
            by_root.setdefault(root, []).append(i)
    while queue:
        i = queue.pop()
        if i in seen:
            continue
        seen.add(i)
        roots = flow.roots[i]
        shared = any(root in foreign or len(by_root.get(root, ())) > 1 for root in roots)
        if len(roots) == 1 and not shared:
            handed.append(i)
            continue
        if flow.aliases[i] and not flow.mutated[i]:
            kept.append(i)
            for source in flow.nodes[i].all_input_nodes:
                if flow.index[source] in inside:
                    queue.append(flow.index[source])
        else:
            handed.append(i)
    handed_roots = [root for i in handed for root in flow.roots[i]]
    if foreign.intersection(handed_roots) or len(set(handed_roots)) != len(handed_roots):
        return None
    return sorted(handed), sorted(kept)


def _known(flow: Dataflow, node: fx.Node) -> TensorSpec:
    spec = flow.specs[flow.index[node]]
    if spec is None:
        raise BadInput(f"the value of {node.name} is not one tensor of static size")
    return spec
