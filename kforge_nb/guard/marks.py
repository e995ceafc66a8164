"""What Dynamo leaves on a graph for compilers, kept when the graph is rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

__all__ = ["as_dynamos"]


def as_dynamos(rewritten: fx.GraphModule, gm: fx.GraphModule) -> fx.GraphModule:
    """Pass on what Dynamo left on ``gm`` for compilers, and return ``rewritten``.

    Above all it says which inputs are weights: Inductor looks at the alignment of every other input
    on each call.
    """
    if hasattr(gm, "_param_name_to_source"):
        rewritten._param_name_to_source = gm._param_name_to_source
    for new, old in zip(_placeholders(rewritten), _placeholders(gm), strict=True):
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    return rewritten


def _placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]
