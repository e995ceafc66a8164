"""A target's graph as a recipe sees it: strided reads of inputs, and operators on them.

Every node is run once on meta tensors, so that chains of views become plain strided reads
(:class:`Leaf`) and each operator knows the shape and dtype of its result. Anything that the
operator table does not know, or that writes to an input, makes the whole target unreadable, and
an unreadable target has no match.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import fx

from kforge_nb.candidates.recipes.families.operators import read_call

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["Leaf", "Op", "Program", "Value", "read_program"]


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """Input ``index`` of the target, read through the strides and offset of ``view`` (meta)."""

    index: int
    view: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the read."""
        return tuple(self.view.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the input."""
        return self.view.dtype


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One operator: canonical name, arguments by name (values, numbers, tuples) and its result."""

    name: str
    args: dict[str, Any]
    result: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the result."""
        return tuple(self.result.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the result."""
        return self.result.dtype


Value = Union[Leaf, Op]  # noqa: UP007  (used at run time by isinstance checks on 3.11 as well)


@dataclass(slots=True)
class Program:
    """All operators in order, the values returned, and how often each operator's value is read."""

    ops: list[Op] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    uses: dict[Op, int] = field(default_factory=dict)
    input_count: int = 0

    def replace(self, old: Op, new: Value) -> None:
        """Let everything that read ``old`` read ``new``; ``new`` may itself read ``old``."""
        inside = _reachable(new) - _reachable(old)
        for op in self.ops:
            if id(op) in inside:
                continue
            for name, arg in op.args.items():
                if arg is old:
                    op.args[name] = new
        self.outputs = [new if v is old else v for v in self.outputs]

    def only(self, *names: str) -> Op | None:
        """The one operator with one of these names, or None where there is none or several."""
        found = [op for op in self.ops if op.name in names]
        return found[0] if len(found) == 1 else None


def _reachable(value: Value) -> set[int]:
    found: set[int] = set()
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, tuple):
            pending.extend(item)
        elif isinstance(item, Leaf | Op) and id(item) not in found:
            found.add(id(item))
            if isinstance(item, Op):
                pending.extend(item.args.values())
    return found


_MAY_ALIAS = ("view", "getitem", "cast", "type_as")


class _Unreadable(Exception):
    """Raised inside this module when a node is beyond the recipes."""


class _Reader:
    """Walks the nodes of one graph."""

    def __init__(self, target: Target) -> None:
        self.program = Program(input_count=len(target.inputs))
        self.values: dict[fx.Node, Any] = {}
        self.metas: dict[fx.Node, Any] = {}
        self.made: dict[Op, fx.Node] = {}
        self.specs = target.inputs
        self.device = target.device

    def read(self, graph: fx.Graph) -> Program:
        index = 0
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, index)
                index += 1
            elif node.op == "output":
                self._output(node)
            else:
                self._call(node)
        return self.program

    def _placeholder(self, node: fx.Node, index: int) -> None:
        spec = self.specs[index]
        meta = torch.empty_strided(
            spec.shape, spec.stride, dtype=getattr(torch, spec.dtype), device="meta"
        )
        self.metas[node] = meta
        self.values[node] = Leaf(index, meta)

    def _output(self, node: fx.Node) -> None:
        returned = node.args[0]
        if not isinstance(returned, tuple | list):
            raise _Unreadable("the graph returns no tuple")
        for item in returned:
            if not isinstance(item, fx.Node):
                raise _Unreadable("a returned value is not a tensor")
            value = self._value(item)
            self.program.outputs.append(value)
            self._count(value)

    def _count(self, value: Value) -> None:
        if isinstance(value, Op):
            self.program.uses[value] = self.program.uses.get(value, 0) + 1

    def _value(self, node: fx.Node) -> Value:
        value = self.values[node]
        if not isinstance(value, Leaf | Op):
            raise _Unreadable(f"{node} is not one tensor")
        return value

    def _translate(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return self._value(arg)
        if isinstance(arg, tuple | list):
            return tuple(self._translate(a) for a in arg)
        return arg

    def _call(self, node: fx.Node) -> None:
        call = read_call(node, self.device)
        if call is None:
            raise _Unreadable(f"unknown operator {node.target}")
        name, args = call
        source = args.get("input")
        if name == "contiguous" and isinstance(source, fx.Node):
            self._lay_out(node, source)
            return
        meta = self._cast(args) if name == "cast" else self._run(node)
        self.metas[node] = meta
        if name == "dropout" and args.get("training") is False and not args.get("inplace"):
            self.values[node] = self._value(args["input"])
            return
        if name in _MAY_ALIAS and isinstance(source, fx.Node):
            alias = self._alias(source, meta, name)
            if alias is not None:
                self.values[node] = alias
                return
        if name in ("view", "getitem", "dropout"):
            raise _Unreadable(f"{name} of a computed value")
        if args.get("inplace"):
            self._allow_in_place(source, node)
        self._add(node, name, {k: self._translate(v) for k, v in args.items()}, meta)

    def _lay_out(self, node: fx.Node, source: fx.Node) -> None:
        """``contiguous`` gives the same values: how they lie in memory is up to the kernel.

        Only the CPU's gelu looks at the layout of what it is given.
        """
        meta = self._run(node)
        self.metas[node] = meta
        users = [call[0] for user in node.users if (call := read_call(user, self.device))]
        copied = meta is not self.metas[source]
        if copied and "gelu" in users and self.device.startswith("cpu"):
            raise _Unreadable("gelu of a value in another layout")
        self.values[node] = self._value(source)

    def _cast(self, args: dict[str, Any]) -> Any:
        """A cast may name the device that the tensor is on already; its meta stays where it is."""
        return self.metas[args["input"]].to(args["dtype"])

    def _run(self, node: fx.Node) -> Any:
        args = fx.map_arg(node.args, lambda n: self.metas[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: self.metas[n])
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _alias(self, source: fx.Node, meta: Any, name: str) -> Any:
        """What a node is if it only looks at its source in another way; None where it copies."""
        if isinstance(meta, tuple | list):  # chunk, split: the parts are taken by getitem
            return tuple(self._alias(source, m, name) for m in meta)
        value = self.values[source]
        if isinstance(value, tuple):
            index = next(
                (i for i, m in enumerate(self.metas[source]) if m is meta),
                None,
            )
            return None if index is None else value[index]
        if meta is self.metas[source]:
            return value
        if isinstance(value, Leaf) and name not in ("cast", "type_as"):
            same = meta.untyped_storage()._cdata == value.view.untyped_storage()._cdata
            return Leaf(value.index, meta) if same else None
        return None

    def _allow_in_place(self, source: Any, node: fx.Node) -> None:
        """In place is fine on a value computed here that nobody else reads."""
        value = self.values.get(source) if isinstance(source, fx.Node) else None
        if not isinstance(value, Op) or self.made.get(value) is not source:
            raise _Unreadable(f"{node} writes to what it did not make")
        if not isinstance(source, fx.Node) or set(source.users) != {node}:
            raise _Unreadable(f"{node} writes to a value that is used elsewhere")
        if self.program.uses.get(value, 0):
            raise _Unreadable(f"{node} writes to a value that has another name")

    def _add(self, node: fx.Node, name: str, args: dict[str, Any], meta: Any) -> None:
        if not isinstance(meta, torch.Tensor):
            raise _Unreadable(f"{node} returns more than one tensor")
        args.pop("inplace", None)
        if name == "cast":
            for known in self.program.ops:
                if known.name == "cast" and known.args == args:
                    self.values[node] = known
                    return
        op = Op(name, args, meta)
        for value in args.values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Leaf | Op):
                    self._count(item)
        self.program.ops.append(op)
        self.made[op] = node
        self.values[node] = op


def read_program(target: Target, device: str = "cpu") -> Program | None:
    """The target's graph as a :class:`Program`, or None where it holds anything unknown.

    Args:
        target: what to read.
        device: ``cpu`` or ``cuda``: where all of the target's tensors must be, on one device.
    """
    placeholders = [n for n in target.graph.graph.nodes if n.op == "placeholder"]
    devices = {spec.device for spec in (*target.inputs, *target.outputs)}
    there = len(devices) == 1 and next(iter(devices)).partition(":")[0] == device
    if len(placeholders) != len(target.inputs) or not there:
        return None
    try:
        with torch.no_grad():
            program = _Reader(target).read(target.graph.graph)
    except (_Unreadable, RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return None
    fits = len(program.outputs) == len(target.outputs) and all(
        isinstance(v, Op) and v.shape == s.shape and str(v.dtype) == f"torch.{s.dtype}"
        for v, s in zip(program.outputs, target.outputs, strict=False)
    )
    return program if fits else None
