"""CUDA kernels for group norm of channels-last data: three launches, three passes over memory.

The first reads the input for its statistics, the second merges what the blocks found (a few
kilobytes), the third reads the input again and writes. A group is a few channels of every pixel, 8
bytes of it in the VAE's largest norm, so that no group can be kept or visited by itself: memory is
read in sectors of 32 bytes. What can be had is the order: the third launch walks back from where
the first one ended, so that the part of the input that is still in the second-level cache (some 30
of an H200's 50 MB) is read from there. What is smaller than that moves twice, what is larger nearly
three times: 1x128x1024x1024 in bf16, 268 MB, takes 190 us at 4.24 TB/s, 1x512x128x128 takes 8 us.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Scratch
from kforge_nb.candidates.recipes.cuda import emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.candidates.recipes.families.group_norm import GroupPlan
    from kforge_nb.candidates.recipes.family import Match, Params
    from kforge_nb.targets.target import Target

__all__ = ["emit_last", "last_parameters", "last_widths"]

MERGE = 128
"""Threads that merge the parts of one group."""

MOST_PARTS = 2048
"""An image is split into so many parts at most."""

_WIDEST = 1024
"""Vectors of a pixel that one block can hold."""

_CACHED = 32 << 20
"""Bytes of an answer from which on it only drives other data out of the second-level cache."""

_FLOATS = "float* "


def last_widths(plan: GroupPlan, target: Target) -> list[int]:
    """Channels that a thread takes, best first; empty where a block cannot hold a pixel."""
    channels = plan.shape[1]
    found = [w for w in emit.vector_widths(plan.code, target) if w <= 8]
    found += [found[0] // 2] if len(found) == 1 and found[0] > 1 else []
    return [w for w in found if channels // w <= _WIDEST]


def last_parameters(plan: GroupPlan, target: Target) -> dict[str, list[Any]]:
    """Moves: ``beside`` blocks of the statistics a multiprocessor, ``task_kb`` a block answers.

    ``block`` threads, rounded to whole pixels; ``unroll`` vectors that a thread has on their way;
    ``vector`` channels of each; ``stores`` past the second-level cache or into it.
    """
    written = sum(prod(s.shape) * _item(target) for s in target.outputs)
    stores = ["stream", "plain"] if written >= _CACHED else ["plain", "stream"]
    return {
        "beside": [4, 8, 2, 6],
        "task_kb": [32, 64, 16, 128],
        "block": [256, 512, 128],
        "unroll": [4, 2, 8],
        "vector": last_widths(plan, target),
        "stores": stores,
    }


def _item(target: Target) -> int:
    return 2 if emit.short_answers(target) else 4


def emit_last(
    match: Match,
    plan: GroupPlan,
    params: Params,
    constants: dict[str, emit.Constant],
    texts: Sequence[str],
) -> Candidate:
    """The three kernels, given the constants and texts that both layouts share."""
    target, code = match.target, plan.code
    batch, channels = plan.shape[:2]
    pixels = prod(plan.shape[2:])
    columns = channels // params["vector"]
    block = emit.whole_rows(columns, params["block"])
    high = block // columns * params["unroll"]
    tiles = -(-pixels // high)
    at_once = params["beside"] * emit.multiprocessors(target.device)
    parts = max(1, min(MOST_PARTS, tiles, -(-at_once // batch)))
    deep = max(1, round(params["task_kb"] * 1024 / (high * channels * _item(target))))
    apply = -(-tiles // deep)
    constants = {
        **constants,
        "BLOCK": ("int", block),
        "GROUPS": ("int", plan.groups),
        "PIXELS": ("int", pixels),
        "SPLIT": ("int", parts),
        "DEEP": ("int", deep),
        "APPLY": ("int", apply),
        "MERGE": ("int", MERGE),
    }
    args = f"  const Args a{{{', '.join(n for _, n in code.arguments())}}};\n"
    stream = "true" if params["stores"] == "stream" else "false"
    tall = block // columns
    room = (2 * tall * channels + tall) * 4
    shared = "  extern __shared__ float4 room[];\n"
    merge = "  __shared__ float shared[Team<MERGE, MERGE>::FLOATS];\n"
    partial, moments = (_FLOATS, "partial"), (_FLOATS, "moments")
    entries = [
        emit.Entry("kf_group_moments", [*code.arguments(), partial],
                   args + shared + "  stats_part(a, partial, (float*)room);",
                   batch * parts, block, room),
        emit.Entry("kf_group_merge", [partial, moments],
                   merge + "  finish_group(partial, moments, shared);",
                   batch * plan.groups, MERGE),
        emit.Entry("kf_group_norm", [*code.arguments(), moments],
                   args + f"  apply_part<{stream}>(a, moments);", batch * apply, block),
    ]  # fmt: skip
    scratch = {
        "partial": Scratch("float32", (str(batch * plan.groups), str(parts), "3")),
        "moments": Scratch("float32", (str(batch * plan.groups), "2")),
    }
    text = emit.source(constants, texts, entries, target.name)
    return emit.candidate(match, params, text, entries, scratch)
