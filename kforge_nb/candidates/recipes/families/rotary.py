"""Rotary position embedding with rotate_half: ``x * cos + cat(-x[h:], x[:h]) * sin``.

Seen over half rows it is element-wise: the lower half of the output needs both halves of ``x`` and
the lower halves of ``cos`` and ``sin``, the upper half likewise. So each half is read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.recipes.families.activation import emit_pointwise, pointwise_parameters
from kforge_nb.candidates.recipes.families.program import Leaf, Op, Value, read_program
from kforge_nb.candidates.recipes.families.rowcode import CTYPES, RowCode, Store
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["Rotary", "families", "plan_rotary"]


def families() -> list[Any]:
    """The family of this module."""
    return [Rotary()]


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary embedding of one tensor, or of several of one shape."""

    name: str = "rotary"

    def match(self, target: Target) -> Match | None:
        """The match where every output is one rotated input."""
        code = plan_rotary(target)
        return None if code is None else Match(self.name, target, {}, {"rows": code.domain.rows})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """As every element-wise kernel; a row is half a head."""
        code = plan_rotary(match.target)
        assert code is not None  # noqa: S101  (a match exists, and matching is deterministic)
        return pointwise_parameters(code, match.target)

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        code = plan_rotary(match.target)
        assert code is not None  # noqa: S101
        return emit_pointwise(code, match, params)


def plan_rotary(target: Target, device: str = "cpu") -> RowCode | None:
    """Row code over half heads, or None where the graph is no rotary embedding."""
    program = read_program(target, device)
    if program is None or len(program.ops) != 5 * len(program.outputs):
        return None
    shape = target.outputs[0].shape
    if any(s.shape != shape for s in target.outputs) or not shape or shape[-1] % 2 or 0 in shape:
        return None
    stores: list[Store] = []
    for index, output in enumerate(program.outputs):
        halves = _halves(output, shape)
        if halves is None:
            return None
        stores.append(Store(index, halves[0]))
        stores.append(Store(index, halves[1], shape[-1] // 2))
    code = RowCode.over(target, stores, (*shape[:-1], shape[-1] // 2), 1)
    if code is None:
        return None
    code.write_stores()
    return code if code.ok else None


def _pair(op: Any, name: str) -> tuple[Any, Any] | None:
    """Both operands of a plain binary operator."""
    if not isinstance(op, Op) or op.name != name or op.args.get("alpha", 1) != 1:
        return None
    return op.args["input"], op.args["other"]


def _halves(output: Value, shape: tuple[int, ...]) -> tuple[Value, Value] | None:
    """Lower and upper half of a rotated tensor, or None where the graph says something else."""
    terms = _pair(output, "add")
    if terms is None:
        return None
    for straight, turned in (terms, terms[::-1]):
        a, b = _pair(straight, "mul"), _pair(turned, "mul")
        if a is None or b is None:
            continue
        for x, cos in (a, a[::-1]):
            for rotated, sin in (b, b[::-1]):
                if _rotates(rotated, x) and _reads(cos, shape) and _reads(sin, shape):
                    return _rotation(x, cos, sin, output.dtype)
    return None


def _reads(value: Any, shape: tuple[int, ...]) -> bool:
    return (
        isinstance(value, Leaf)
        and value.dtype in CTYPES
        and len(value.shape) >= 1
        and value.shape[-1] == shape[-1]
    )


def _same(view: Any, other: torch.Tensor) -> bool:
    return isinstance(view, Leaf) and (
        view.shape == tuple(other.shape)
        and view.view.stride() == other.stride()
        and view.view.storage_offset() == other.storage_offset()
    )


def _rotates(value: Any, x: Any) -> bool:
    """Whether ``value`` is ``cat((-x[..., h:], x[..., :h]), -1)``."""
    if not isinstance(x, Leaf) or not isinstance(value, Op) or value.name != "cat":
        return False
    rank, half = len(x.shape), x.shape[-1] // 2
    parts = value.args["tensors"]
    if value.args["dim"] not in (-1, rank - 1) or len(parts) != 2 or value.dtype != x.dtype:
        return False
    flipped, straight = parts
    if not isinstance(flipped, Op) or flipped.name != "neg":
        return False
    upper = flipped.args["input"]
    leaves = isinstance(upper, Leaf) and isinstance(straight, Leaf)
    return (
        leaves
        and upper.index == straight.index == x.index
        and _same(upper, x.view[..., half:])
        and _same(straight, x.view[..., :half])
    )


def _rotation(x: Leaf, cos: Leaf, sin: Leaf, dtype: torch.dtype) -> tuple[Value, Value]:
    half = x.shape[-1] // 2
    low, high = (_part(x, slice(None, half)), _part(x, slice(half, None)))
    minus = Op("neg", {"input": high}, low.view)
    first = _turn(low, minus, _part(cos, slice(None, half)), _part(sin, slice(None, half)), dtype)
    second = _turn(high, low, _part(cos, slice(half, None)), _part(sin, slice(half, None)), dtype)
    return first, second


def _part(leaf: Leaf, where: slice) -> Leaf:
    return Leaf(leaf.index, leaf.view[..., where])


def _turn(x: Leaf, other: Value, cos: Leaf, sin: Leaf, dtype: torch.dtype) -> Op:
    like = torch.empty(x.shape, dtype=dtype, device="meta")
    straight = Op("mul", {"input": x, "other": cos}, like)
    turned = Op("mul", {"input": other, "other": sin}, like)
    return Op("add", {"input": straight, "other": turned}, like)
