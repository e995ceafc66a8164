"""How many numbers a target adds up, and in what arithmetic: read from one run of its graph.

An honest kernel may take a sum in another order than eager, one number after the other if need be.
What that costs depends on how many numbers there are. A group norm does not say it in its shapes:
its groups are an argument; and a mean over two dimensions whose result is spread out again leaves
no trace in the outputs. So the graph is run once, node by node, and every reduction is looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch.utils import _pytree as pytree

from kforge_nb.targets.onhost import OnHost
from kforge_nb.targets.operators import describe

__all__ = ["LONGEST", "Sums", "sums_of"]

LONGEST = 1 << 16
"""Numbers that may be added one after the other; of more only the parts may be.

In float32 the mean of a million numbers, taken one by one, is off by a fifth of their spread where
it lies far above that. Nobody would call that right, and a budget for it would admit variances that
cancel.
"""
_SUMMING = re.compile(
    r"softmax|norm|sum|mean|var|std|prod|matmul|mm|linear|conv|einsum|entropy|loss|pool|attention"
)
_CONVOLUTIONS = re.compile(r"^conv")
_KNOWN: WeakKeyDictionary[fx.GraphModule, dict[object, Sums]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Sums:
    """``most``: numbers that one value sums, at most; 0 where none does.

    ``double``: every floating-point value that the graph makes is float64.
    """

    most: int
    double: bool


def sums_of(
    graph: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    on_host: bool = False,
) -> Sums:
    """What a target sums on inputs of these shapes; the graph is run once for each.

    Args:
        graph: of the target.
        inputs: on one device.
        outputs: what the graph gives for them; only shapes and dtypes count.
        on_host: the inputs were brought to the CPU, whatever devices the graph names.
    """
    shapes = tuple((t.shape, t.dtype) for t in inputs)
    known = _KNOWN.setdefault(graph, {})
    if shapes not in known:
        known[shapes] = _found(graph, inputs, outputs, on_host)
    return known[shapes]


def _found(
    graph: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    on_host: bool,
) -> Sums:
    double = all(t.dtype is torch.float64 for t in outputs if t.is_floating_point())
    if not double and not any(_sums(node) for node in graph.graph.nodes):
        return Sums(0, False)
    seen = _WatchOnHost(graph) if on_host else _Watch(graph)
    try:
        with torch.no_grad():
            seen.run(*inputs)
    except torch.OutOfMemoryError:  # an estimate does
        torch.cuda.empty_cache()
    most = max(seen.most, _by_shapes(inputs, outputs)) if seen.summing else 0
    return Sums(min(LONGEST, most), double and seen.double)


def _sums(node: fx.Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target)).lower()
    return node.op != "placeholder" and _SUMMING.search(name) is not None


class _Watch(fx.Interpreter):
    """Runs a graph and looks at what its reductions take and give."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=True)
        self.most, self.double = 0, True
        self.summing = any(_sums(node) for node in graph.graph.nodes)

    def run_node(self, n: fx.Node) -> Any:
        """One node, as ever."""
        result = super().run_node(n)
        if n.op not in ("call_function", "call_method"):
            return result
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        kinds = {leaf.dtype for leaf in made if leaf.is_floating_point()}
        self.double = self.double and kinds <= {torch.float64}
        if made and _sums(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.most = max(self.most, _count(describe(n).name, args, kwargs, made[0]))
        return result


class _WatchOnHost(_Watch, OnHost):
    """The same on the CPU."""


def _count(name: str, args: Sequence[Any], kwargs: dict[str, Any], made: torch.Tensor) -> int:
    """How many numbers one element of a reduction's result is made of."""
    given = next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)), None)
    if given is None or given.numel() == 0:
        return 0

    def argument(at: int, key: str) -> Any:
        return args[at] if len(args) > at else kwargs.get(key)

    if name == "group_norm":
        return given.numel() // max(1, given.shape[0] * int(argument(1, "num_groups") or 1))
    if name == "instance_norm":
        return math.prod(given.shape[2:])
    if name in ("layer_norm", "rms_norm"):
        shape = argument(1, "normalized_shape")
        return math.prod(shape) if isinstance(shape, list | tuple) else given.shape[-1]
    weight = argument(1, "weight")
    if _CONVOLUTIONS.search(name) and isinstance(weight, torch.Tensor) and weight.numel():
        return weight.numel() // weight.shape[0]
    return given.numel() // max(1, made.numel())


def _by_shapes(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """What shapes alone say: rows are summed, or what the smallest output leaves out."""
    shapes = [t.shape for t in inputs if t.is_floating_point() and t.dim() > 0 and t.numel() > 0]
    if not shapes:
        return 0
    largest = max(shape.numel() for shape in shapes)
    smallest = min((t.numel() for t in outputs if t.numel()), default=1)
    return max(max(shape[-1] for shape in shapes), largest // smallest)
