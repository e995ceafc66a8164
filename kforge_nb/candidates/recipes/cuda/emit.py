"""Puts a CUDA source together: constants, the kernel texts of this folder, and the entries.

Recipes include no header, so a source compiles in a tenth of a second with any NVRTC. What they
know of the device is its number of multiprocessors, for grids that stay; without a device at hand
that of the H200 is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch
from kforge_nb.candidates.recipes.family import Match, Params, origin_of

if TYPE_CHECKING:
    from kforge_nb.candidates.recipes.families.rowcode import RowCode
    from kforge_nb.targets.target import Target

__all__ = [
    "Entry",
    "candidate",
    "early_text",
    "flat_widths",
    "kernel_text",
    "late_reads",
    "mix_text",
    "multiprocessors",
    "power_of_two",
    "row_code_text",
    "shared_limit",
    "short_answers",
    "source",
    "vector_widths",
    "whole_rows",
]

Constant = tuple[str, Any]
_READ = re.compile(r"load\(p\.(\w+) \+ i, n\)")
_ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``extern "C"`` kernel: parameters (C type, name), body, grid, block and shared bytes.

    ``resident`` is how many of its blocks must fit on a multiprocessor; 0 leaves it open.
    ``numbers`` are ints (name, value) behind the pointers: several launches of one kernel are
    entries that differ in nothing else.
    """

    name: str
    parameters: Sequence[tuple[str, str]]
    body: str
    grid: int
    block: int
    shared: int = 0
    resident: int = 0
    numbers: tuple[tuple[str, int], ...] = ()

    def text(self) -> str:
        """The kernel's definition."""
        pointers = [_restricted(kind, name) for kind, name in self.parameters]
        given = ", ".join([*pointers, *(f"int {name}" for name, _ in self.numbers)])
        bounds = f"{self.block}, {self.resident}" if self.resident else str(self.block)
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {self.name}({given})'
        return f"{head} {{\n{self.body}\n}}\n"

    def kernel(self, names: dict[str, str]) -> Kernel:
        """Its line in the plan; ``names`` maps parameters to tensors of the plan."""
        args = tuple(names.get(name, name) for _, name in self.parameters)
        args += tuple(f"i32:{value}" for _, value in self.numbers)
        grid, block = (str(self.grid), "1", "1"), (str(self.block), "1", "1")
        return Kernel(self.name, args, grid, block, str(self.shared))


def _restricted(kind: str, name: str) -> str:
    return f"{kind.rstrip('* ')}* __restrict__ {name}"


@lru_cache(maxsize=64)
def kernel_text(name: str) -> str:
    """Text of ``cuda/kernels/NAME``, shipped with the package."""
    folder = resources.files("kforge_nb.candidates.recipes.cuda") / "kernels"
    return (folder / name).read_text(encoding="utf-8")


@lru_cache(maxsize=8)
def multiprocessors(device: str) -> int:
    """Multiprocessors of a device; 132 where it is not here."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return 132


@lru_cache(maxsize=8)
def shared_limit(device: str) -> int:
    """Bytes of shared memory that a block may have; what an H200 allows where it is not here."""
    if device.startswith("cuda") and torch.cuda.is_available():
        found = torch.cuda.get_device_properties(device)
        return int(getattr(found, "shared_memory_per_block_optin", 99 << 10))
    return 227 << 10


def power_of_two(value: int) -> int:
    """The least power of two that is not below ``value``."""
    return 1 << max(0, value - 1).bit_length()


def short_answers(target: Target) -> bool:
    """Whether every output has 16 bits, so that short exponentials and quotients are enough."""
    return all(_ITEM.get(s.dtype, 4) == 2 for s in target.outputs)


def vector_widths(code: RowCode, target: Target, *, ragged: bool = False) -> list[int]:
    """Elements an access, best first: 16 bytes of the shortest type, then half, then twice.

    A width is possible where every row of every tensor that is walked through starts on a multiple
    of it, and where it divides the row; a single row may be ``ragged``.
    """
    touched = [target.inputs[i] for i in sorted(code.inputs) or range(len(target.inputs))]
    item = min((_ITEM[s.dtype] for s in [*touched, *target.outputs] if s.dtype in _ITEM), default=4)
    best = 16 // item
    walks = [w for w in [*code.leaf_walks.values(), *code.store_walks] if w.inner == 1]
    single = ragged and code.domain.rows == 1

    def fits(width: int) -> bool:
        starts = all(not w.offset % width and not any(s % width for s in w.outer) for w in walks)
        return starts and (single or code.domain.length % width == 0)

    found = [w for w in (best, best // 2, 2 * best, 2, 1) if 1 <= w <= 16 and fits(w)]
    kept = list(dict.fromkeys(found))
    return [w for w in kept if w >= best // 2] or kept[:2] or [1]


def _cpp(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def source(
    constants: dict[str, Constant], texts: Sequence[str], entries: Sequence[Entry], title: str
) -> str:
    """Constants that the shared headers need, those headers, then texts and entries."""
    named = "".join(f"static constexpr {t} {n} = {_cpp(v)};\n" for n, (t, v) in constants.items())
    shared = [kernel_text(n) for n in ("types.cuh", "math.cuh", "reduce.cuh")]
    early, late = _split(named)
    parts = [f"// {title}", early, shared[0], late, *shared[1:], *texts]
    return "\n".join([*parts, *dict.fromkeys(entry.text() for entry in entries)])


def _split(named: str) -> tuple[str, str]:
    """Plain ints and bools come before the headers; what uses a header's types comes after."""
    lines = named.splitlines(keepends=True)
    early = [line for line in lines if line.split()[2] in ("int", "bool")]
    return "".join(early), "".join(line for line in lines if line not in early)


def row_code_text(code: RowCode) -> str:
    """The structs of row code, with 32-bit row numbers where they are enough."""
    text = code.structs()
    if code.domain.rows < 2**31:
        text = text.replace("Row(const Args& a, int64_t r)", "Row(const Args& a, int32_t r)")
        for axis in range(len(code.domain.sizes)):
            text = text.replace(f"const int64_t i{axis} = r", f"const int32_t i{axis} = r")
            text = text.replace(f"i{axis} * ", f"int64_t(i{axis}) * ")
    return text


def whole_rows(wide: int, wanted: int) -> int:
    """Threads of a block of whole rows of ``wide`` threads: about ``wanted``, in whole warps."""
    return min(1024, -(-max(1, wanted // wide) * wide // 32) * 32)


def flat_widths(code: RowCode, target: Target) -> list[int]:
    """Elements an access where vectors may run on into the next row; empty where they may not.

    That is so where every tensor is dense over all rows, or the same along each row.
    """
    length = code.domain.length
    steps = [length]
    for size in reversed(code.domain.sizes[1:]):
        steps.append(steps[-1] * size)
    dense = tuple(reversed(steps[: len(code.domain.sizes)]))
    walks = [*code.leaf_walks.values(), *code.store_walks]
    if any(w.inner == 1 and (w.outer != dense or w.offset) for w in walks):
        return []
    item = min(_ITEM[s.dtype] for s in target.outputs)
    best = 16 // item
    total = code.domain.rows * length
    return [w for w in (best, best // 2, 2 * best) if total % w == 0 and w <= length]


def late_reads(code: RowCode) -> list[str]:
    """Pointers of a row that are read in the phase ``after`` and not in ``before``."""
    found = [_READ.findall(" ".join(code.lines.get(p, []))) for p in ("before", "after")]
    return [name for name in dict.fromkeys(found[1]) if name not in found[0]]


def early_text(code: RowCode) -> str:
    """The function that asks for those reads before they are needed."""
    lines = "".join(f"  bring(p.{name} + i);\n" for name in late_reads(code))
    return f"KF_INLINE void early(const Row& p, int64_t i) {{\n  (void)p, (void)i;\n{lines}}}"


def mix_text(code: RowCode) -> str:
    """The function that takes what is the same along a row from the next row, from a lane on."""
    names = [f.removeprefix("vf ").rstrip(";") for f in code.fields if f.startswith("vf ")]
    lines = "".join(f"    if (k >= from) p.{n}.v[k] = q.{n}.v[k];\n" for n in names)
    return (
        "KF_INLINE void mix(Row& p, const Row& q, int from) {\n  (void)p, (void)q, (void)from;\n"
        f"#pragma unroll\n  for (int k = 0; k < V; ++k) {{\n{lines}  }}\n}}"
    )


def candidate(
    match: Match,
    params: Params,
    text: str,
    entries: Sequence[Entry],
    scratch: dict[str, Scratch] | None = None,
    names: dict[str, str] | None = None,
) -> Candidate:
    """A ``cuda`` candidate that launches the entries in order."""
    plan = LaunchPlan(tuple(e.kernel(names or {}) for e in entries), {}, scratch or {})
    said = ", ".join(f"{k} {v}" for k, v in params.items())
    return Candidate("cuda", text, plan, f"{match.family} ({said})", origin_of(match, params))
