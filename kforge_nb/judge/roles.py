"""What an input may become: read from what the graph does with it first, and from its values.

After fine-tuning a weight has another sign, another size, or is zero; a variance never is negative
and a mask stays one. What an input is called says nothing. A factor or an addend that meets the
data may be anything, for the product or sum is a value like any other there. What goes into an
exponential, a logarithm or a divisor by itself keeps its sign and about its size, and what a root
is taken of is not negative. Values of which one says "masked" are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import fx

from kforge_nb.targets.operators import describe

__all__ = ["Role", "is_mask", "main_inputs", "roles_of", "steep"]

_FEW = 16
_MASK_BELOW = -1e4
_SAME = frozenset(
    {"cast", "contiguous", "clone", "detach", "neg", "identity", "sum", "mean", "dropout"}
)
"""What hands on a value as it was, for our purposes; views and moves do as well."""
_MERGES = frozenset({"add", "sub", "rsub", "mul", "addcmul", "lerp", "maximum", "minimum", "where"})
_ANY = frozenset(
    {"sigmoid", "tanh", "silu", "gelu", "relu", "abs", "square", "erf", "softplus", "mish", "sin",
     "cos", "hardswish", "hardsigmoid", "leaky_relu", "elu", "softsign", "logsigmoid", "clamp",
     "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "instance_norm",
     "normalize", "relu6", "quick_gelu", "sign", "lt", "le", "gt", "ge", "eq", "ne"}
)  # fmt: skip
"""Defined on the whole line, and no steeper than their argument."""
_VENDORS = frozenset(
    {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d",
     "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "embedding",
     "scaled_dot_product_attention", "outer", "dot", "mv"}
)  # fmt: skip
_STEEP = frozenset(
    {"softmax", "log_softmax", "softmin", "exp", "exp2", "expm1", "logsumexp", "cross_entropy",
     "scaled_dot_product_attention", "sinh", "cosh", "sin", "cos", "tan", "pow", "log", "log2",
     "log1p", "round", "floor", "ceil", "fmod", "remainder", "floor_divide"}
)  # fmt: skip


class Role(Enum):
    """What values are legitimate for an input."""

    FREE = "any"
    ROOT = "not negative, of any size"
    KEPT = "of the sign and about the size that was seen"


def main_inputs(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The floating-point inputs with the most elements: what the others are applied to."""
    sizes = [t.numel() if t.is_floating_point() else 0 for t in tensors]
    most = max(sizes, default=0)
    return [i for i, size in enumerate(sizes) if size == most and size > 0]


def is_mask(seen: torch.Tensor) -> bool:
    """Whether few values were seen, one of them hugely negative; or just zero and another."""
    values = seen.reshape(-1)[:4096].to(torch.float64)
    distinct = torch.unique(values[~values.isnan()])
    if not 1 < distinct.numel() <= _FEW:
        return False
    if bool((distinct < _MASK_BELOW).any()):
        return True
    return distinct.numel() == 2 and bool((distinct == 0).any()) and values.numel() > _FEW


def steep(graph: fx.GraphModule) -> bool:
    """Whether the graph has an operator that makes much of its argument's last bits."""
    return any(describe(node).name in _STEEP for node in graph.graph.nodes)


def roles_of(graph: fx.GraphModule, seen: Sequence[torch.Tensor]) -> dict[int, Role]:
    """The role of each floating-point input that is neither a main one, a mask nor unused.

    Args:
        graph: of a target, one placeholder for each input; more may follow, which are not looked
            at (the weights of a reference in a file, which nobody captured).
        seen: captured inputs.
    """
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    main = set(main_inputs(seen))
    data = _from([node for i, node in enumerate(places) if i in main])
    found = {}
    for i, (node, tensor) in enumerate(zip(places, seen, strict=False)):
        if i in main or not tensor.is_floating_point() or tensor.numel() == 0 or is_mask(tensor):
            continue
        role = _role(node, data)
        if role is not None:
            found[i] = role
    return found


def _from(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes and all that is computed from them."""
    reached = set(nodes)
    waiting = list(nodes)
    while waiting:
        for user in waiting.pop().users:
            if user not in reached:
                reached.add(user)
                waiting.append(user)
    return reached


def _role(start: fx.Node, data: set[fx.Node]) -> Role | None:
    """The narrowest of all uses; None where there is none."""
    uses: set[Role] = set()
    known, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if user.op == "output" or user in known:
                continue
            use = _use(user, node, data)
            if use is None:
                known.add(user)
                waiting.append(user)
            else:
                uses.add(use)
    if not uses:
        return Role.FREE if start.users else None
    return next(role for role in (Role.KEPT, Role.ROOT, Role.FREE) if role in uses)


def _use(user: fx.Node, node: fx.Node, data: set[fx.Node]) -> Role | None:
    """What one operator asks of an argument; None where it hands the value on."""
    operator = describe(user)
    name = operator.name
    if name == "batch_norm":
        given = user.args[2] if len(user.args) > 2 else user.kwargs.get("running_var")
        return Role.ROOT if given is node else Role.FREE
    if operator.kind == "view" or operator.kind == "move" or name in _SAME:
        return None
    if name == "div" or name in _MERGES:
        if user.args.count(node) > 1 and name == "mul":
            return Role.FREE  # a square
        if name == "div" and user.args[0] is not node:
            return Role.KEPT
        others = [other for other in user.all_input_nodes if other is not node]
        return Role.FREE if any(other in data for other in others) else None
    if name == "linalg_solve_triangular":
        return Role.KEPT if user.args[0] is node else Role.FREE
    if name in ("sqrt", "rsqrt"):
        return Role.ROOT
    if name == "pow":
        power: Any = user.args[1] if len(user.args) > 1 else None
        even = isinstance(power, int | float) and power > 0 and power % 2 == 0
        return Role.FREE if even and user.args[0] is node else Role.KEPT
    return Role.FREE if name in _ANY or name in _VENDORS else Role.KEPT
