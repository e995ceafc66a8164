"""Group norm of planes (NCHW) and of channels-last data, with what stands around it.

In planes a row is one channel and a task is one group; channels-last, a row is one pixel with all
its channels, and statistics are gathered by parts of the pixels. Residual adds before and
activations behind are part of the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Scratch
from kforge_nb.candidates.recipes.families import render
from kforge_nb.candidates.recipes.families.batch_norm import (
    binary,
    channel_read,
    meta_like,
    rounded_to,
)
from kforge_nb.candidates.recipes.families.program import Leaf, Op, Program, Value, read_program
from kforge_nb.candidates.recipes.families.rowcode import RowCode, Store, literal
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["GroupNorm", "GroupPlan", "families", "plan_group_norm"]

_PARTS = 16
"""Parts of the pixels of one image that gather their own statistics (channels-last)."""


def families() -> list[Any]:
    """The family of this module."""
    return [GroupNorm()]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Row code of one layout, what is normalised, groups in one image, epsilon."""

    code: RowCode
    source: Value
    shape: tuple[int, ...]
    groups: int
    eps: float
    planes: bool


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """``F.group_norm`` in either layout, with element-wise operators around it."""

    name: str = "group_norm"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is one group norm and element-wise operators."""
        plan = plan_group_norm(target)
        if plan is None:
            return None
        facts = {"shape": plan.shape, "groups": plan.groups, "planes": plan.planes}
        return Match(self.name, target, {}, facts)

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Instruction set, unrolling, stores, direction; tiles and prefetching of planes."""
        plan = plan_group_norm(match.target)
        assert plan is not None  # noqa: S101  (a match exists, and matching is deterministic)
        size = sum(prod(o.shape) * (4 if o.dtype == "float32" else 2) for o in match.target.outputs)
        if plan.planes:
            own: dict[str, list[Any]] = {
                "next_kb": [256, 1024, 0, 64],
                "tile": [2048, 4096, 1024, 8192],
                "back": [True, False],
                "ahead": [0, 512, 1024],
            }
        else:
            own = {"tile_kb": [32, 16, 64], "back": [True, False]}
        return render.common_parameters(size, plan.code.streamable(), own)

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        plan = plan_group_norm(match.target)
        assert plan is not None  # noqa: S101
        return (_emit_planes if plan.planes else _emit_last)(match, plan, params)


def _texts(code: RowCode, kernel: str) -> list[str]:
    return [
        code.structs(),
        code.function("KF_INLINE vf before(const Row& p, int64_t i, L n)", "before", "x"),
        code.function("KF_INLINE void after(const Row& p, int64_t i, vf y, L n)", "after"),
        render.kernel_text(kernel),
    ]


def _shared(plan: GroupPlan, params: Params) -> dict[str, tuple[str, Any]]:
    return {
        "ROWS": ("int64_t", plan.code.domain.rows),
        "C": ("int64_t", plan.code.domain.length),
        "U": ("int", params["unroll"]),
        "BACK": ("bool", params["back"]),
        "EPS": ("float", literal(plan.eps)),
    }


def _emit_planes(match: Match, plan: GroupPlan, params: Params) -> Candidate:
    length, tile = plan.code.domain.length, params["tile"]
    groups = plan.shape[0] * plan.groups
    constants = {
        **_shared(plan, params),
        "TASKS": ("int64_t", groups),
        "PER": ("int64_t", plan.code.domain.rows // groups),
        "TILE": ("int64_t", tile),
        "TILES": ("int64_t", -(-length // tile)),
        "AHEAD": ("int64_t", params["ahead"]),
        "NEXT": ("int64_t", params["next_kb"] * 1024 // (4 * tile)),
    }
    tail = render.row_entry("kf_group_norm", plan.code, params["stores"] == "stream")
    text = render.source(params["isa"], constants, _texts(plan.code, "group.h"), tail)
    names = [n for _, n in plan.code.arguments()]
    return render.candidate(match, params, "kf_group_norm", text, names)


def _emit_last(match: Match, plan: GroupPlan, params: Params) -> Candidate:
    batch, channels = plan.shape[:2]
    pixels = prod(plan.shape[2:])
    parts = min(_PARTS, pixels)
    constants = {
        **_shared(plan, params),
        "BATCH": ("int64_t", batch),
        "GROUPS": ("int64_t", plan.groups),
        "PIXELS": ("int64_t", pixels),
        "PARTS": ("int64_t", parts),
        "ROOM": ("int64_t", -(-channels // 64) * 64),
        "TILE": ("int64_t", max(1, params["tile_kb"] * 256 // channels)),
    }
    arguments = [*plan.code.arguments(), *[("float* ", n) for n in ("parts", "middle", "scale")]]
    streams = params["stores"] == "stream"
    outs = [n for _, n in plan.code.arguments() if n.startswith("out")]
    around = " && ".join(f"aligned({n})" for n in outs) if streams else "false"
    names = ", ".join(n for _, n in plan.code.arguments())
    body = (
        f"  const Args a{{{names}}};\n"
        "  share(BATCH * PARTS, ROWS * C, nthreads, [&](int64_t first, int64_t last) {\n"
        "    moments<false>(a, parts, first, last);\n  });\n"
        "  merge_groups(parts, middle, scale);\n"
        f"  const bool around = {around};\n"
        "  share(ROWS, ROWS * C, nthreads, [&](int64_t first, int64_t last) {\n"
        "    if (around) apply<true>(a, middle, scale, first, last);\n"
        "    else apply<false>(a, middle, scale, first, last);\n  });"
    )
    tail = render.entry("kf_group_norm", arguments, body)
    text = render.source(params["isa"], constants, _texts(plan.code, "group_last.h"), tail)
    scratch = {
        "parts": Scratch("float32", (str(batch * parts), "2", str(channels))),
        "middle": Scratch("float32", (str(batch), str(channels))),
        "scale": Scratch("float32", (str(batch), str(channels))),
    }
    args = [n for _, n in arguments]
    return render.candidate(match, params, "kf_group_norm", text, args, scratch)


def plan_group_norm(target: Target, device: str = "cpu") -> GroupPlan | None:
    """How the target's group norm is computed, in planes where it can be, or None."""
    program = read_program(target, device)
    op = program.only("group_norm") if program is not None else None
    x = op.args["input"] if op is not None else None
    if program is None or op is None or not isinstance(x, Leaf | Op):
        return None
    shape, groups = x.shape, op.args["num_groups"]
    if len(shape) < 3 or 0 in shape or any(spec.shape != shape for spec in target.outputs):
        return None
    core = _take_out_weights(program, op, x)
    eps = op.args["eps"]
    if core is None or not isinstance(groups, int) or not isinstance(eps, int | float):
        return None
    code = _code(target, program, core, shape, planes=True)
    if code is not None:
        return GroupPlan(code, x, shape, groups, float(eps), planes=True)
    code = _code(target, program, core, shape, planes=False)
    return None if code is None else GroupPlan(code, x, shape, groups, float(eps), planes=False)


def _take_out_weights(program: Program, op: Op, x: Value) -> Op | None:
    """The bare norm; its weights become element-wise operators behind it."""
    bare = Op("core", {"input": x}, meta_like(x))
    result: Value = bare
    for name, given in (("mul", op.args["weight"]), ("add", op.args["bias"])):
        if given is None:
            continue
        part = channel_read(given, len(x.shape))
        if part is None:
            return None
        result = binary(name, result, part, x)
    program.replace(op, rounded_to(result, op))
    return bare


def _code(
    target: Target, program: Program, core: Op, shape: tuple[int, ...], *, planes: bool
) -> RowCode | None:
    rank = len(shape)
    stores = [Store(i, v) for i, v in enumerate(program.outputs)]
    axes, order = (rank - 2, None) if planes else (1, (0, *range(2, rank), 1))
    code = RowCode.over(target, stores, shape, axes, core, order)
    rows = shape[0] * (shape[1] if planes else prod(shape[2:]))
    if code is None or code.domain.rows != rows or code.domain.length < 2:
        return None
    source = code.value(core.args["input"], "before")
    code.lines.setdefault("before", []).append(f"const vf x = {source};")
    if not code.write_stores() or not code.ok:
        return None
    # An output of the first pass would be written again in every later sweep.
    return code if all(code.depends(s.value) for s in stores) else None
