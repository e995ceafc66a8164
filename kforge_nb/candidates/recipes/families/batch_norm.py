"""Batch norm in inference, with residual adds and activations around it.

It is element-wise: the scale is computed once a channel, from the running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.recipes.families.activation import emit_pointwise, pointwise_parameters
from kforge_nb.candidates.recipes.families.program import Leaf, Op, Value, read_program
from kforge_nb.candidates.recipes.families.rowcode import RowCode, Store
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = [
    "BatchNorm",
    "binary",
    "channel_read",
    "families",
    "meta_like",
    "plan_batch_norm",
    "rounded_to",
]


def families() -> list[Any]:
    """The family of this module."""
    return [BatchNorm()]


def meta_like(value: Value, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A meta tensor shaped as ``value``."""
    return torch.empty(value.shape, dtype=dtype, device="meta")


def channel_read(value: Any, rank: int) -> Value | None:
    """A ``(C,)`` parameter as a read that broadcasts over ``(N, C, ...)``."""
    if not isinstance(value, Leaf) or len(value.shape) != 1:
        return None
    view = value.view
    for _ in range(rank - 2):
        view = view.unsqueeze(-1)
    return Leaf(value.index, view)


def binary(name: str, left: Value | float, right: Value | float, like: Value) -> Op:
    """An element-wise operator of two operands, shaped as ``like``, in float32."""
    return Op(name, {"input": left, "other": right}, meta_like(like))


def rounded_to(value: Value, op: Op) -> Value:
    """Back to the type in which the operator answers."""
    return Op("cast", {"input": value, "dtype": op.dtype}, meta_like(value, op.dtype))


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """``F.batch_norm`` with running statistics, with element-wise operators around it."""

    name: str = "batch_norm"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is one batch norm in inference and element-wise operators."""
        code = plan_batch_norm(target)
        return None if code is None else Match(self.name, target, {}, {"rows": code.domain.rows})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """As every element-wise kernel."""
        code = plan_batch_norm(match.target)
        assert code is not None  # noqa: S101  (a match exists, and matching is deterministic)
        return pointwise_parameters(code, match.target)

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        code = plan_batch_norm(match.target)
        assert code is not None  # noqa: S101
        return emit_pointwise(code, match, params)


def plan_batch_norm(target: Target, device: str = "cpu") -> RowCode | None:
    """Row code of a batch norm in inference with what surrounds it, or None."""
    program = read_program(target, device)
    norms = [op for op in program.ops if op.name == "batch_norm"] if program is not None else []
    if program is None or not norms or len(norms) > 4:
        return None
    shape = target.outputs[0].shape
    if 0 in shape or any(spec.shape != shape for spec in target.outputs):
        return None
    for op in norms:
        result = _batch_formula(op)
        if result is None or op.shape != shape:
            return None
        program.replace(op, result)
    stores = [Store(i, v) for i, v in enumerate(program.outputs)]
    code = RowCode.over(target, stores, shape, None)
    if code is None:
        return None
    code.write_stores()
    return code if code.ok else None


def _batch_formula(op: Op) -> Value | None:
    """``(x - mean) * (rsqrt(var + eps) * weight) + bias``, the middle factor once a channel."""
    x = op.args["input"]
    if op.args["training"] is not False or not isinstance(x, Leaf | Op) or len(x.shape) < 2:
        return None
    names = ("running_mean", "running_var", "weight", "bias")
    given = [op.args[n] for n in names]
    parts = [channel_read(v, len(x.shape)) if v is not None else None for v in given]
    if any((p is None) != (v is None) for p, v in zip(parts, given, strict=True)):
        return None
    mean, var, weight, bias = parts
    if mean is None or var is None or not isinstance(op.args["eps"], int | float):
        return None
    shifted = binary("add", var, float(op.args["eps"]), var)
    scale: Value = Op("rsqrt", {"input": shifted}, meta_like(var))
    if weight is not None:
        scale = binary("mul", scale, weight, var)
    result: Value = binary("mul", binary("sub", x, mean, x), scale, x)
    if bias is not None:
        result = binary("add", result, bias, x)
    return rounded_to(result, op)
