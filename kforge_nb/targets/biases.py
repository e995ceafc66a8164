"""Biases of convolutions as additions of their own, so that the region behind them can hold them.

On a GPU a convolution's library adds its bias in a second pass over the whole answer. Here such a
call is written as the convolution without its bias and an addition, which computes the same bits
there: the norm or the residual behind it then adds the bias on its way. Where no cut takes the
addition, the graph is written with the convolution as it was.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kforge_nb.targets.operators import describe

__all__ = ["DEVICES", "SplitBias", "bias_of", "fold", "split_biases", "without_bias"]

DEVICES = ("cuda",)
"""Kinds of devices whose libraries add a bias in a pass of its own."""
_RANKS = {"conv2d": 4, "conv3d": 5}
"""Convolutions and how many dimensions a batch has; a single image has its channels elsewhere."""
_GROUPS = 6  # place of the argument
_KEY = "kforge_bias"
_LOW = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class SplitBias:
    """What an addition stands for: the convolution without bias, the bias as a view, the call."""

    conv: fx.Node
    view: fx.Node
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def bias_of(node: fx.Node) -> SplitBias | None:
    """The split convolution whose bias this addition adds, or None."""
    found = node.meta.get(_KEY)
    return found if isinstance(found, SplitBias) else None


def split_biases(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph with biases taken out; ``gm`` itself where there is nothing to take."""
    if not any(_has_bias(node) for node in gm.graph.nodes):
        return gm
    graph, new = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in gm.graph.nodes:
        if _has_bias(node):
            new[node] = _split(graph, node, new)
        else:
            new[node] = graph.node_copy(node, new.__getitem__)
    graph.lint()
    result = fx.GraphModule(gm, graph)
    result.meta = dict(gm.meta)
    return result


def _bias(node: fx.Node) -> Any:
    return node.kwargs.get("bias", node.args[2] if len(node.args) > 2 else None)


def _groups(node: fx.Node) -> Any:
    return node.kwargs.get("groups", node.args[_GROUPS] if len(node.args) > _GROUPS else 1)


def _has_bias(node: fx.Node) -> bool:
    """Whether the node is a batch's convolution on a GPU, in one group, with a bias.

    torch's own kernels for groups begin with the bias: there it costs nothing.
    """
    if node.op != "call_function" or describe(node).name not in _RANKS or _groups(node) != 1:
        return False
    bias, value = _bias(node), node.meta.get("example_value")
    if not isinstance(bias, fx.Node) or not isinstance(value, torch.Tensor):
        return False
    if value.dim() != _RANKS[describe(node).name]:
        return False
    fake = bias.meta.get("example_value")
    known = isinstance(fake, torch.Tensor) and fake.dim() == 1 and fake.dtype is value.dtype
    static = all(isinstance(size, int) for size in value.shape)
    return known and static and value.dtype in _LOW and value.device.type in DEVICES


def _split(graph: fx.Graph, node: fx.Node, new: dict[fx.Node, fx.Node]) -> fx.Node:
    """The addition; the convolution before it keeps the name of the whole call."""
    args = fx.map_arg(node.args, new.__getitem__)
    kwargs = fx.map_arg(node.kwargs, new.__getitem__)
    value, bias = node.meta["example_value"], new[_bias(node)]
    shape = (1, -1, *[1] * (value.dim() - 2))
    named = "bias" in kwargs
    bare = graph.create_node(
        "call_function",
        node.target,
        tuple(args) if named else (*args[:2], None, *args[3:]),
        {**kwargs, "bias": None} if named else dict(kwargs),
        name=node.name,
    )
    view = graph.create_node("call_method", "view", (bias, shape), name=f"{node.name}_bias")
    total = graph.create_node(
        "call_function", operator.add, (bare, view), name=f"{node.name}_biased"
    )
    for made in (bare, view, total):
        made.meta = {k: v for k, v in node.meta.items() if k != "example_value"}
    with value.fake_mode if hasattr(value, "fake_mode") else torch.no_grad():
        bare.meta["example_value"] = torch.empty_like(value)
        view.meta["example_value"] = node_value(bias).view(shape)
    total.meta["example_value"] = value
    total.meta[_KEY] = SplitBias(bare, view, node.target, tuple(args), dict(kwargs))
    return total


def node_value(node: fx.Node) -> torch.Tensor:
    """Dynamo's fake value of a node that is one tensor."""
    value = node.meta["example_value"]
    assert isinstance(value, torch.Tensor)  # noqa: S101  (looked at before the split)
    return value


def fold(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """Write the convolution that an addition stands for, with its bias, into ``graph``."""
    split = bias_of(node)
    assert split is not None  # noqa: S101  (asked for additions that stand for one)
    args = fx.map_arg(split.args, env.__getitem__)
    kwargs = fx.map_arg(split.kwargs, env.__getitem__)
    result = graph.call_function(split.target, args, kwargs)
    result.meta = without_bias(node.meta)
    return result


def without_bias(meta: dict[str, Any]) -> dict[str, Any]:
    """What a node's meta says, for a node that stands for no split convolution."""
    return {k: v for k, v in meta.items() if k != _KEY}
