"""The small language between an FX graph and C: values over index spaces.

A value has a shape and a dtype; nothing is computed until a loop asks for it at an index. Views,
slices and concatenations are changes of index and cost nothing by themselves; only reductions have
to be finished before their result can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kforge_nb.candidates.recipes.generator.index import Ix

__all__ = [
    "Cast",
    "Const",
    "Input",
    "Iota",
    "Node",
    "Piecewise",
    "Point",
    "Reduce",
    "ReduceKind",
    "Unsupported",
    "View",
    "compute_type",
]

ReduceKind = Literal[
    "sum", "max", "min", "maxnan", "minnan", "prod", "mean", "m2", "sumexp", "any", "all"
]
IndexMap = Callable[[tuple[Ix, ...]], tuple[Ix, ...]]


class Unsupported(Exception):
    """The region cannot be generated; the message says why. Never leaves the generator."""


@dataclass(eq=False)
class Node:
    """A value: ``shape`` and ``dtype`` (without ``torch.``). Nodes compare by identity."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(eq=False)
class Input(Node):
    """Input ``position`` of the target, read with ``stride``."""

    position: int = 0
    stride: tuple[int, ...] = ()


@dataclass(eq=False)
class Const(Node):
    """One number for all elements."""

    value: float | int | bool = 0


@dataclass(eq=False)
class Iota(Node):
    """``start + step × index`` along the only dimension."""

    start: int = 0
    step: int = 1


@dataclass(eq=False)
class Point(Node):
    """An element-wise operation; arguments are broadcast to ``shape``."""

    op: str = ""
    args: tuple[Node, ...] = ()


@dataclass(eq=False)
class Cast(Node):
    """Conversion to ``dtype``; ``explicit`` where the graph itself asks for it."""

    source: Node = field(default_factory=lambda: Node((), "float32"))
    explicit: bool = True


@dataclass(eq=False)
class View(Node):
    """``source`` at a changed index."""

    source: Node = field(default_factory=lambda: Node((), "float32"))
    index: IndexMap = tuple


@dataclass(eq=False)
class Piecewise(Node):
    """Along ``dim``, piece k covers ``[starts[k], starts[k+1])`` and is read from its own 0."""

    dim: int = 0
    pieces: tuple[Node, ...] = ()
    starts: tuple[int, ...] = ()


@dataclass(eq=False)
class Reduce(Node):
    """A reduction of ``source`` over ``dims``, which are gone from ``shape``.

    ``mean`` divides by the number of elements; ``m2`` is the sum of squared distances to the mean.
    ``maxnan`` and ``minnan`` hand on NaN; ``max`` and ``min`` ignore it.
    """

    kind: ReduceKind = "sum"
    source: Node = field(default_factory=lambda: Node((), "float32"))
    dims: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Elements in one reduction."""
        total = 1
        for dim in self.dims:
            total *= self.source.shape[dim]
        return total


def compute_type(dtype: str) -> str:
    """The C type that values of this dtype are computed in: float, double, int64_t or bool."""
    if dtype in ("float32", "float16", "bfloat16"):
        return "float"
    if dtype == "float64":
        return "double"
    if dtype == "bool":
        return "bool"
    if dtype in ("int64", "int32", "int16", "int8", "uint8"):
        return "int64_t"
    raise Unsupported(f"tensors of dtype {dtype}")
