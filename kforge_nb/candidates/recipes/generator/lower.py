"""Lower an ATen graph to the IR: walk the nodes, look each operator up in the tables.

The tables (:mod:`point`, :mod:`reduce`, :mod:`views`) hold one small function for each family of
operators. What is in none of them makes the region unsupported, with the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kforge_nb.candidates.recipes.generator.ir import (
    Cast,
    Const,
    Input,
    Node,
    Point,
    Unsupported,
)
from kforge_nb.candidates.recipes.generator.trace import aten_graph
from kforge_nb.targets.target import Target

__all__ = ["Call", "Choices", "Lowered", "cast", "lower", "number", "point"]


@dataclass(frozen=True, slots=True)
class Choices:
    """Parameters that change what is lowered: how moments, softmax and casts are computed."""

    moments: str = "two_pass"
    softmax: str = "two_pass"
    rounding: str = "free"


@dataclass(frozen=True, slots=True)
class Call:
    """One operator call with IR nodes for its tensors.

    ``source`` has the layout of eager's first tensor, where the target is on a CPU.
    """

    name: str
    overload: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    choices: Choices
    source: torch.Tensor | None = None

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or keyword."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class Lowered:
    """The IR of a target: one node for each output, and which reductions and casts it holds."""

    outputs: tuple[Node, ...]
    operators: frozenset[str]


Handler = Callable[[Call], Any]


def lower(target: Target, choices: Choices, graph: fx.Graph | None = None) -> Lowered:
    """The IR of a target's graph; raises Unsupported with the reason.

    Args:
        target: the target.
        choices: parameters of the lowering.
        graph: its ATen graph if already at hand.
    """
    env: dict[fx.Node, Any] = {}
    inputs = iter(range(len(target.inputs)))
    operators: set[str] = set()
    for node in (graph or aten_graph(target)).nodes:
        if node.op == "placeholder":
            position = next(inputs)
            spec = target.inputs[position]
            env[node] = Input(spec.shape, spec.dtype, position, spec.stride)
        elif node.op == "output":
            values = fx.node.map_arg(node.args[0], lambda n: env[n])
            return Lowered(tuple(_outputs(values)), frozenset(operators))
        elif node.op == "call_function":
            _call(node, env, choices, operators, target.device)
        else:
            raise Unsupported(f"the graph holds a {node.op} ({node.target})")
    raise Unsupported("the graph has no output")


def _outputs(values: Any) -> list[Node]:
    flat = list(values) if isinstance(values, tuple | list) else [values]
    if not all(isinstance(value, Node) for value in flat):
        raise Unsupported("an output of the region is not a tensor")
    return flat


def _call(
    node: fx.Node,
    env: dict[fx.Node, Any],
    choices: Choices,
    operators: set[str],
    device: str,
) -> None:
    args = fx.node.map_arg(node.args, lambda n: env[n])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: env[n])
    target: Any = node.target
    if getattr(target, "__name__", "") == "getitem":
        values: Any = args[0]
        env[node] = values[args[1]]
        return
    if not isinstance(target, torch._ops.OpOverload):
        raise Unsupported(f"the operator {target}")
    name = target._schema.name.split("::")[1]
    source = _layout(node) if device == "cpu" else None
    call = _describe(node, name, target._overloadname, args, kwargs, choices, source)
    operators.add(call.name)
    env[node] = _handler(call)(call)
    if name.endswith("_") and isinstance(node.args[0], fx.Node):
        if _is_view(node.args[0]):
            raise Unsupported(f"{name} on an input or a view")
        env[node.args[0]] = env[node]  # an in-place form on a value of the region itself


def _is_view(node: fx.Node) -> bool:
    """Whether the value shares memory with another value of the graph."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(r.alias_info and not r.alias_info.is_write for r in schema.returns)


def _describe(
    node: fx.Node,
    name: str,
    overload: str,
    args: Any,
    kwargs: Any,
    choices: Choices,
    source: torch.Tensor | None,
) -> Call:
    value = node.meta.get("val")
    if isinstance(value, tuple | list):
        value = next((v for v in value if isinstance(v, torch.Tensor)), None)
    shape = tuple(int(s) for s in value.shape) if isinstance(value, torch.Tensor) else ()
    dtype = _dtype_name(value.dtype) if isinstance(value, torch.Tensor) else "float32"
    plain = name.removesuffix("_").removesuffix("_copy") if name != "_to_copy" else name
    return Call(plain, overload, tuple(args), dict(kwargs), shape, dtype, choices, source)


def _layout(node: fx.Node) -> torch.Tensor | None:
    """The fake tensor of the first argument, or None where that is no tensor."""
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _handler(call: Call) -> Handler:
    from kforge_nb.candidates.recipes.generator import point, reduce, views

    for table in (point.TABLE, reduce.TABLE, views.TABLE):
        if call.name in table:
            return table[call.name]
    raise Unsupported(f"the operator {call.name}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def number(value: Any, dtype: str) -> Node:
    """A Python number as a constant of ``dtype``; nodes are handed through."""
    if isinstance(value, Node):
        return value
    if isinstance(value, bool | int | float):
        return Const((), dtype, value)
    raise Unsupported(f"an argument {value!r:.60}")


def cast(node: Node, dtype: str, *, explicit: bool = False) -> Node:
    """``node`` converted to ``dtype``."""
    if node.dtype == dtype:
        return node
    if isinstance(node, Const):
        return Const(node.shape, dtype, node.value)
    return Cast(node.shape, dtype, node, explicit)


def point(op: str, dtype: str, shape: tuple[int, ...], *args: Any, of: str | None = None) -> Node:
    """An element-wise operation.

    Args:
        op: name in the emitter's table.
        dtype: dtype of the result.
        shape: shape of the result.
        args: nodes or numbers.
        of: dtype that the arguments are converted to; ``dtype`` if not given.
    """
    wanted = of or dtype
    return Point(shape, dtype, op, tuple(cast(number(a, wanted), wanted) for a in args))
