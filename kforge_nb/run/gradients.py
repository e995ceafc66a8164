"""A workload that keeps gradients everywhere cannot get a kernel, and hears it before any search.

The guard leaves every graph alone through which a gradient may flow, since a kernel has no
backward. Where that is so for all of a workload's graphs, searching would cost minutes for nothing.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from kforge_nb.errors import BadInput
from kforge_nb.guard.backend import gradients_block

if TYPE_CHECKING:
    from kforge_nb.workload.calls import ModuleCall
    from kforge_nb.workload.capture import Workload

__all__ = ["refuse_gradients"]


def refuse_gradients(workload: Workload) -> None:
    """BadInput when a gradient may flow through every captured graph; the guard's own rule."""
    if not workload.graphs or not gradients_block(workload):
        return
    cures = [*_input_cures(workload), *_weight_cures(workload)]
    names = ", ".join(dict.fromkeys(graph.call.module_name for graph in workload.graphs))
    raise BadInput(
        f"{names} runs with gradients on, and kernels are used only where no gradient is needed, "
        "so a search could change nothing: call it under `with torch.inference_mode():`"
        f"{', or ' if cures else ''}{' and '.join(cures)}"
    )


def _weight_cures(workload: Workload) -> list[str]:
    """What to do about weights that require a gradient; nothing where they are frozen."""
    modules = {id(call.module): call.module for call in workload.calls}.values()
    if any(p.requires_grad for module in modules for p in module.parameters()):
        return ["freeze it first by model.requires_grad_(False)"]
    return []


def _input_cures(workload: Workload) -> list[str]:
    """What to do about inputs that require a gradient, which freezing a model does not change."""
    named = dict.fromkeys(
        f"{name} of {call.module_name}"
        for call in workload.calls
        for name, value in _arguments(call).items()
        if any(isinstance(t, torch.Tensor) and t.requires_grad for t in tree_leaves(value))
    )
    if not named:
        return []
    verb = "requires" if len(named) == 1 else "require"
    told = ", ".join(named)
    return [f"give it inputs without one by .detach() (the input {told} {verb} a gradient)"]


def _arguments(call: ModuleCall) -> dict[str, Any]:
    """The arguments of a call by the names that ``forward`` gives them, as far as it tells."""
    try:
        bound = inspect.signature(call.module.forward).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return {**{str(i): a for i, a in enumerate(call.args)}, **call.kwargs}
    return dict(bound.arguments)
