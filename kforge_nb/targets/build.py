"""From captured graphs to targets: cut, deduplicate by fingerprint, capture real inputs.

What may stay in a GPU's memory is bounded, and a GPU that is full is no reason to lose the profile:
copies then go to files one by one, and what still does not fit is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kforge_nb.targets.dataflow import Dataflow
from kforge_nb.targets.inputs import CapturedInputs, Holding
from kforge_nb.targets.partition import Cut, cut
from kforge_nb.targets.target import Granularity, Occurrence, Target
from kforge_nb.workload.collection import quiet_gc
from kforge_nb.workload.copies import Copier, compact_copy
from kforge_nb.workload.devices import free_bytes

if TYPE_CHECKING:
    from kforge_nb.workload.capture import CapturedGraph, Workload

__all__ = ["capture_inputs", "find_targets", "replay_inputs", "target_of"]

MAX_SETS = 2


@quiet_gc()
def find_targets(
    workload: Workload,
    granularity: Granularity = "region",
    memory_limit: int = 1 << 30,
    *,
    vendor: bool = False,
) -> list[Target]:
    """The targets of a captured workload, each with its occurrences and captured inputs.

    ``memory_limit`` bounds the bytes of captured copies held in memory (on a GPU: up to eight times
    as many, and never above an eighth of what is free); what is above is spilled to files.
    ``vendor`` adds vendor operators as targets, marked so. Order: first occurrence. Cuts with
    tensors of several devices are left out, with a note.
    """
    targets: dict[str, Target] = {}
    mixed: dict[str, tuple[str, ...]] = {}
    for graph in workload.graphs:
        cuts = cut(graph.gm, graph.example_inputs, granularity, vendor=vendor)
        wanted: dict[str, Cut] = {}
        for found in cuts:
            if len(devices := _devices_of(found)) > 1:
                mixed[found.name] = devices
                continue
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
        _capture_graph(graph, wanted, _Keeper(targets, memory_limit), workload.note)
    for target in targets.values():
        if target.captured is not None:
            target.captured.finish()
    if mixed:
        told = ", ".join(f"{name} ({' and '.join(devices)})" for name, devices in mixed.items())
        workload.note(f"left out, since their tensors lie on several devices: {told}")
    return list(targets.values())


def _devices_of(found: Cut) -> tuple[str, ...]:
    """The devices of a cut's inputs and outputs, in order."""
    return tuple(dict.fromkeys(s.device for s in (*found.input_specs, *found.output_specs)))


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


class _Keeper:
    """Adds captured tensors to their targets, and spills where memory would run short."""

    def __init__(self, targets: dict[str, Target], memory_limit: int) -> None:
        self._targets = targets
        self._limit = memory_limit
        self._limits: dict[str, int] = {}
        self._held: Counter[str] = Counter()
        for target in targets.values():
            if target.captured is not None:
                self._held[target.device] += target.captured.nbytes
        self.kept: set[Cut] = set()
        self.tight = False

    def __call__(self, found: Cut, tensors: list[torch.Tensor], how: list[Holding]) -> None:
        target = self._targets[found.fingerprint]
        if target.captured is None:
            target.captured = CapturedInputs()
        captured, device = target.captured, target.device
        before = captured.nbytes
        captured.add(tensors, how)
        self._held[device] += captured.nbytes - before
        self.kept.add(found)
        if self.tight or self._held[device] > self._limit_of(device):
            self._spill(target)

    def spill_all(self) -> None:
        """Move everything out of memory, and from now on each input set when it is taken."""
        self.tight = True
        for target in self._targets.values():
            self._spill(target)

    def _spill(self, target: Target) -> None:
        if target.captured is not None:
            self._held[target.device] -= target.captured.nbytes
            target.captured.spill()

    def _limit_of(self, device: str) -> int:
        if device not in self._limits:
            on_gpu = device.startswith("cuda")
            most = min(8 * self._limit, free_bytes(device) // 8) if on_gpu else self._limit
            self._limits[device] = most
        return self._limits[device]


def _capture_graph(
    graph: CapturedGraph, wanted: dict[str, Cut], keeper: _Keeper, note: Callable[[str], None]
) -> None:
    """Run the graph and keep the inputs of the wanted cuts; twice, where a GPU was full."""
    for attempt in range(2):
        chosen = [found for found in wanted.values() if found not in keeper.kept]
        if not chosen:
            return
        try:
            flow = chosen[0].flow
            inputs = replay_inputs(flow, graph.example_inputs)
            capture_inputs(flow.gm, inputs, chosen, keeper, graph.is_state)
        except torch.OutOfMemoryError as error:
            if attempt:
                first = str(error).strip().split(". ")[0]
                note(
                    f"the GPU's memory did not suffice to take inputs of {len(chosen)} targets of "
                    f"{graph.call.module_name} ({first}); they stay as they are"
                )
        else:
            return
        keeper.spill_all()
        torch.cuda.empty_cache()


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
            self._hand_over(found)
        return super().run_node(n)

    def _hand_over(self, found: Cut) -> None:
        """The copies are the keeper's from here on: nothing else holds them while a node runs."""
        tensors = [self._got.pop((id(found), at)) for at in range(len(found.inputs))]
        how: list[Holding] = [
            "reference" if source in self._state else "own" for source in found.inputs
        ]
        self._keep(found, tensors, how)
