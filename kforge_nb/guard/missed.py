"""Places of installed kernels in graphs that run the original: which kernels', and for what reason.

The launch op counts the calls that reach it. A graph that Dynamo compiled for another batch size,
or for a call that needs gradients, has no launch to reach, so what it costs is found out once, when
it is compiled: its cuts are compared with the targets of the kernels, sizes left aside. A call of
such a graph is then so many fallbacks, and calls of graphs are counted anyway.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from kforge_nb.guard.table import DEVICE, DTYPE, GRAD, LAYOUT, REASONS, SHAPE
from kforge_nb.targets import partition
from kforge_nb.targets.operators import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kforge_nb.targets.partition import Cut
    from kforge_nb.targets.target import Granularity, TensorSpec

__all__ = ["AUTOCAST", "HOOKED", "UNCOMPILED", "VARYING", "Missed", "Place", "missed_in"]

VARYING = "a graph for many shapes"
AUTOCAST = "autocast is on"
UNCOMPILED = "a call that ran no compiled graph"
HOOKED = "hooks were added after apply()"

Missed = dict[str, dict[str, int]]
"""Places in a graph that run the original: fingerprint of the kernel, then reason, then how many.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """What a target looks like wherever it occurs: its operators, and the sizes it has at home."""

    fingerprint: str
    form: tuple[Any, ...]
    inputs: tuple[TensorSpec, ...]

    @classmethod
    def of(
        cls, fingerprint: str, graph: fx.GraphModule | None, inputs: Iterable[TensorSpec]
    ) -> Place:
        """The place of a target; without a graph it is known by its fingerprint alone."""
        return cls(fingerprint, _form(graph) if graph is not None else (), tuple(inputs))


def missed_in(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    kernels: Sequence[Place],
    others: Sequence[Place],
    granularities: Iterable[Granularity],
    *,
    replaced: Mapping[str, int],
    gradient: bool,
) -> Missed:
    """Places of ``kernels`` in a graph that are no launches; looks at the graph, changes nothing.

    Args:
        gm: the graph as Dynamo gave it.
        example_inputs: its inputs.
        kernels: the places of the installed kernels.
        others: the run's other targets, which keep their original on purpose.
        granularities: how to cut.
        replaced: launches in the graph, by fingerprint.
        gradient: the graph needs a gradient, which is then the reason everywhere.
    """
    varying = _varies(example_inputs)
    if varying:
        gm, example_inputs = _fixed(gm, example_inputs)
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    launched = Counter(replaced)
    for cut in _cuts(gm, example_inputs, granularities):
        kernel, reason = _nearest(cut, kernels, others)
        if kernel is None:
            continue
        if not reason and launched[kernel.fingerprint] > 0:
            launched[kernel.fingerprint] -= 1
            continue
        why = REASONS[GRAD] if gradient else VARYING if varying else reason or REASONS[LAYOUT]
        found[kernel.fingerprint][why] += 1
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        absent = [k for k in kernels if k.fingerprint not in {*found, *replaced}]
        for cut in _cuts(gm, example_inputs, granularities, autocast=False) if absent else ():
            kernel, _ = _nearest(cut, absent, others)
            if kernel is not None:
                found[kernel.fingerprint][AUTOCAST] += 1
    return {fingerprint: dict(reasons) for fingerprint, reasons in found.items()}


def _cuts(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    granularities: Iterable[Granularity],
    *,
    autocast: bool = True,
) -> list[Cut]:
    with ExitStack() as stack:
        for device in () if autocast else ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        return [
            cut
            for granularity in granularities
            for cut in partition.cut(gm, example_inputs, granularity, vendor=granularity == "op")
        ]


def _nearest(
    cut: Cut, kernels: Sequence[Place], others: Sequence[Place]
) -> tuple[Place | None, str]:
    """The kernel whose place a cut is, and what differs; None for the places of other targets."""
    known = {place.fingerprint: place for place in others}
    known.update((place.fingerprint, place) for place in kernels)
    chosen = known.get(cut.fingerprint)
    if chosen is None:
        form = _form(cut.to_graph())
        alike = [place for place in (*kernels, *others) if place.form == form]
        chosen = max(alike, key=lambda place: _likeness(place, cut.input_specs), default=None)
    if chosen is None or all(chosen is not kernel for kernel in kernels):
        return None, ""
    same = chosen.fingerprint == cut.fingerprint
    return chosen, "" if same else _difference(chosen.inputs, cut.input_specs)


def _likeness(place: Place, specs: Sequence[TensorSpec]) -> int:
    """How many sizes are those at home: another batch leaves the width as it was."""
    return sum(
        a == b
        for mine, given in zip(place.inputs, specs, strict=False)
        if len(mine.shape) == len(given.shape)
        for a, b in zip(mine.shape, given.shape, strict=True)
    )


def _difference(home: Sequence[TensorSpec], given: Sequence[TensorSpec]) -> str:
    pairs = list(zip(home, given, strict=False))
    if any(a.dtype != b.dtype for a, b in pairs):
        return REASONS[DTYPE]
    if any(a.device != b.device for a, b in pairs):
        return REASONS[DEVICE]
    if all(a.shape == b.shape for a, b in pairs) and any(a.stride != b.stride for a, b in pairs):
        return REASONS[LAYOUT]
    return REASONS[SHAPE]


def _form(gm: fx.GraphModule) -> tuple[Any, ...]:
    """Operators and what flows between them; whole numbers, which may be sizes, are left out."""
    names: dict[fx.Node, str] = {}
    rows: list[Any] = []
    for node in gm.graph.nodes:
        if node.op == "output":
            rows.append(_plain(node.args, names))
            continue
        names[node] = f"v{len(names)}"
        if node.op != "placeholder":
            op = describe(node)
            rows.append((op.name, op.in_place, _plain((node.args, dict(node.kwargs)), names)))
    return tuple(rows)


def _plain(value: Any, names: Mapping[fx.Node, str]) -> Any:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, list | tuple):
        return tuple(_plain(item, names) for item in value)
    if isinstance(value, dict):
        return tuple((key, _plain(item, names)) for key, item in sorted(value.items()))
    whole = isinstance(value, int) and not isinstance(value, bool)
    return "n" if whole else repr(value)


def _varies(example_inputs: Sequence[Any]) -> bool:
    """Whether a graph was compiled for sizes that are not fixed."""
    return any(
        isinstance(value, torch.SymInt)
        or (
            isinstance(value, torch.Tensor)
            and not all(isinstance(n, int) for n in (*value.shape, *value.stride()))
        )
        for value in example_inputs
    )


def _fixed(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """A copy of a graph for many shapes with the sizes that it was traced with, and its inputs."""
    graph, env, inputs = fx.Graph(), dict[fx.Node, Any](), list[Any]()
    given = iter(example_inputs)
    for node in gm.graph.nodes:
        value = next(given, None) if node.op == "placeholder" else None
        if node.op == "placeholder" and isinstance(value, torch.SymInt | int):
            env[node] = _hint(value)
            continue
        if node.op == "placeholder":
            inputs.append(_fixed_tensor(value) if isinstance(value, torch.Tensor) else value)
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        if _is_sum(node) and all(isinstance(a, int) for a in args) and not kwargs:
            env[node] = node.target(*args)
            continue
        made = graph.create_node(node.op, node.target, args, kwargs, node.name)
        env[node] = made
        made.meta = {key: v for key, v in node.meta.items() if key == "nn_module_stack"}
    return fx.GraphModule(gm, graph), inputs


def _is_sum(node: fx.Node) -> bool:
    """Whether a node computes a size from sizes."""
    home = getattr(node.target, "__module__", "")
    return node.op == "call_function" and home in (operator.add.__module__, "torch")


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _fixed_tensor(like: torch.Tensor) -> torch.Tensor:
    """A tensor without data, of the sizes that a symbolic one was traced with."""
    with FakeTensorMode():
        return torch.empty_strided(
            tuple(_hint(n) for n in like.shape),
            tuple(_hint(n) for n in like.stride()),
            dtype=like.dtype,
            device=like.device,
        )
