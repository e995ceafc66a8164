"""CUDA kernels for embedding: rows of a table picked by number, with what follows on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.families.batch_norm import meta_like
from kforge_nb.candidates.recipes.families.program import Leaf, Op, read_program
from kforge_nb.candidates.recipes.families.rowcode import CTYPES, RowCode, Store
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["CudaEmbedding", "families"]

_NUMBERS = {torch.int64: "int64_t", torch.int32: "int32_t"}


def families() -> list[Any]:
    """The family of this module."""
    return [CudaEmbedding()]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Code of what follows, over rows of the answer; the table and the numbers."""

    code: RowCode
    table: Leaf
    numbers: Leaf


@dataclass(frozen=True, slots=True)
class CudaEmbedding:
    """``F.embedding`` without a largest norm, with element-wise operators behind it."""

    name: str = "embedding"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is one embedding with dense numbers."""
        plan = _plan(target)
        if plan is None:
            return None
        roles = {"table": f"in{plan.table.index}", "numbers": f"in{plan.numbers.index}"}
        return Match(self.name, target, roles, {"rows": plan.code.domain.rows})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Vectors a thread, threads a block, elements an access, stores."""
        plan = _known(match)
        return {
            "unroll": [1, 2, 4],
            "block": [128, 256, 64, 512],
            "vector": _widths(plan, match.target),
            "stores": ["plain", "stream"],
        }

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        plan, code = _known(match), _known(match).code
        rows, length = code.domain.rows, code.domain.length
        vectors = rows * length // params["vector"]
        tasks = -(-vectors // (params["block"] * params["unroll"]))
        constants: dict[str, emit.Constant] = {
            "V": ("int", params["vector"]),
            "FAST": ("bool", emit.short_answers(match.target)),
            "BLOCK": ("int", params["block"]),
            "U": ("int", params["unroll"]),
            "C": ("int", length),
            "ROWS": ("int64_t", rows),
            "TASKS": ("int64_t", tasks),
            "HEIGHT": ("int64_t", plan.table.shape[0]),
            "WIDTH": ("int64_t", plan.table.view.stride(0)),
        }
        texts = [
            f"using Index = {'int32_t' if rows * length < 2**31 - 2**20 else 'int64_t'};",
            emit.row_code_text(code),
            code.function("KF_INLINE void after(const Row& p, int64_t i, vf y, L n)", "after"),
            emit.kernel_text("gather.cuh"),
        ]
        given = ", ".join(n for _, n in code.arguments())
        stream = "true" if params["stores"] == "stream" else "false"
        starts = [leaf.view.storage_offset() for leaf in (plan.table, plan.numbers)]
        body = (
            f"  const Args a{{{given}}};\n"
            f"  gathered<{stream}>(a, table + {starts[0]}, numbers + {starts[1]});"
        )
        pointers = [
            *code.arguments(),
            (f"const {CTYPES[plan.table.dtype]}* ", "table"),
            (f"const {_NUMBERS[plan.numbers.dtype]}* ", "numbers"),
        ]
        entry = emit.Entry("kf_embedding", pointers, body, min(tasks, 2**30), params["block"])
        text = emit.source(constants, texts, [entry], f"embedding of {match.target.name}")
        return emit.candidate(match, params, text, [entry], None, match.roles)


def _plan(target: Target) -> _Plan | None:
    program = read_program(target, "cuda")
    op = program.only("embedding") if program is not None else None
    if program is None or op is None or op.args["max_norm"] is not None:
        return None
    table, numbers = op.args["weight"], op.args["input"]
    if not isinstance(table, Leaf) or not isinstance(numbers, Leaf):
        return None
    shape = op.shape
    fits = (
        table.dtype in CTYPES
        and numbers.dtype in _NUMBERS
        and table.view.stride(1) == 1
        and numbers.view.is_contiguous()
        and 0 not in (*shape, *table.shape)
        and all(spec.shape == shape for spec in target.outputs)
    )
    if not fits:
        return None
    bare = Op("core", {}, meta_like(op, op.dtype))
    program.replace(op, bare)
    stores = [Store(i, v) for i, v in enumerate(program.outputs)]
    code = RowCode.over(target, stores, shape, 1, bare)
    if code is None or not code.write_stores() or not code.ok:
        return None
    return _Plan(code, table, numbers) if all(code.depends(s.value) for s in stores) else None


def _known(match: Match) -> _Plan:
    plan = _plan(match.target)
    assert plan is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return plan


def _widths(plan: _Plan, target: Target) -> list[int]:
    """Elements an access, best first, on which every row of the table starts as well."""
    table = plan.table.view
    parts = (table.stride(0), table.storage_offset(), plan.code.domain.length)
    found = [
        w for w in emit.vector_widths(plan.code, target) if not any(part % w for part in parts)
    ]
    return found or [1]
