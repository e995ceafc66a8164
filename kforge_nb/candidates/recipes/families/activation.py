"""Activations and what stands around them: gelu, silu (times up), relu, sigmoid, tanh.

The kernel is one element-wise pass over rows that grow as long as the strides allow. Batch norm
in inference and rotary embedding are element-wise as well and use the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.families import render
from kforge_nb.candidates.recipes.families.program import read_program
from kforge_nb.candidates.recipes.families.rowcode import RowCode, Store, is_pointwise
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "emit_pointwise",
    "families",
    "plan_activation",
    "pointwise_parameters",
]

ACTIVATIONS = frozenset({"gelu", "silu", "relu", "sigmoid", "tanh"})
"""At least one of these makes an element-wise target an activation; others are the generator's."""

_LARGEST = 60


def families() -> list[Any]:
    """The family of this module."""
    return [Activation()]


@dataclass(frozen=True, slots=True)
class Activation:
    """Element-wise targets with an activation in them."""

    name: str = "activation"

    def match(self, target: Target) -> Match | None:
        """The match where every operator is element-wise and one is an activation."""
        code = plan_activation(target)
        return None if code is None else Match(self.name, target, {}, {"rows": code.domain.rows})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Instruction set, unrolling, stores, tile in elements, prefetch distance in elements."""
        code = plan_activation(match.target)
        assert code is not None  # noqa: S101  (a match exists, and matching is deterministic)
        return pointwise_parameters(code, match.target)

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        code = plan_activation(match.target)
        assert code is not None  # noqa: S101
        return emit_pointwise(code, match, params)


def plan_activation(target: Target, device: str = "cpu") -> RowCode | None:
    """Row code of an element-wise graph with an activation in it, or None."""
    program = read_program(target, device)
    if program is None or not 1 <= len(program.ops) <= _LARGEST:
        return None
    if not all(is_pointwise(op) for op in program.ops):
        return None
    if not any(op.name in ACTIVATIONS for op in program.ops):
        return None
    shape = target.outputs[0].shape
    if 0 in shape or any(spec.shape != shape for spec in target.outputs):
        return None
    stores = [Store(i, v) for i, v in enumerate(program.outputs)]
    code = RowCode.over(target, stores, shape, None)
    if code is None:
        return None
    code.write_stores()
    return code if code.ok else None


def pointwise_parameters(code: RowCode, target: Target) -> dict[str, list[Any]]:
    """Moves of an element-wise kernel, best guess first."""
    size = sum(prod(o.shape) * (4 if o.dtype == "float32" else 2) for o in target.outputs)
    own: dict[str, list[Any]] = {
        "tile": [8192, 32768, 2048],
        "ahead": [1024, 0, 4096] if size >= render.FARTHER else [0, 512, 1024],
        "unroll": [2, 4, 1],
    }
    return render.common_parameters(size, code.streamable(), own)


def emit_pointwise(code: RowCode, match: Match, params: Params) -> Candidate:
    """The element-wise kernel over this row code; all its stores are in phase ``before``."""
    rows, length, tile = code.domain.rows, code.domain.length, params["tile"]
    tiles = -(-length // tile)
    constants: dict[str, tuple[str, Any]] = {
        "ROWS": ("int64_t", rows),
        "C": ("int64_t", length),
        "TILE": ("int64_t", tile),
        "TILES": ("int64_t", tiles),
        "TASKS": ("int64_t", rows * tiles),
        "U": ("int", params["unroll"]),
        "AHEAD": ("int64_t", params["ahead"]),
    }
    texts = [
        code.structs(),
        code.function("KF_INLINE void body(const Row& p, int64_t i, L n)", "before"),
        render.kernel_text("pointwise.h"),
    ]
    name = f"kf_{match.family}"
    tail = render.row_entry(name, code, params["stores"] == "stream")
    text = render.source(params["isa"], constants, texts, tail)
    return render.candidate(match, params, name, text, [n for _, n in code.arguments()])
