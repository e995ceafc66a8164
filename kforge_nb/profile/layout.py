"""Whether a model's graphs are laid out channels-last: asked for, or measured and found faster.

With ``auto`` each distinct convolution of the workload is timed on its own, on inputs as they are
and on channels-last ones, and the turns at a graph's entry and exit are added. The layout is taken
where that surely saves a part of the workload's time worth having. Turns inside a graph are not
counted: they stand behind norms and activations, whose kernels write in either layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from kforge_nb.profile.cold import ColdTimer
from kforge_nb.profile.device import kind_of
from kforge_nb.profile.left_out import needs_gradient
from kforge_nb.profile.timing import interleaved_us
from kforge_nb.targets.channels_last import is_convolution, is_turn, lay_out
from kforge_nb.targets.target import TensorSpec
from kforge_nb.workload.capture import Workload
from kforge_nb.workload.graphs import CapturedGraph

__all__ = ["LEAST_GAIN", "choose_layout", "lay_out_graphs"]

LEAST_GAIN = 0.03
"""The part of the workload's time that a layout must save before it is taken."""
SURELY = 1.05
"""By so much the convolutions themselves must be faster: less is the noise of a short timing."""
LOOKS = 2
"""So often everything is timed; each time must say that the layout gains."""
SIDES = ("keep", "channels_last", "turn")
_LEAST_S = 0.005


@dataclass(slots=True)
class _Work:
    """One distinct call to time: how often the workload makes it, and how to make it."""

    calls: int
    make: Callable[[], Callable[[], Any]]
    side: str
    device: str


def choose_layout(workload: Workload, wanted: str, whole_us: float, seconds: float) -> None:
    """Lay the workload's graphs out where that is wanted, and note what was measured and chosen.

    ``wanted`` is ``auto``, ``keep`` or ``channels_last``; ``whole_us`` is the workload's time, of
    the device where it has one of its own; ``seconds`` about how long timing may take.
    """
    if wanted == "keep" or workload.layout != "keep":
        return
    laid = [_laid(graph) for graph in workload.graphs]
    pairs = [(graph, gm) for graph, gm in zip(workload.graphs, laid, strict=True) if gm is not None]
    if wanted == "channels_last":
        _say_what_stays(workload)
        _take(workload, pairs)
        return
    if not pairs:
        return
    try:
        found = [_measured(pairs, seconds / LOOKS) for _ in range(LOOKS)]
    except RuntimeError as problem:  # a GPU without room for it, or a convolution that will not run
        first = str(problem).strip().splitlines() or [""]
        workload.note(f"the layout of convolutions was not measured: {first[0][:200]}")
        return
    as_is, turned, turns = (_milliseconds(look[side] for look in found) for side in SIDES)
    against = _against(found, whole_us)
    workload.note(
        f"convolutions take {as_is} as they are and {turned} channels-last, turning inputs and "
        f"outputs {turns}; the model "
        + (f"stays as it is laid out: {against}" if against else "is laid out channels-last")
    )
    if not against:
        _take(workload, pairs)


def _against(found: Sequence[Mapping[str, float]], whole_us: float) -> str:
    """Why the layout is not taken, in words; nothing where every look says that it gains."""
    reasons = [_lost(look, whole_us) for look in found]
    if not all(reasons) and any(reasons):
        return f"only {reasons.count('')} of {len(found)} timings shows a gain worth having"
    return reasons[-1]


def _lost(look: Mapping[str, float], whole_us: float) -> str:
    """Why one look does not say that the layout surely saves enough; nothing where it does."""
    as_is, turned, turns = (look[side] for side in SIDES)
    saved = as_is - turned - turns
    if as_is < SURELY * turned:
        return "the convolutions are not surely faster channels-last"
    if saved <= 0:
        return "turning inputs and outputs takes what it would save"
    if saved < LEAST_GAIN * whole_us:
        return f"less than {LEAST_GAIN:.0%} of a run would be saved ({saved / whole_us:.1%})"
    return ""


def _milliseconds(timed: Iterable[float]) -> str:
    """The times of all looks as one figure, or from the least to the most where they differ."""
    ordered = [f"{us / 1e3:.3g}" for us in sorted(timed)]
    return f"{ordered[0]} ms" if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]} ms"


def lay_out_graphs(workload: Workload) -> None:
    """Lay the graphs of a workload out as those of an earlier run were."""
    choose_layout(workload, "channels_last", 0.0, 0.0)


def _laid(graph: CapturedGraph) -> fx.GraphModule | None:
    if needs_gradient(graph):
        return None
    found = lay_out(graph.gm, graph.example_inputs)
    return found.gm if found.changed else None


def _take(workload: Workload, pairs: Iterable[tuple[CapturedGraph, fx.GraphModule]]) -> None:
    for graph, gm in pairs:
        graph.gm = gm
        workload.layout = "channels_last"
        workload.note(
            "targets are cut from graphs laid out channels-last: alone, kernels are compared with "
            "eager on the same channels-last tensors"
        )


def _say_what_stays(workload: Workload) -> None:
    """Why graphs with convolutions are not laid out although that was asked for."""
    wanting = [g for g in workload.graphs if any(map(is_convolution, g.gm.graph.nodes))]
    if not wanting:
        workload.note("no convolution of images is called, so --layout channels_last does nothing")
    for graph in wanting:
        why = "a gradient is needed in it"
        if not needs_gradient(graph):
            why = lay_out(graph.gm, graph.example_inputs).reason
        if why:
            workload.note(f"{graph.call.module_name} is not laid out channels-last: {why}")


def _measured(
    pairs: Sequence[tuple[CapturedGraph, fx.GraphModule]], seconds: float
) -> dict[str, float]:
    """Microseconds of one run of the workload by side: ``keep``, ``channels_last``, ``turn``."""
    works: dict[Any, _Work] = {}
    for graph, gm in pairs:
        _add_convolutions(works, graph)
        _add_turns(works, graph, gm)
    spent = dict.fromkeys(SIDES, 0.0)
    with torch.no_grad():
        for work, us in zip(works.values(), _timed(list(works.values()), seconds), strict=True):
            spent[work.side] += us * work.calls
    return spent


def _add_convolutions(works: dict[Any, _Work], graph: CapturedGraph) -> None:
    """Each distinct convolution on both layouts of what it is applied to."""
    for node in graph.gm.graph.nodes:
        image = node.args[0] if is_convolution(node) and node.args else None
        value = image.meta.get("example_value") if isinstance(image, fx.Node) else None
        if value is None or value.dim() != 4:
            continue
        specs = tuple(_spec(source) for source in node.all_input_nodes)
        rest = repr(map_arg((node.args, node.kwargs), _anything))
        for side in ("keep", "channels_last"):
            key = (side, str(node.target), specs, rest, graph.state)
            if key not in works:
                make = partial(_convolution, graph, node, side)
                works[key] = _Work(0, make, side, str(value.device))
            works[key].calls += graph.calls


def _anything(_: fx.Node) -> None:
    """Stands for every tensor."""


def _convolution(graph: CapturedGraph, node: fx.Node, side: str) -> Callable[[], Any]:
    """A call of one convolution on random numbers."""
    values = {source: _like(source) for source in node.all_input_nodes}
    if side == "channels_last":
        image = values[node.args[0]]  # type: ignore[index]
        values[node.args[0]] = image.contiguous(memory_format=torch.channels_last)  # type: ignore[index]
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    target: Any = node.target

    def call() -> Any:
        return target(*args, **kwargs)

    if not graph.state.autocast:
        return call

    def cast() -> Any:
        with graph.state.restored(), torch.no_grad():
            return target(*args, **kwargs)

    return cast


def _add_turns(works: dict[Any, _Work], graph: CapturedGraph, gm: fx.GraphModule) -> None:
    """The turns of a graph's inputs and outputs."""
    for node in gm.graph.nodes:
        if node.op != "call_method" or node.target != "contiguous":
            continue
        source, ends = node.args[0], any(user.op == "output" for user in node.users)
        if not (ends or (is_turn(node) and source.op == "placeholder")):
            continue
        spec, wanted = _spec(source), _spec(node)
        if spec is None or spec == wanted:
            continue
        key = ("turn", spec, wanted)
        if key not in works:
            works[key] = _Work(0, partial(_turn, source, node), "turn", spec.device)
        works[key].calls += graph.calls


def _turn(source: fx.Node, node: fx.Node) -> Callable[[], Any]:
    layout = torch.channels_last if is_turn(node) else torch.contiguous_format
    return partial(_like(source).contiguous, memory_format=layout)


def _spec(node: fx.Node) -> TensorSpec | None:
    value = node.meta.get("example_value")
    return TensorSpec.of(value) if isinstance(value, torch.Tensor) else None


def _like(node: fx.Node) -> torch.Tensor:
    """Random numbers laid out as the node's value."""
    value = node.meta["example_value"]
    made = torch.empty_strided(
        tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device=value.device
    )
    return made.normal_() if made.is_floating_point() else made.zero_()


def _timed(works: Sequence[_Work], seconds: float) -> list[float]:
    """Microseconds of each, as the profile times targets."""
    found = [0.0] * len(works)
    each = max(seconds / max(len(works), 1), _LEAST_S)
    here = [i for i, work in enumerate(works) if kind_of(work.device) == "cpu"]
    for pair in (here[k : k + 2] for k in range(0, len(here), 2)):  # memory for one pair at a time
        calls = {i: works[i].make() for i in pair}
        for i, us in interleaved_us(calls, "cpu", seconds=each * len(pair)).items():
            found[i] = us
    timers: dict[str, ColdTimer] = {}
    for i, work in enumerate(works):
        if kind_of(work.device) != "cpu":
            timer = timers.setdefault(work.device, ColdTimer(work.device))
            found[i] = timer.us(work.make(), seconds=each)
    return found
