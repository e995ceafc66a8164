"""From captured graphs to targets: cut, deduplicate by fingerprint, capture real inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kforge_nb.targets.dataflow import Dataflow
from kforge_nb.targets.inputs import CapturedInputs, Holding
from kforge_nb.targets.partition import Cut, cut
from kforge_nb.targets.target import Granularity, Occurrence, Target
from kforge_nb.workload.copies import Copier, compact_copy

if TYPE_CHECKING:
    from kforge_nb.workload.capture import CapturedGraph, Workload

__all__ = ["capture_inputs", "find_targets", "replay_inputs", "target_of"]

MAX_SETS = 2


def find_targets(
    workload: Workload,
    granularity: Granularity = "region",
    memory_limit: int = 1 << 30,
    *,
    vendor: bool = False,
) -> list[Target]:
    """The targets of a captured workload, each with its occurrences and captured inputs.

    ``memory_limit`` bounds the bytes of captured copies held in memory; what is above is spilled to
    files. ``vendor`` adds vendor operators as targets, marked so. Order: first occurrence.
    """
    targets: dict[str, Target] = {}
    for graph in workload.graphs:
        cuts = cut(graph.gm, graph.example_inputs, granularity, vendor=vendor)
        wanted: dict[str, Cut] = {}
        for found in cuts:
            target = targets.get(found.fingerprint)
            if target is None:
                target = targets[found.fingerprint] = target_of(found)
            target.occurrences.append(
                Occurrence(
                    graph.index, found.module_path, tuple(n.name for n in found.nodes), graph.calls
                )
            )
            key = f"{found.fingerprint}/{_sets_of(target) + _pending(wanted, found)}"
            if _sets_of(target) + _pending(wanted, found) < MAX_SETS:
                wanted[key] = found
        _capture_graph(graph, wanted, targets, memory_limit)
    for target in targets.values():
        if target.captured is not None:
            target.captured.finish()
    return list(targets.values())


def target_of(found: Cut) -> Target:
    """A target without occurrences or captured inputs."""
    return Target(
        fingerprint=found.fingerprint,
        name=found.name,
        family=found.family,
        granularity=found.granularity,
        graph=found.to_graph(),
        inputs=found.input_specs,
        outputs=found.output_specs,
        vendor=found.vendor,
    )


def _sets_of(target: Target) -> int:
    return len(target.captured) if target.captured is not None else 0


def _pending(wanted: dict[str, Cut], found: Cut) -> int:
    return sum(1 for k in range(MAX_SETS) if f"{found.fingerprint}/{k}" in wanted)


def _capture_graph(
    graph: CapturedGraph,
    wanted: dict[str, Cut],
    targets: dict[str, Target],
    memory_limit: int,
) -> None:
    if not wanted:
        return
    held = sum(t.captured.nbytes for t in targets.values() if t.captured is not None)

    def keep(found: Cut, tensors: list[torch.Tensor], how: list[Holding]) -> None:
        nonlocal held
        target = targets[found.fingerprint]
        if target.captured is None:
            target.captured = CapturedInputs()
        before = target.captured.nbytes
        target.captured.add(tensors, how)
        held += target.captured.nbytes - before
        if held > memory_limit:
            held -= target.captured.nbytes
            target.captured.spill()

    chosen = list(wanted.values())
    inputs = replay_inputs(chosen[0].flow, graph.example_inputs)
    capture_inputs(graph.gm, inputs, chosen, keep, graph.is_state)


def replay_inputs(flow: Dataflow, example_inputs: Sequence[Any]) -> list[Any]:
    """The example inputs of a graph, with copies of those that the graph writes to."""
    written = set(flow.mutated_placeholders())
    placeholders = [n for n in flow.nodes if n.op == "placeholder"]
    pairs = list(zip(placeholders, example_inputs, strict=True))
    copied = [v for n, v in pairs if n in written and isinstance(v, torch.Tensor)]
    copier = Copier(copied)
    return [copier.copy(v) if n in written and isinstance(v, torch.Tensor) else v for n, v in pairs]


def capture_inputs(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    cuts: Sequence[Cut],
    keep: Any,
    is_state: Sequence[bool],
) -> None:
    """Run ``gm`` once; ``keep(cut, tensors, how)`` gets each cut's inputs.

    Each input is copied right before its first use in the cut, so later writes do not reach it.
    ``is_state[i]`` says that placeholder i is a parameter or buffer of the model. The graph may
    write to ``inputs``: give copies of what it writes to.
    """
    state = gm.meta.get("kforge_state")
    if cuts:
        with state.restored() if state is not None else nullcontext(), torch.no_grad():
            _Capturing(gm, cuts, keep, is_state).run(*inputs)


class _Capturing(fx.Interpreter):
    def __init__(
        self, gm: fx.GraphModule, cuts: Sequence[Cut], keep: Any, is_state: Sequence[bool]
    ) -> None:
        super().__init__(gm, garbage_collect_values=True)
        self._keep = keep
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        written = {n for c in cuts[:1] for n in c.flow.mutated_placeholders()}
        self._state = {
            n for n, s in zip(placeholders, is_state, strict=False) if s and n not in written
        }
        self._first: dict[fx.Node, list[tuple[Cut, int]]] = {}
        self._last: dict[fx.Node, list[Cut]] = {}
        self._got: dict[tuple[int, int], torch.Tensor] = {}
        for found in cuts:
            inside = set(found.nodes)
            for at, source in enumerate(found.inputs):
                user = next(n for n in found.nodes if source in n.all_input_nodes and n in inside)
                self._first.setdefault(user, []).append((found, at))
            self._last.setdefault(found.nodes[-1], []).append(found)

    def run_node(self, n: fx.Node) -> Any:
        for found, at in self._first.get(n, ()):
            source = found.inputs[at]
            value = self.env[source].detach()
            self._got[(id(found), at)] = value if source in self._state else compact_copy(value)
        for found in self._last.get(n, ()):
            tensors = [self._got.pop((id(found), at)) for at in range(len(found.inputs))]
            how: list[Holding] = [
                "reference" if source in self._state else "own" for source in found.inputs
            ]
            self._keep(found, tensors, how)
        return super().run_node(n)
