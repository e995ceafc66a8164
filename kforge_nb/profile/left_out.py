"""What a profile's table does not show, in words: needed gradients and operators without a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from kforge_nb.targets.operators import base_name, describe, is_training_call, spelling

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target
    from kforge_nb.workload.capture import CapturedGraph, Workload

__all__ = ["gradient_note", "left_out_note", "needs_gradient", "training_note"]

_SHOWN = 6
_FUSED_LAYER = "_transformer_encoder_layer_fwd"


def gradient_note(workload: Workload) -> str | None:
    """Which modules run where a gradient is needed, so that no kernel will ever run there."""
    names = {g.call.module_name: None for g in workload.graphs if needs_gradient(g)}
    if not names:
        return None
    return (
        f"gradients are enabled where {', '.join(names)} runs, and kernels run only where none is "
        "needed: call it under torch.inference_mode() or torch.no_grad()"
    )


def left_out_note(workload: Workload, targets: Iterable[Target]) -> str | None:
    """Operators on tensors that have no row: torch runs them as before, and nobody timed them."""
    shown: dict[int, set[str]] = {}
    for target in targets:
        for place in target.occurrences:
            shown.setdefault(place.graph, set()).update(place.nodes)
    counts: Counter[str] = Counter()
    for graph in workload.graphs:
        for name in _missing(graph, shown.get(graph.index, set())):
            counts[name] += graph.calls
    if not counts:
        return None
    told = [f"{name} ×{count}" for name, count in counts.most_common(_SHOWN)]
    more = [f"{len(counts) - _SHOWN} more"] if len(counts) > _SHOWN else []
    text = f"left to torch and not in the table: {', '.join(told + more)}"
    if _FUSED_LAYER in counts:
        text += (
            ". A whole encoder layer is one operator of torch here; "
            "torch.backends.mha.set_fastpath_enabled(False) runs its parts instead"
        )
    return text


def training_note(workload: Workload) -> str | None:
    """Which modules run as in training although that changes what they compute."""
    modules = {id(call.module): (call.module_name, call.module) for call in workload.calls}
    names = [name for name, module in modules.values() if any(map(_trains, module.modules()))]
    if not names:
        return None
    return (
        f"in training mode (dropout, statistics of the batch): {', '.join(names)}; where that is "
        "not meant, call .eval() on it before"
    )


def _trains(module: nn.Module) -> bool:
    """Whether a module computes something else in training, and is told to train."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.training and module.p > 0
    return module.training and isinstance(module, nn.modules.batchnorm._BatchNorm)


def needs_gradient(graph: CapturedGraph) -> bool:
    """Whether a gradient may flow through a graph, which then runs as the user wrote it."""
    if not graph.state.grad or graph.state.inference:
        return False
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in graph.example_inputs)


def _missing(graph: CapturedGraph, shown: set[str]) -> Iterator[str]:
    """Names of the costly operators of a graph that belong to no target."""
    for node in graph.gm.graph.nodes:
        if not node.op.startswith("call") or node.name in shown or not _gives_tensors(node):
            continue
        operator = describe(node)
        if operator.kind in ("vendor", "opaque", "random"):
            found = spelling(node.target)
            name = base_name(*found)[0] if found else _own_name(node.target)
            yield f"{name} (training)" if is_training_call(node, name) else name


def _own_name(target: Any) -> str:
    """Name of a call that is not one of torch's."""
    return str(getattr(target, "__name__", target)).rpartition("::")[2]


def _gives_tensors(node: fx.Node) -> bool:
    value: Any = node.meta.get("example_value", node.meta.get("val"))
    if isinstance(value, tuple | list):
        return any(isinstance(v, torch.Tensor) for v in value)
    return isinstance(value, torch.Tensor)
