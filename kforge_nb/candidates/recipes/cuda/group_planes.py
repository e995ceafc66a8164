"""CUDA kernels for group norm of planes: four ways to see a group's elements twice.

``kept``: one launch that keeps what it read in shared memory, so that the input is read once;
``two``: a launch for the statistics, one for the normalising. The other two let the second reading
of a group hit the second-level cache: ``chain`` by a launch for each few groups, ``drawn`` by one
launch whose blocks draw tasks in such an order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.candidate import Scratch
from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.families.program import Leaf
from kforge_nb.candidates.recipes.families.rowcode import CTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kforge_nb.candidates.recipes.families.group_norm import GroupPlan
    from kforge_nb.candidates.recipes.family import Params
    from kforge_nb.targets.target import Target

__all__ = [
    "PARTS",
    "kept_type",
    "plane_constants",
    "plane_entries",
    "plane_parameters",
    "settled",
    "source_text",
]

PARTS = 512
"""A group is split into so many parts at most."""

MOST_STEPS = 12
"""Chunks of a chain of launches; each but the first and the last overlaps two of them."""

BLOCK_RESERVE = 1024
"""Shared bytes that the device keeps for itself in each block."""

_FLOATS = "float* "


def kept_type(plan: GroupPlan) -> torch.dtype:
    """The type in which a kept element loses nothing that eager's input has."""
    dtype = plan.source.dtype
    return dtype if dtype in CTYPES else torch.float32


def plane_parameters(plan: GroupPlan, target: Target) -> dict[str, list[Any]]:
    """How a group is seen twice, then what matters to each way.

    ``beside`` is how many blocks share a multiprocessor, ``copies`` whether an input that is read
    as it is comes by asynchronous copies (kept); ``task_kb`` the kilobytes of a task, ``lag`` how
    many groups the statistics run ahead, ``waves`` the blocks that stay (drawn), ``chunk_mb`` how
    much one launch of a chain normalises.
    """
    return {
        "way": ["two", "chain", "kept", "drawn"],
        "beside": [3, 2, 4, 6, 1],
        "copies": [True, False],
        "block": [256, 512, 128, 1024],
        "unroll": [4, 2, 8],
        "task_kb": [32, 64, 16, 128, 8],
        "lag": [1, 2, 4, 8],
        "chunk_mb": [16, 8, 24, 32],
        "vector": emit.vector_widths(plan.code, target),
        "waves": [4, 2, 8],
        "stores": ["stream", "plain"],
    }


def _split(plan: GroupPlan, target: Target, params: Params) -> int:
    """Parts of a group."""
    groups = plan.shape[0] * plan.groups
    elements = plan.code.domain.rows // groups * plan.code.domain.length
    most = max(1, min(PARTS, elements // (params["vector"] * params["block"])))
    if params["way"] != "kept":
        item = 2 if emit.short_answers(target) else 4
        return min(most, -(-elements * item // (params["task_kb"] * 1024)))
    size = elements * kept_type(plan).itemsize
    held = 2 if _copied(plan, params) else 1
    least = -(-size // (_room(target, params) // held))
    at_once = held * _beside(params) * emit.multiprocessors(target.device) // groups
    # Where all groups fit on the device at once, every block gets an equal share of them.
    return min(most, max(least, at_once))


def _kept_bytes(plan: GroupPlan, params: Params, split: int) -> int:
    """Shared bytes of the parts that a block holds at once."""
    groups = plan.shape[0] * plan.groups
    vectors = plan.code.domain.rows // groups * plan.code.domain.length // params["vector"]
    part = -(-vectors // split) * params["vector"] * kept_type(plan).itemsize
    return part * (2 if _copied(plan, params) else 1)


def settled(plan: GroupPlan, target: Target, params: Params) -> Params:
    """The parameters, with two launches where a part is too large to be kept."""
    if params["way"] != "kept":
        return params
    size = _kept_bytes(plan, params, _split(plan, target, params))
    fits = size + 4 * PARTS + BLOCK_RESERVE <= emit.shared_limit(target.device)
    return params if fits else {**params, "way": "two"}


def _room(target: Target, params: Params) -> int:
    """Shared bytes for the part that a block keeps."""
    limit = emit.shared_limit(target.device)
    own = params["block"] // 32 * 8 + 4 * PARTS + 64
    return max(4096, (limit + BLOCK_RESERVE) // _beside(params) - BLOCK_RESERVE - own)


def _beside(params: Params) -> int:
    """Blocks that share a multiprocessor; together they have 1024 threads at most."""
    return int(max(1, min(params["beside"], 1024 // params["block"])))


def _address(plan: GroupPlan) -> str | None:
    """Where an element of the input lies, in terms of a row; None where it is computed."""
    if not isinstance(plan.source, Leaf):
        return None
    lines = " ".join(plan.code.lines.get("before", []))
    found = re.search(r"load\((p\.\w+ \+ i), n\)", lines)
    return found[1] if found else None


def source_text(plan: GroupPlan) -> str:
    """The function that tells asynchronous copies what to copy."""
    head = "KF_INLINE const Kept* source_of(const Row& p, int64_t i)"
    return f"{head} {{ return {_address(plan) or '(void)p, (void)i, nullptr'}; }}"


def plane_constants(plan: GroupPlan, target: Target, params: Params) -> dict[str, emit.Constant]:
    """What ``group.cuh`` and ``group_kept.cuh`` want to know."""
    groups = plan.shape[0] * plan.groups
    return {
        "PER": ("int", plan.code.domain.rows // groups),
        "SPLIT": ("int", _split(plan, target, params)),
        "GROUPS": ("int", groups),
        "LAG": ("int", min(params["lag"], groups)),
        "COPIED": ("bool", _copied(plan, params)),
        "STAGES": ("int", 4),
        "CHUNK": ("int", _chunk(plan, groups, params)),
    }


def _chunk(plan: GroupPlan, groups: int, params: Params) -> int:
    """Groups of one launch of a chain: about ``chunk_mb``, and so many that few launches do."""
    size = plan.code.domain.rows * plan.code.domain.length * kept_type(plan).itemsize // groups
    wanted = round(params["chunk_mb"] * 2**20 / size)
    return min(groups, max(1, wanted, -(-groups // MOST_STEPS)))


def _copied(plan: GroupPlan, params: Params) -> bool:
    """Whether parts come by asynchronous copies; a block then holds two of them."""
    whole = params["vector"] * kept_type(plan).itemsize == 16
    return bool(params["copies"]) and whole and _address(plan) is not None


def plane_entries(
    plan: GroupPlan,
    target: Target,
    params: Params,
    constants: Mapping[str, emit.Constant],
) -> tuple[list[emit.Entry], dict[str, Scratch]]:
    """The kernels of the chosen way, and their scratch."""
    code = plan.code
    head = (
        f"  const Args a{{{', '.join(n for _, n in code.arguments())}}};\n"
        "  __shared__ float shared[Team<BLOCK, BLOCK>::FLOATS + 1];\n"
    )
    groups, split = int(constants["GROUPS"][1]), int(constants["SPLIT"][1])
    scratch = {"partial": Scratch("float32", (str(groups), str(split), "3"))}
    pointers = [*code.arguments(), (_FLOATS, "partial")]
    stream = "<true>" if params["stores"] == "stream" else "<false>"
    block, processors = params["block"], emit.multiprocessors(target.device)
    if params["way"] == "kept":
        scratch["state"] = Scratch("int32", (str(groups + 1),), "zero")
        body = head.replace("  const", "  extern __shared__ float4 room[];\n  const", 1)
        body += f"  kept_tasks{stream}(a, partial, state, shared, (Kept*)room);"
        size = _kept_bytes(plan, params, split)
        beside = _beside(params)
        grid = min(groups * split, beside * processors)
        given = [*pointers, ("int* ", "state")]
        return [emit.Entry("kf_group_norm", given, body, grid, block, size, beside)], scratch
    if params["way"] == "drawn":
        scratch["moments"] = Scratch("float32", (str(groups), "2"))
        scratch["state"] = Scratch("int32", (str(2 * groups + 1),), "zero")
        body = head + f"  drawn_tasks{stream}(a, partial, moments, state, shared);"
        grid = min(2 * groups * split, params["waves"] * processors)
        given = [*pointers, (_FLOATS, "moments"), ("int* ", "state")]
        return [emit.Entry("kf_group_norm", given, body, grid, block)], scratch
    if params["way"] == "chain":
        body = head + f"  chained{stream}(a, partial, step, shared);"
        return _chain(pointers, body, params, constants), scratch
    task = "blockIdx.x / SPLIT, blockIdx.x % SPLIT"
    # From the last group to the first: what was read last still sits in the cache.
    back = "(gridDim.x - 1 - blockIdx.x) / SPLIT, (gridDim.x - 1 - blockIdx.x) % SPLIT"
    stats = head + f"  stats_task(a, partial, {task}, shared);"
    apply = head + f"  apply_merged{stream}(a, partial, {back}, shared);"
    return [
        emit.Entry("kf_group_moments", pointers, stats, groups * split, block),
        emit.Entry("kf_group_norm", pointers, apply, groups * split, block),
    ], scratch


def _chain(
    pointers: list[tuple[str, str]],
    body: str,
    params: Params,
    constants: Mapping[str, emit.Constant],
) -> list[emit.Entry]:
    """One kernel launched for each chunk, and once more for the last one's normalising."""
    groups, split, chunk = (int(constants[name][1]) for name in ("GROUPS", "SPLIT", "CHUNK"))
    steps = -(-groups // chunk)
    tasks = chunk * split
    return [
        emit.Entry(
            "kf_group_norm",
            pointers,
            body,
            2 * tasks if 0 < step < steps else tasks,
            params["block"],
            numbers=(("step", step),),
        )
        for step in range(steps + 1)
    ]
