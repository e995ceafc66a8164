"""Norms with one weight a channel: group norm and batch norm in inference, and what follows them.

Batch norm in inference is element-wise: its scale is computed once a channel. Group norm reduces
over a group of channels, so its rows are the planes of channels and a task is one group. Residual
adds and activations before and behind are part of the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.recipes.families import render
from kforge_nb.candidates.recipes.families.activation import emit_pointwise, pointwise_parameters
from kforge_nb.candidates.recipes.families.program import Leaf, Op, Value, read_program
from kforge_nb.candidates.recipes.families.rowcode import RowCode, Store, literal
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["BatchNorm", "GroupNorm", "families"]


def families() -> list[Any]:
    """The two families of this module."""
    return [GroupNorm(), BatchNorm()]


def _meta(value: Value, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(value.shape, dtype=dtype, device="meta")


def _channel(value: Any, rank: int) -> Value | None:
    """A ``(C,)`` parameter as a read that broadcasts over ``(N, C, ...)``."""
    if not isinstance(value, Leaf) or len(value.shape) != 1:
        return None
    view = value.view
    for _ in range(rank - 2):
        view = view.unsqueeze(-1)
    return Leaf(value.index, view)


def _apply(name: str, left: Value | float, right: Value | float, like: Value) -> Op:
    return Op(name, {"input": left, "other": right}, _meta(like))


def _rounded(value: Value, op: Op) -> Value:
    """Back to the type in which the operator answers."""
    return Op("cast", {"input": value, "dtype": op.dtype}, _meta(value, op.dtype))


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """``F.batch_norm`` with running statistics, with element-wise operators around it."""

    name: str = "batch_norm"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is one batch norm in inference and element-wise operators."""
        code = _batch_plan(target)
        return None if code is None else Match(self.name, target, {}, {"rows": code.domain.rows})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """As every element-wise kernel."""
        code = _batch_plan(match.target)
        assert code is not None  # noqa: S101  (a match exists, and matching is deterministic)
        return pointwise_parameters(code, match.target)

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        code = _batch_plan(match.target)
        assert code is not None  # noqa: S101
        return emit_pointwise(code, match, params)


def _batch_plan(target: Target) -> RowCode | None:
    program = read_program(target)
    op = program.only("batch_norm") if program is not None else None
    if program is None or op is None or op.args["training"] is not False:
        return None
    x = op.args["input"]
    if not isinstance(x, Leaf | Op) or len(x.shape) < 2 or 0 in x.shape:
        return None
    rank = len(x.shape)
    names = ("running_mean", "running_var", "weight", "bias")
    parts = [_channel(op.args[n], rank) if op.args[n] is not None else None for n in names]
    mean, var, weight, bias = parts
    given = [op.args[n] is not None for n in names]
    if mean is None or var is None or [p is not None for p in parts] != given:
        return None
    scale: Value = Op(
        "rsqrt", {"input": _apply("add", var, float(op.args["eps"]), var)}, _meta(var)
    )
    if weight is not None:
        scale = _apply("mul", scale, weight, var)
    result: Value = _apply("mul", _apply("sub", x, mean, x), scale, x)
    if bias is not None:
        result = _apply("add", result, bias, x)
    program.replace(op, _rounded(result, op))
    if any(spec.shape != x.shape for spec in target.outputs):
        return None
    stores = [Store(i, v) for i, v in enumerate(program.outputs)]
    code = RowCode.over(target, stores, x.shape, None)
    if code is None:
        return None
    code.write_stores()
    return code if code.ok else None


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """``F.group_norm`` over contiguous channels, with element-wise operators around it."""

    name: str = "group_norm"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is one group norm and element-wise operators."""
        found = _group_plan(target)
        if found is None:
            return None
        code, groups, _ = found
        facts = {"rows": code.domain.rows, "length": code.domain.length, "groups": groups}
        return Match(self.name, target, {}, facts)

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Instruction set, unrolling, stores, tile in elements, prefetch distance, direction."""
        found = _group_plan(match.target)
        assert found is not None  # noqa: S101  (a match exists, and matching is deterministic)
        code = found[0]
        size = sum(prod(o.shape) * (4 if o.dtype == "float32" else 2) for o in match.target.outputs)
        moves = render.common_parameters(size, code.streamable())
        moves["tile"] = [2048, 4096, 1024, 8192]
        moves["ahead"] = [0, 512, 1024]
        moves["back"] = [True, False]
        moves["next_kb"] = [256, 0, 64, 1024]
        return moves

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        found = _group_plan(match.target)
        assert found is not None  # noqa: S101
        code, groups, eps = found
        rows, length, tile = code.domain.rows, code.domain.length, params["tile"]
        constants: dict[str, tuple[str, Any]] = {
            "ROWS": ("int64_t", rows),
            "C": ("int64_t", length),
            "TASKS": ("int64_t", groups),
            "PER": ("int64_t", rows // groups),
            "TILE": ("int64_t", tile),
            "TILES": ("int64_t", -(-length // tile)),
            "U": ("int", params["unroll"]),
            "AHEAD": ("int64_t", params["ahead"]),
            "BACK": ("bool", params["back"]),
            "NEXT": ("int64_t", params["next_kb"] * 1024 // (4 * tile)),
            "EPS": ("float", literal(eps)),
        }
        texts = [
            code.structs(),
            code.function("KF_INLINE vf before(const Row& p, int64_t i, L n)", "before", "x"),
            code.function("KF_INLINE void after(const Row& p, int64_t i, vf y, L n)", "after"),
            render.kernel_text("group.h"),
        ]
        tail = render.row_entry("kf_group_norm", code, params["stores"] == "stream")
        text = render.source(params["isa"], constants, texts, tail)
        return render.candidate(
            match, params, "kf_group_norm", text, [n for _, n in code.arguments()]
        )


def _group_plan(target: Target) -> tuple[RowCode, int, float] | None:
    """Row code, number of groups over the whole batch, epsilon."""
    program = read_program(target)
    op = program.only("group_norm") if program is not None else None
    x = op.args["input"] if op is not None else None
    if program is None or op is None or not isinstance(x, Leaf | Op):
        return None
    shape = x.shape
    if len(shape) < 3 or 0 in shape or any(spec.shape != shape for spec in target.outputs):
        return None
    bare = Op("core", {"input": x}, _meta(x))
    result: Value = bare
    for name, given in (("mul", op.args["weight"]), ("add", op.args["bias"])):
        if given is None:
            continue
        part = _channel(given, len(shape))
        if part is None:
            return None
        result = _apply(name, result, part, x)
    program.replace(op, _rounded(result, op))
    stores = [Store(i, v) for i, v in enumerate(program.outputs)]
    code = RowCode.over(target, stores, shape, len(shape) - 2, bare)
    if code is None or code.domain.rows != shape[0] * shape[1] or code.domain.length < 2:
        return None
    source = code.value(x, "before")
    code.lines.setdefault("before", []).append(f"const vf x = {source};")
    if not code.write_stores() or not code.ok or len(code.lines.get("before", [])) > 40:
        return None
    if any(not code.depends(s.value) for s in stores):
        return None  # an output of the first pass would be written in every sweep
    return code, shape[0] * int(op.args["num_groups"]), float(op.args["eps"])
