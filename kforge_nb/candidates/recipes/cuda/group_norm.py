"""CUDA kernels for group norm in both layouts, with residual adds before and activations behind.

A group of a large image is millions of elements, so its statistics are gathered by many blocks. In
planes there are two ways: two launches, or one launch whose blocks draw tasks in an order that lets
the second reading of a group hit the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Scratch
from kforge_nb.candidates.recipes.cuda import emit, turned
from kforge_nb.candidates.recipes.cuda.twin import cpu_twin
from kforge_nb.candidates.recipes.families import group_norm
from kforge_nb.candidates.recipes.families.rowcode import literal
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["CudaGroupNorm", "families"]

L2_BYTES = 24 << 20
"""How much of a group's data is counted on to stay in the second-level cache."""

FLOAT_POINTER = "float* "


def families() -> list[Any]:
    """The family of this module."""
    return [CudaGroupNorm()]


@dataclass(frozen=True, slots=True)
class CudaGroupNorm:
    """``F.group_norm`` in either layout, with element-wise operators around it."""

    name: str = "group_norm"

    def match(self, target: Target) -> Match | None:
        """The match where the CPU family knows the graph."""
        plan = _plan(target)
        if plan is None:
            return None
        if not plan.planes and _last_width(plan, target) is None:
            return None
        facts = {"shape": plan.shape, "groups": plan.groups, "planes": plan.planes}
        return Match(self.name, target, {}, facts)

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Launches, kilobytes a task, threads a block, vectors in flight, vector width, stores.

        ``lag`` (one launch only) is how many groups the statistics run ahead of the normalising.
        """
        plan = _known(match)
        code = plan.code
        values = prod(plan.shape)
        common: dict[str, list[Any]] = {
            "task_kb": [32, 64, 16, 128, 8],
            "block": [256, 512, 128],
            "unroll": [4, 2, 8],
        }
        if not plan.planes:
            width = _last_width(plan, match.target)
            widths = [width, max(1, (width or 1) // 2)]
            return {**common, "vector": list(dict.fromkeys(widths)), "stores": ["plain", "stream"]}
        small = values * 2 <= L2_BYTES
        return {
            "launches": [2, 1] if small else [1, 2],
            **common,
            "lag": [1, 2, 4, 8],
            "vector": emit.vector_widths(code, match.target),
            "waves": [4, 2, 8],
            "stores": ["stream", "plain"],
        }

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernels for these parameters."""
        plan = _known(match)
        return (_emit_planes if plan.planes else _emit_last)(match, plan, params)


def _plan(target: Target) -> Any:
    """The CPU family's plan; of the target with its inputs in planes where only that is known."""
    twin = cpu_twin(target)
    if twin is None:
        return None
    plan = group_norm._plan(twin)
    if plan is None and turned.last_inputs(twin):
        plan = group_norm._plan(turned.with_planes(twin))
        return plan if plan is not None and plan.planes else None
    return plan


def _known(match: Match) -> Any:
    plan = _plan(match.target)
    assert plan is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return plan


def _twin(match: Match) -> Target:
    twin = cpu_twin(match.target)
    assert twin is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return twin


def _texts(plan: Any, kernel: str) -> list[str]:
    code = plan.code
    return [
        emit.row_code_text(code),
        code.function("KF_INLINE vf before(const Row& p, int64_t i, L n)", "before", "x"),
        code.function("KF_INLINE void after(const Row& p, int64_t i, vf y, L n)", "after"),
        emit.kernel_text("moments.cuh"),
        emit.kernel_text(kernel),
    ]


def _shared_constants(plan: Any, match: Match, params: Params) -> dict[str, emit.Constant]:
    return {
        "V": ("int", params["vector"]),
        "FAST": ("bool", emit.short_answers(match.target)),
        "BLOCK": ("int", params["block"]),
        "U": ("int", params["unroll"]),
        "C": ("int", plan.code.domain.length),
        "EPS": ("float", literal(plan.eps)),
    }


def _emit_planes(match: Match, plan: Any, params: Params) -> Candidate:
    code, block = plan.code, params["block"]
    groups = plan.shape[0] * plan.groups
    per = code.domain.rows // groups
    item = 2 if emit.short_answers(match.target) else 4
    size = per * code.domain.length * item
    split = max(1, min(512, -(-size // (params["task_kb"] * 1024))))
    lag = min(params["lag"], groups)
    constants = {
        **_shared_constants(plan, match, params),
        "PER": ("int", per),
        "SPLIT": ("int", split),
        "GROUPS": ("int", groups),
        "LAG": ("int", lag),
    }
    stream = "true" if params["stores"] == "stream" else "false"
    head = (
        f"  const Args a{{{', '.join(n for _, n in code.arguments())}}};\n"
        "  __shared__ float shared[Team<BLOCK, BLOCK>::FLOATS + 1];\n"
    )
    scratch = {"partial": Scratch("float32", (str(groups), str(split), "3"))}
    pointers = [*code.arguments(), (FLOAT_POINTER, "partial")]
    if params["launches"] == 1:
        scratch["moments"] = Scratch("float32", (str(groups), "2"))
        scratch["state"] = Scratch("int32", (str(2 * groups + 1),), "zero")
        body = head + f"  drawn_tasks<{stream}>(a, partial, moments, state, shared);"
        resident = params["waves"] * emit.multiprocessors(match.target.device)
        grid = min(2 * groups * split, resident)
        given = [*pointers, (FLOAT_POINTER, "moments"), ("int* ", "state")]
        entries = [emit.Entry("kf_group_norm", given, body, grid, block)]
    else:
        task = "blockIdx.x / SPLIT, blockIdx.x % SPLIT"
        # From the last group to the first: what was read last still sits in the cache.
        back = "(gridDim.x - 1 - blockIdx.x) / SPLIT, (gridDim.x - 1 - blockIdx.x) % SPLIT"
        stats = head + f"  stats_task(a, partial, {task}, shared);"
        apply = head + f"  apply_merged<{stream}>(a, partial, {back}, shared);"
        entries = [
            emit.Entry("kf_group_moments", pointers, stats, groups * split, block),
            emit.Entry("kf_group_norm", pointers, apply, groups * split, block),
        ]
    texts = _texts(plan, "group.cuh")
    names: dict[str, str] = {}
    if group_norm._plan(_twin(match)) is None:  # the inputs have to be turned first
        first, room, names = turned.turn_entries(match.target)
        entries, scratch = [*first, *entries], {**room, **scratch}
        texts.append(emit.kernel_text("turn.cuh"))
    text = emit.source(constants, texts, entries, match.target.name)
    return emit.candidate(match, params, text, entries, scratch, names)


def _last_width(plan: Any, target: Target) -> int | None:
    """Channels that a thread takes, or None where a block cannot hold a pixel."""
    channels = plan.shape[1]
    for width in emit.vector_widths(plan.code, target):
        if width <= 8 and channels // width <= 1024:
            return width
    return None


def _emit_last(match: Match, plan: Any, params: Params) -> Candidate:
    code = plan.code
    batch, channels = plan.shape[:2]
    pixels = prod(plan.shape[2:])
    vector = params["vector"]
    block = min(1024, max(params["block"], -(-channels // vector // 32) * 32))
    item = 2 if emit.short_answers(match.target) else 4
    parts = max(1, min(512, pixels, -(-pixels * channels * item // (params["task_kb"] * 4096))))
    apply = max(1, min(pixels, -(-pixels * channels * item // (params["task_kb"] * 1024))))
    constants = {
        **_shared_constants(plan, match, params),
        "BLOCK": ("int", block),
        "GROUPS": ("int", plan.groups),
        "PIXELS": ("int", pixels),
        "SPLIT": ("int", parts),
        "APPLY": ("int", apply),
    }
    given = ", ".join(n for _, n in code.arguments())
    args = f"  const Args a{{{given}}};\n"
    stream = "true" if params["stores"] == "stream" else "false"
    tall = block // (channels // vector)
    room = (2 * tall * channels + tall) * 4
    shared = "  extern __shared__ float4 room[];\n"
    partial, moments = (FLOAT_POINTER, "partial"), (FLOAT_POINTER, "moments")
    entries = [
        emit.Entry("kf_group_moments", [*code.arguments(), partial],
                   args + shared + "  stats_part(a, partial, (float*)room);",
                   batch * parts, block, room),
        emit.Entry("kf_group_merge", [partial, moments], "  finish_group(partial, moments);",
                   batch * plan.groups, 32),
        emit.Entry("kf_group_norm", [*code.arguments(), moments],
                   args + f"  apply_part<{stream}>(a, moments);", batch * apply, block),
    ]  # fmt: skip
    scratch = {
        "partial": Scratch("float32", (str(batch * plan.groups), str(parts), "3")),
        "moments": Scratch("float32", (str(batch * plan.groups), "2")),
    }
    text = emit.source(constants, _texts(plan, "group_last.cuh"), entries, match.target.name)
    return emit.candidate(match, params, text, entries, scratch)
