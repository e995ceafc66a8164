"""The torch.compile backend: swap accepted targets for launches, hand the rest to a compiler.

A ``Backend`` object belongs to one installation (an ``apply``, a compiled copy, or the ``kforge``
entry point) and keeps a report of every graph that Dynamo gave it. It never fails a compile: where
something cannot be replaced the graph stays as it is, with the reason in the report.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from kforge_nb.errors import BadInput, KForgeError
from kforge_nb.guard import launch
from kforge_nb.guard.accepted import Accepted
from kforge_nb.guard.laid_out import turned, wants_layout
from kforge_nb.guard.marks import as_dynamos
from kforge_nb.guard.missed import Missed, Place, missed_in
from kforge_nb.guard.policy import rest_compiler
from kforge_nb.guard.replay import Replay
from kforge_nb.targets import partition, rewrite

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import fx

    from kforge_nb.guard.entry import GuardedCall
    from kforge_nb.targets.partition import Cut
    from kforge_nb.targets.target import Granularity
    from kforge_nb.workload.calls import ModuleCall
    from kforge_nb.workload.capture import Workload
    from kforge_nb.workload.graphs import CapturedGraph

__all__ = [
    "Accepted",
    "Backend",
    "GraphReport",
    "gradient_needed",
    "gradients_block",
    "install",
    "kforge",
]

ORDER: tuple[Granularity, ...] = ("region", "module", "op")
"""Larger wholes first: where cuts of two granularities overlap, the first one keeps its nodes."""


@dataclass(slots=True)
class GraphReport:
    """What the backend did with one graph.

    ``replaced`` counts occurrences by fingerprint; ``reasons`` says in words what was not done.
    ``replay`` is the graph's CUDA graph, where the rest has one; ``missed`` are places of kernels
    that run their original on every call of the graph.
    """

    index: int
    nodes: int
    rest: str
    replaced: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    calls: int = 0
    replay: Replay | None = None
    missed: Missed = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """``reasons``, and why there is no CUDA graph."""
        why = self.replay.why_not if self.replay is not None else ""
        return [*self.reasons, *([f"no CUDA graph: {why}"] if why else [])]


class Backend:
    """A backend for ``torch.compile(model, backend=Backend(accepted, rest="eager"))``.

    Args:
        accepted: kernels to install, at most one for each target.
        rest: what compiles the remaining graph.
        others: targets that keep their original on purpose, which are no fallbacks.

    Raises:
        BadInput: an unknown rest, or two kernels for one target.
        MissingTool: there is no C++ compiler for the launch op.
    """

    def __init__(
        self, accepted: Iterable[Accepted], rest: str = "eager", *, others: Iterable[Place] = ()
    ) -> None:
        self.accepted: dict[str, Accepted] = {}
        for kernel in accepted:
            if kernel.target_fingerprint in self.accepted:
                raise BadInput(f"two kernels for the target {kernel.target_fingerprint[:12]}")
            self.accepted[kernel.target_fingerprint] = kernel
        self.rest = rest
        self.compile_rest = rest_compiler(rest)
        self.graphs: list[GraphReport] = []
        self.refused: dict[str, str] = {}
        self.handles: dict[str, int] = {}
        for fingerprint, kernel in self.accepted.items():
            try:
                self.handles[fingerprint] = kernel.register()
            except KForgeError as problem:
                self.refused[fingerprint] = str(problem)
        self.calls = 0
        # Weak: torch holds a backend for as long as code that it compiled, and what held that code,
        # or a module, would never be let go of, also after undo().
        self.codes: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
        self.users: weakref.WeakSet[GuardedCall] = weakref.WeakSet()
        self.original = 0
        self._turn = -1
        self._others = tuple(others)
        self._kernels: tuple[Place, ...] | None = None

    def __call__(
        self, gm: fx.GraphModule, example_inputs: list[Any], **_: Any
    ) -> Callable[..., Any]:
        """Compile one graph for Dynamo."""
        self._remember_code()
        self._give_back()
        report = GraphReport(len(self.graphs), len(gm.graph.nodes), self.rest)
        self.graphs.append(report)
        if gradient_needed(gm, example_inputs):
            report.reasons.append("a gradient is needed: the graph is left unmodified")
            self._look_for_missed(gm, example_inputs, report, gradient=True)
            return self._counted(self._rest(gm, example_inputs, report), gm, report)
        base = self._laid_out(gm, example_inputs)
        rewritten = self._rewrite(base, example_inputs, report)
        self._look_for_missed(base, example_inputs, report)
        return self._counted(self._rest(rewritten, example_inputs, report), gm, report)

    def _give_back(self) -> None:
        """A new graph may come of ``half()`` or ``to()``, and older recordings be of no more use.

        They would be made again if their graphs were called again.
        """
        for report in self.graphs:
            if report.replay is not None:
                report.replay.release_if_moved()

    def _remember_code(self) -> None:
        """Whose code object torch caches this graph on."""
        context = TracingContext.try_get()
        traced = getattr(context, "traced_code", None)
        if traced:
            self.codes.add(traced[0])

    def _laid_out(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
        """The graph that kernels are looked for in: as they were searched, or ``gm`` itself."""
        if not wants_layout(self.accepted[fingerprint] for fingerprint in self.handles):
            return gm
        found = turned(gm, example_inputs)
        return gm if found is None else found

    def _rewrite(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], report: GraphReport
    ) -> fx.GraphModule:
        if not self.handles:
            return gm
        devices = {str(t.device) for t in example_inputs if isinstance(t, torch.Tensor)}
        if len(devices) > 1:
            report.reasons.append(
                f"its tensors lie on {' and '.join(sorted(devices))}; only targets whose tensors "
                "are all on one device are replaced"
            )
        try:
            rewritten, report.replaced = install(gm, example_inputs, self.accepted, self.handles)
        except Exception as problem:  # noqa: BLE001 (an original that runs beats a failed compile)
            report.reasons.append(f"cutting failed: {type(problem).__name__}: {problem}")
            return gm
        missing = [f for f in self.handles if f not in report.replaced]
        if missing:
            report.reasons.append(f"{len(missing)} accepted targets do not occur in this graph")
        return rewritten

    def _rest(
        self, gm: fx.GraphModule, example_inputs: list[Any], report: GraphReport
    ) -> Callable[..., Any]:
        try:
            run = self.compile_rest(gm, example_inputs)
        except Exception as problem:
            if self.rest == "eager":
                raise
            report.reasons.append(
                f"{self.rest} failed ({type(problem).__name__}: {str(problem)[:200]}); "
                "this graph runs with an eager rest"
            )
            report.rest = "eager"
            return gm.forward
        report.replay = run if isinstance(run, Replay) else None
        return run

    def replayed(self, fingerprint: str) -> int:
        """How often a target's kernel ran inside CUDA graphs."""
        return sum(
            g.replay.replays * g.replaced.get(fingerprint, 0)
            for g in self.graphs
            if g.replay is not None
        )

    def release(self) -> None:
        """Give back what recorded CUDA graphs hold; later calls record anew."""
        for report in self.graphs:
            if report.replay is not None:
                report.replay.release()

    def _look_for_missed(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        report: GraphReport,
        *,
        gradient: bool = False,
    ) -> None:
        """Once a graph: which kernels have a place in it that runs the original, and why."""
        if not self.users or self.handles.keys() <= report.replaced.keys():
            return
        if self._kernels is None:
            self._kernels = tuple(
                Place.of(f, launch.kernel(handle).reference, self.accepted[f].inputs)
                for f, handle in self.handles.items()
            )
        installed = {self.accepted[f].granularity for f in self.handles}
        try:
            report.missed = missed_in(
                gm,
                example_inputs,
                self._kernels,
                self._others,
                [g for g in ORDER if g in installed],
                replaced=report.replaced,
                gradient=gradient,
            )
        except Exception as problem:  # noqa: BLE001 (what cannot be counted must not fail a call)
            report.reasons.append(
                f"calls of it that run originals are not counted ({type(problem).__name__})"
            )

    def missed(self, fingerprint: str) -> Counter[str]:
        """How often a target's original ran in graphs without its launch, by reason."""
        found: Counter[str] = Counter()
        for graph in self.graphs:
            for reason, places in graph.missed.get(fingerprint, {}).items():
                found[reason] += graph.calls * places
        return +found

    def places(self, since: int) -> Counter[str]:
        """Places of each target, launched or not, in what ran of the graphs from ``since`` on."""
        found: Counter[str] = Counter()
        for graph in self.graphs[since:]:
            for fingerprint, count in graph.replaced.items():
                found[fingerprint] += graph.calls * count
            for fingerprint, reasons in graph.missed.items():
                found[fingerprint] += graph.calls * sum(reasons.values())
        return found

    def _counted(
        self, run: Callable[..., Any], original: fx.GraphModule, report: GraphReport
    ) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.calls += 1
            report.calls += 1
            if (
                forward_ad._current_level >= 0
            ):  # no guard of Dynamo's sees it; kernels lose tangents
                return original.forward(*args)
            return run(*args)

        def counted_as_missed(*args: Any) -> Any:
            turn = sum(user.calls for user in self.users)
            if turn != self._turn:  # the first such graph of this call of a module
                self._turn = turn
                self.original += 1
            return counted(*args)

        return counted_as_missed if report.missed else counted


def gradient_needed(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether a gradient may flow through this graph.

    Dynamo guards grad mode and ``requires_grad``, so the answer holds for as long as the compiled
    code runs. A graph that switches grad mode on inside counts as well.
    """
    wanted = any(isinstance(t, torch.Tensor) and t.requires_grad for t in example_inputs)
    if not wanted:
        return any(_makes_leaf(node) for node in gm.graph.nodes)
    return torch.is_grad_enabled() or any(_enables_grad(node) for node in gm.graph.nodes)


def gradients_block(workload: Workload) -> bool:
    """Whether every graph of the workload needs a gradient, so that no kernel would ever run.

    Graphs that ``capture_graphs`` has found decide; where it has not run, the recorded calls do: a
    call needs a gradient if grad mode was on and a parameter or an argument requires one.
    """
    if workload.graphs:
        return all(_graph_blocked(graph) for graph in workload.graphs)
    return bool(workload.calls) and all(_call_blocked(call) for call in workload.calls)


def _graph_blocked(graph: CapturedGraph) -> bool:
    if graph.state.inference:
        return False
    with torch.set_grad_enabled(graph.state.grad):
        return gradient_needed(graph.gm, graph.example_inputs)


def _call_blocked(call: ModuleCall) -> bool:
    if not call.grad_state.grad or call.grad_state.inference:
        return False
    tensors = (*call.module.parameters(), *tree_leaves((call.args, call.kwargs)))
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _enables_grad(node: fx.Node) -> bool:
    return (
        node.op == "call_function"
        and node.target is torch._C._set_grad_enabled
        and (bool(node.args and node.args[0]))
    )


def _makes_leaf(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "requires_grad_"


def install(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    accepted: Mapping[str, Accepted],
    handles: Mapping[str, int],
) -> tuple[fx.GraphModule, dict[str, int]]:
    """A copy of the graph in which each cut that has a kernel is one launch.

    Args:
        gm: the graph as Dynamo gave it; it is not changed.
        example_inputs: its inputs.
        accepted: kernels by fingerprint.
        handles: the launch handles of those to install, by fingerprint.

    Returns:
        The new graph (``gm`` itself where nothing matched) and the occurrences by fingerprint.
    """
    used = {accepted[fingerprint].granularity for fingerprint in handles}
    replaced: Counter[str] = Counter()
    for granularity in (g for g in ORDER if g in used):
        vendor = any(accepted[f].granularity == granularity == "op" for f in handles)
        swaps = [
            rewrite.Replacement(
                cut, torch.ops.kforge.launch.default, (handles[cut.fingerprint],), packed=True
            )
            for cut in partition.cut(gm, example_inputs, granularity, vendor=vendor)
            if cut.fingerprint in handles and _plain(cut)
        ]
        if swaps:
            gm = as_dynamos(rewrite.replace(gm, swaps), gm)
            replaced.update(swap.cut.fingerprint for swap in swaps)
    return gm, dict(replaced)


def _plain(cut: Cut) -> bool:
    """Whether no value carries a pending negation or conjugation, which a kernel would not see."""
    values = (node.meta.get("example_value") for node in cut.inputs)
    return not any(isinstance(v, torch.Tensor) and (v.is_neg() or v.is_conj()) for v in values)


def kforge(
    gm: fx.GraphModule, example_inputs: list[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The entry point ``torch.compile(model, backend="kforge")``: kernels from the registry.

    ``options={"rest": "inductor"}`` chooses the rest. A kernel is verified anew when a graph first
    needs it; see :mod:`kforge_nb.guard.stored`.
    """
    from kforge_nb.guard.stored import stored_backend

    return stored_backend(str((options or {}).get("rest", "eager")))(gm, example_inputs)
