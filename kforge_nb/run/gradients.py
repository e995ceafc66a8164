"""A workload that keeps gradients everywhere cannot get a kernel, and hears it before any search.

The guard leaves every graph alone through which a gradient may flow, since a kernel has no
backward. Where that is so for all of a workload's graphs, searching would cost minutes for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge_nb.errors import BadInput
from kforge_nb.guard.backend import gradients_block

if TYPE_CHECKING:
    from kforge_nb.workload.capture import Workload

__all__ = ["refuse_gradients"]


def refuse_gradients(workload: Workload) -> None:
    """BadInput when a gradient may flow through every captured graph; the guard's own rule."""
    if not workload.graphs or not gradients_block(workload):
        return
    names = ", ".join(dict.fromkeys(graph.call.module_name for graph in workload.graphs))
    raise BadInput(
        f"{names} runs with gradients on, and kernels are used only where no gradient is needed, "
        "so a search could change nothing: call it under `with torch.inference_mode():`, or freeze "
        "it first by model.requires_grad_(False)"
    )
