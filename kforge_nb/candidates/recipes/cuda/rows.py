"""CUDA kernels for softmax, log-softmax, layer norm and RMS norm, with what surrounds them.

The matchers and the element-wise code are those of the CPU families; here a row is shared by T
threads, which keep it in registers, in shared memory, or read it again for every pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.families import rownorm
from kforge_nb.candidates.recipes.families.rowcode import RowCode, literal
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["CudaRows", "families"]

MAX_REGISTER_VALUES = 64
"""Values of a row that one thread may keep in registers."""

LONGEST = 1 << 20
"""Longest row, in elements."""


def families() -> list[Any]:
    """The four families of this module."""
    return [CudaRows(name) for name in ("softmax", "log_softmax", "layer_norm", "rms_norm")]


@dataclass(frozen=True, slots=True)
class CudaRows:
    """One family of row kernels; ``name`` is softmax, log_softmax, layer_norm or rms_norm."""

    name: str

    def match(self, target: Target) -> Match | None:
        """The match where the CPU family of this name knows the graph."""
        found = rownorm.plan_rows(target, self.name, "cuda", LONGEST)
        if found is None:
            return None
        code, core = found
        facts = {"rows": code.domain.rows, "length": code.domain.length, "eps": core.eps}
        return Match(self.name, target, {}, facts)

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Threads a row, rows a block, where a row is kept, elements an access, and the rest.

        ``waves`` > 0 makes the grid stay, with so many blocks for each multiprocessor; ``early``
        asks for weights before the reduction.
        """
        code, _ = _known(match)
        widths = emit.vector_widths(code, match.target)
        rows, length = code.domain.rows, code.domain.length
        threads = _thread_counts(rows, length, widths[0])
        room = emit.shared_limit(match.target.device)
        keeps = _keeps(code, widths[0], max(threads), room)
        return {
            "threads": threads,
            "rows": _beside(threads[0]),
            "keep": keeps,
            "vector": widths,
            "early": _early(code),
            "waves": [0, 4, 8, 2, 16] if rows > 4096 else [0],
            "stores": ["plain", "stream"],
            "unroll": [4, 2, 8],
        }

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters; those that cannot be are brought to the nearest."""
        code, core = _known(match)
        shape = _shape_of(code, match, params)
        constants: dict[str, emit.Constant] = {
            "V": ("int", shape.vector),
            "FAST": ("bool", emit.short_answers(match.target)),
            "T": ("int", shape.threads),
            "BLOCK": ("int", shape.block),
            "ROWS": ("int", code.domain.rows),
            "C": ("int", code.domain.length),
            "TASKS": ("int", shape.tasks),
            "EARLY": ("bool", params["early"] and shape.keep == "registers"),
            "U": ("int", params["unroll"]),
        }
        softmax = self.name in ("softmax", "log_softmax")
        if softmax:
            constants["LOG"] = ("bool", self.name == "log_softmax")
        else:
            constants["CENTRE"] = ("bool", self.name == "layer_norm")
            constants["EPS"] = ("float", literal(core.eps))
        keep = f"static constexpr int KEEP = {['registers', 'shared', 'again'].index(shape.keep)};"
        texts = [
            keep,
            emit.row_code_text(code),
            code.function("KF_INLINE vf before(const Row& p, int64_t i, L n)", "before", "x"),
            code.function("KF_INLINE void after(const Row& p, int64_t i, vf y, L n)", "after"),
            emit.early_text(code),
            emit.kernel_text("rows.cuh"),
            emit.kernel_text("softmax.cuh" if softmax else "norm.cuh"),
        ]
        entry = _entry(f"kf_{self.name}", code, shape, params["stores"] == "stream")
        text = emit.source(constants, texts, [entry], f"{self.name} of {match.target.name}")
        return emit.candidate(match, params, text, [entry])


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a launch is shaped: vector width, threads a row, threads a block, tasks, grid."""

    vector: int
    threads: int
    block: int
    tasks: int
    grid: int
    keep: str
    shared: int


def _known(match: Match) -> tuple[RowCode, Any]:
    found = rownorm.plan_rows(match.target, match.family, "cuda", LONGEST)
    assert found is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return found


def _early(code: RowCode) -> list[bool]:
    """Whether to ask early for what is read behind the reduction: where latency counts."""
    if not emit.late_reads(code):
        return [False]
    return [True, False] if code.domain.rows * code.domain.length < 1 << 23 else [False, True]


def _thread_counts(rows: int, length: int, width: int) -> list[int]:
    """Threads a row: about four vectors for each; few rows get more threads."""
    vectors = -(-length // width)
    wanted = vectors if rows < 1024 else -(-vectors // 4)
    best = min(1024, max(1 if vectors < 8 else 8, emit.power_of_two(wanted)))
    options = [best, best // 2, best * 2, best * 4, best // 4]
    return [t for t in options if 1 <= t <= 1024 and (t <= vectors * 2 or t == best)]


def _beside(threads: int) -> list[int]:
    """Rows of a block, best first: so many that it has at least 128 threads."""
    best = max(1, 128 // threads)
    return [b for b in dict.fromkeys([best, best * 2, max(1, best // 2), best * 4]) if b <= 64]


def _keeps(code: RowCode, width: int, threads: int, room: int) -> list[str]:
    """Where a row may be kept, best first; a pass that stores something is never repeated."""
    stored = any(not code.depends(s.value) for s in code.stores)
    length = code.domain.length
    held = -(-length // (width * threads)) * width
    found = ["registers"] if held <= MAX_REGISTER_VALUES else []
    if length * 4 <= room and (length >= 1024 or not found):
        found.append("shared")
    if not stored:
        found.append("again")
    return found or ["shared"]


def _shape_of(code: RowCode, match: Match, params: Params) -> _Shape:
    rows, length = code.domain.rows, code.domain.length
    vector, threads, keep = params["vector"], params["threads"], params["keep"]
    while keep == "registers" and -(-length // (vector * threads)) * vector > MAX_REGISTER_VALUES:
        if threads == 1024:
            keep = "shared"
            break
        threads *= 2
    beside = max(1, min(params["rows"], 1024 // threads, emit.power_of_two(rows)))
    while threads * beside < 32:
        beside *= 2
    while (
        keep == "shared"
        and beside > 1
        and beside * length * 4 > emit.shared_limit(match.target.device)
    ):
        beside //= 2
    block = threads * beside
    tasks = -(-rows // beside)
    grid = tasks
    if params["waves"]:
        grid = min(tasks, params["waves"] * emit.multiprocessors(match.target.device))
    shared = beside * length * 4 if keep == "shared" else 0
    return _Shape(vector, threads, block, tasks, grid, keep, shared)


def _entry(name: str, code: RowCode, shape: _Shape, stream: bool) -> emit.Entry:
    kind = "softmax_rows" if "softmax" in name else "norm_rows"
    given = ", ".join(n for _, n in code.arguments())
    room = "(float*)room" if shape.keep == "shared" else "nullptr"
    lines = ["  extern __shared__ float4 room[];"] if shape.keep == "shared" else []
    lines += [
        "  __shared__ float shared[Team<T, BLOCK>::FLOATS];",
        f"  const Args a{{{given}}};",
        f"  {kind}<{str(stream).lower()}>(a, shared, {room});",
    ]
    return emit.Entry(
        name, code.arguments(), "\n".join(lines), shape.grid, shape.block, shape.shared
    )
