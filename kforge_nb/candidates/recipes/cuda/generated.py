"""The generator for CUDA: the last family, that takes whatever no tuned family knows.

It lowers and plans as the CPU generator does (views, concatenations, broadcasts and casts become
index arithmetic, reductions run over rows) and writes one CUDA kernel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.cuda import emit, region
from kforge_nb.candidates.recipes.family import Match, Params, default_params
from kforge_nb.candidates.recipes.generator import GENERATOR
from kforge_nb.candidates.recipes.generator.ir import Unsupported
from kforge_nb.candidates.recipes.generator.lower import Choices
from kforge_nb.candidates.recipes.generator.nest import Nest, plan_nests

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["CudaGenerated", "families", "why_not"]

_LARGEST_INDEX = 2**31 - 2**20


def families() -> list[Any]:
    """The family of this module."""
    return [CudaGenerated()]


def why_not(target: Target) -> str | None:
    """Why the generator cannot write a CUDA kernel for the target, or None if it can."""
    return CudaGenerated().why_not(target)


class CudaGenerated:
    """Element-wise regions with views and casts, and reductions over rows."""

    name = "generated"

    def match(self, target: Target) -> Match | None:
        """A match whenever a kernel can be written."""
        return None if self.why_not(target) else Match(self.name, target)

    def why_not(self, target: Target) -> str | None:
        """None where a kernel can be written, else the reason in words."""
        try:
            match = Match(self.name, target)
            self.emit(match, default_params(self, match))
        except Unsupported as reason:
            return str(reason)
        return None

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Threads a block, vectors a thread, bytes an access, stores; threads a row, rounding."""
        target = match.target
        rows = [n for n in _nests(target, {}) if n.reducing]
        elements = max((math.prod(s.shape) for s in target.outputs), default=1)
        found: dict[str, list[Any]] = {}
        if rows:
            longest = max(_row_length(nest) for nest in rows)
            best = min(512, max(4, emit.power_of_two(-(-longest // 16))))
            options = [best, best * 2, best // 2, best * 4, best // 4]
            found["threads"] = [t for t in options if 1 <= t <= 1024]
        found["block"] = [256, 128, 512]
        if len(rows) < len(_nests(target, {})):
            found["unroll"] = [2, 1, 4] if elements >= 1 << 20 else [1, 2]
        found["bytes"] = [16, 8, 32]
        found["stores"] = ["plain", "stream"]
        if any(s.dtype in ("bfloat16", "float16") for s in [*target.inputs, *target.outputs]):
            found["rounding"] = ["free", "casts"]
        return found

    def emit(self, match: Match, params: Params) -> Candidate:
        """Source and plan for one choice of parameters."""
        target = match.target
        threads = params.get("threads", 32)
        block = max(params["block"], threads, 32)
        style = region.Style(
            block=block,
            threads=threads,
            unroll=params.get("unroll", 1),
            bytes=params["bytes"],
            stream=params["stores"] == "stream",
        )
        parts = region.write_parts(_nests(target, params), target.inputs, target.outputs, style)
        largest = max(math.prod(s.shape) for s in [*target.inputs, *target.outputs])
        constants: dict[str, emit.Constant] = {
            "V": ("int", 1),
            "FAST": ("bool", emit.short_answers(target)),
            "BLOCK": ("int", block),
            "T": ("int", threads),
        }
        texts = [
            f"using Index = {'int32_t' if largest < _LARGEST_INDEX else 'int64_t'};",
            emit.kernel_text("generated.cuh"),
            *(region.plain_names(part.text) for part in parts),
        ]
        entry = _entry(target, parts, block)
        text = emit.source(constants, texts, [entry], target.name)
        return emit.candidate(match, params, text, [entry])


def _nests(target: Target, params: Params) -> list[Nest]:
    """The loops that compute the target, fresh (writing them changes them)."""
    devices = {spec.device for spec in (*target.inputs, *target.outputs)}
    if len(devices) != 1 or not target.device.startswith("cuda"):
        raise Unsupported("its tensors are not on one CUDA device")
    choices = Choices(rounding=params.get("rounding", "free"))
    return plan_nests(GENERATOR.lowered(target, choices).outputs, target.outputs)


def _row_length(nest: Nest) -> int:
    loops = [loop for v in nest.variants for sweep in v.passes for loop in sweep.loops]
    return max((math.prod(s.size for s in loop.symbols) for loop in loops), default=1)


def _entry(target: Target, parts: list[region.Part], block: int) -> emit.Entry:
    """The kernel: each part has a range of blocks."""
    specs = [*target.inputs, *target.outputs]
    names = [*target.input_names, *target.output_names]
    parameters = [
        (f"{'const ' if name.startswith('in') else ''}{region.TYPES[spec.dtype]}* ", name)
        for name, spec in zip(names, specs, strict=True)
    ]
    given = ", ".join(names)
    lines = [
        "  __shared__ float shared[Team<T, BLOCK>::FLOATS];",
        "  Team<T, BLOCK> team(shared);",
        "  int block = blockIdx.x;",
    ]
    for part in parts:
        lines.append(f"  if (block < {part.blocks}) return {part.name}({given}, block, team);")
        lines.append(f"  block -= {part.blocks};")
    grid = sum(part.blocks for part in parts)
    return emit.Entry("kf_region", parameters, "\n".join(lines[:-1]), grid, block)
