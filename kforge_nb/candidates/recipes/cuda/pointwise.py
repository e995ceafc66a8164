"""CUDA kernels for what is element-wise: activations, batch norm in inference, rotary, the rest.

One thread takes several vectors of 16 bytes; rows and broadcasts cost index arithmetic only. Where
something is the same in every row (the channels' weights of channels-last data) a thread may keep
to its columns: then it reads and computes that once for all its rows. Either way every input is
read once and every output written once. The plain family takes every other element-wise graph whose
outputs share a shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.cuda.kept import kept_text
from kforge_nb.candidates.recipes.families import activation, batch_norm, rotary
from kforge_nb.candidates.recipes.families.program import read_program
from kforge_nb.candidates.recipes.families.rowcode import RowCode, Store, is_pointwise
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["CudaPointwise", "families"]

_LARGEST = 60
_WIDEST = 1024
"""Vectors of a row that one block can hold."""
_MANY = 1 << 23
"""Elements from which a thread may take four rows, and blocks still fill the device."""
_FEW_ROWS = 16
"""Rows below which nothing is saved by keeping to columns."""


def families() -> list[Any]:
    """The families of this module, the most specific first."""
    return [CudaPointwise(name) for name in ("rotary", "batch_norm", "activation", "pointwise")]


def _any_pointwise(target: Target, device: str) -> RowCode | None:
    """Row code of a graph of element-wise operators on 16- and 32-bit floats."""
    program = read_program(target, device)
    if program is None or not 1 <= len(program.ops) <= _LARGEST:
        return None
    shape = target.outputs[0].shape
    if not all(is_pointwise(op) for op in program.ops):
        return None
    if 0 in shape or any(spec.shape != shape for spec in target.outputs):
        return None
    stores = [Store(i, v) for i, v in enumerate(program.outputs)]
    code = RowCode.over(target, stores, shape, None)
    if code is None:
        return None
    code.write_stores()
    return code if code.ok else None


def _widths(code: RowCode, target: Target) -> list[int]:
    """Elements an access, best first; those that run on into the next row before shorter ones."""
    aligned = emit.vector_widths(code, target, ragged=True)
    flat = _flat_only(code, target)
    return [*flat, *aligned] if flat and max(aligned) < max(flat) else aligned


def _flat_only(code: RowCode, target: Target) -> list[int]:
    """Widths that are possible only because vectors may run on into the next row."""
    aligned = emit.vector_widths(code, target, ragged=True)
    return [w for w in emit.flat_widths(code, target) if w not in aligned and w <= 8]


def _has_columns(code: RowCode, widths: list[int]) -> bool:
    """Whether something is the same in every row, and there are enough of them."""
    same = any(walk.inner == 1 and not any(walk.outer) for walk in code.leaf_walks.values())
    return same and _fits(code, widths[0]) and code.domain.rows >= _FEW_ROWS


def _fits(code: RowCode, width: int) -> bool:
    """Whether a row is whole vectors of ``width``, and a block can hold it."""
    length = code.domain.length
    return length % width == 0 and length // width <= _WIDEST


_PLANS: dict[str, Callable[[Target, str], RowCode | None]] = {
    "rotary": rotary.plan_rotary,
    "batch_norm": batch_norm.plan_batch_norm,
    "activation": activation.plan_activation,
    "pointwise": _any_pointwise,
}


@dataclass(frozen=True, slots=True)
class CudaPointwise:
    """One family of element-wise kernels; ``name`` says which matcher it goes by."""

    name: str

    def match(self, target: Target) -> Match | None:
        """The match where the matcher of this name knows the graph."""
        code = _PLANS[self.name](target, "cuda")
        return None if code is None else Match(self.name, target, {}, {"rows": code.domain.rows})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Elements an access, vectors a thread, threads a block, stores, blocks that stay.

        ``way`` is ``columns`` where a thread keeps to its columns.
        """
        code = self._known(match)
        elements = code.domain.rows * code.domain.length
        widths = _widths(code, match.target)
        large = elements >= 1 << 20
        unroll = [2, 4, 1, 8] if large else [1, 2]
        waves = [0, 8, 16, 4] if large else [0]
        way: dict[str, list[Any]] = {}
        if _has_columns(code, widths):
            way["way"] = ["columns", "rows"]
            unroll = [4, 2, 8, 1] if elements >= _MANY else unroll
            waves = [8, 4, 16, 0] if elements >= _MANY else waves  # few blocks, each for many rows
        return {
            **way,
            "unroll": unroll,
            "block": [256, 512, 128, 1024],
            "vector": widths,
            "stores": ["plain", "stream"],
            "waves": waves,
        }

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        code = self._known(match)
        rows, length = code.domain.rows, code.domain.length
        columns = params.get("way") == "columns" and _fits(code, params["vector"])
        flat = params["vector"] in _flat_only(code, match.target)
        block, tasks = params["block"], 0
        if columns:
            wide = length // params["vector"]
            block = emit.whole_rows(wide, block)
            tasks = -(-rows // (block // wide * params["unroll"]))
        else:
            vectors = rows * -(-length // params["vector"])
            vectors = rows * length // params["vector"] if flat else vectors
            tasks = -(-vectors // (block * params["unroll"]))
        grid = tasks
        if params["waves"]:
            grid = min(tasks, params["waves"] * emit.multiprocessors(match.target.device))
        constants: dict[str, emit.Constant] = {
            "V": ("int", params["vector"]),
            "FAST": ("bool", emit.short_answers(match.target)),
            "BLOCK": ("int", block),
            "U": ("int", params["unroll"]),
            "ROWS": ("int64_t", rows),
            "C": ("int64_t", length),
            "FLAT": ("bool", flat),
            "TASKS": ("int64_t", tasks),
        }
        index = "int32_t" if rows * length < 2**31 - 2**20 else "int64_t"
        texts = [
            f"using Index = {index};",
            emit.row_code_text(code),
            emit.mix_text(code),
            kept_text(code)
            if columns
            else code.function("KF_INLINE void body(const Row& p, int64_t i, L n)", "before"),
            emit.kernel_text("columns.cuh" if columns else "pointwise.cuh"),
        ]
        given = ", ".join(n for _, n in code.arguments())
        stream = "true" if params["stores"] == "stream" else "false"
        call = f"{'columns' if columns else 'elementwise'}<{stream}>(a);"
        body = f"  const Args a{{{given}}};\n  {call}"
        entry = emit.Entry(f"kf_{self.name}", code.arguments(), body, grid, block)
        text = emit.source(constants, texts, [entry], f"{self.name} of {match.target.name}")
        return emit.candidate(match, params, text, [entry])

    def _known(self, match: Match) -> RowCode:
        code = _PLANS[self.name](match.target, "cuda")
        assert code is not None  # noqa: S101  (a match exists, and matching is deterministic)
        return code
