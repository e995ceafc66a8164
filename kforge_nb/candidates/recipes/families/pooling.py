"""Max, average and adaptive average pooling of ``(N, C, H, W)``, in planes or channels last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.recipes.families import render
from kforge_nb.candidates.recipes.families.isa import available_isas
from kforge_nb.candidates.recipes.families.program import Leaf, Op, read_program
from kforge_nb.candidates.recipes.families.rowcode import CTYPES
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["Pooling", "Window", "families", "plan_pooling"]

_WIDEST = 16384
"""Widest plane: one of its lines lives on a thread's stack."""


def families() -> list[Any]:
    """The family of this module."""
    return [Pooling()]


@dataclass(frozen=True, slots=True)
class Window:
    """Kernel, stride and padding of a pooling, as (height, width)."""

    leaf: Leaf
    maximum: bool
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    count_padding: bool


@dataclass(frozen=True, slots=True)
class Pooling:
    """One pooling operator on one dense input."""

    name: str = "pooling"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is one pooling without dilation and ceil mode."""
        found = _plan(target)
        if found is None:
            return None
        window, last = found
        roles = {"x": f"in{window.leaf.index}", "out": "out0"}
        facts = {"kernel": window.kernel, "stride": window.stride, "last": last}
        return Match(self.name, target, roles, facts)

    def parameters(self, match: Match) -> dict[str, list[Any]]:  # noqa: ARG002
        """Instruction set and unrolling."""
        return {"unroll": [2, 4, 1], "isa": available_isas()}

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters; a task is one plane, or one line (channels last)."""
        found = _plan(match.target)
        assert found is not None  # noqa: S101  (a match exists, and matching is deterministic)
        window, last = found
        n, c, height, width = window.leaf.shape
        _, _, out_height, out_width = match.target.outputs[0].shape
        constants: dict[str, tuple[str, Any]] = {
            "C": ("int64_t", c),
            "H": ("int64_t", height),
            "Wd": ("int64_t", width),
            "OH": ("int64_t", out_height),
            "OW": ("int64_t", out_width),
            "MAX": ("bool", window.maximum),
            "PADDED": ("bool", window.count_padding),
            "LINE": ("int64_t", width + 2 * window.padding[1] + 64),
            "U": ("int", params["unroll"]),
        }
        for name, pair in (("K", window.kernel), ("S", window.stride), ("P", window.padding)):
            constants[f"{name}H"] = ("int64_t", pair[0])
            constants[f"{name}W"] = ("int64_t", pair[1])
        x = CTYPES[window.leaf.dtype]
        alias = f"using X = {x};\nusing Y = {x};\n"
        start = f"x + {window.leaf.view.storage_offset()}"
        tasks, task = n * c, "plane(start + p * H * Wd, out + p * OH * OW)"
        if last:
            tasks = n * out_height
            task = "line_last(start + p / OH * H * Wd * C, out + p * OW * C, p % OH)"
        body = (
            f"  const X* const start = {start};\n"
            f"  share({tasks}, {n * c} * H * Wd, nthreads, [&](int64_t first, int64_t last) {{\n"
            f"    for (int64_t p = first; p < last; ++p) {task};\n  }});"
        )
        tail = render.entry("kf_pooling", [(f"const {x}* ", "x"), (f"{x}* ", "out")], body)
        text = render.source(params["isa"], constants, [alias, render.kernel_text("pool.h")], tail)
        names = [match.roles["x"], match.roles["out"]]
        return render.candidate(match, params, "kf_pooling", text, names)


def _two(value: Any) -> tuple[int, int] | None:
    """An int or a pair of ints as a pair."""
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(pair) == 1:
        pair = pair * 2
    good = len(pair) == 2 and all(isinstance(v, int) and not isinstance(v, bool) for v in pair)
    return (pair[0], pair[1]) if good else None


def _window(op: Op, leaf: Leaf, out: tuple[int, ...]) -> Window | None:
    if op.name == "adaptive_avg_pool2d":
        height, width = leaf.shape[-2:]
        if height % out[-2] or width % out[-1]:
            return None
        each = (height // out[-2], width // out[-1])
        return Window(leaf, False, each, each, (0, 0), True)
    kernel = _two(op.args["kernel_size"])
    stride = kernel if op.args["stride"] in (None, (), []) else _two(op.args["stride"])
    padding = _two(op.args["padding"])
    if kernel is None or stride is None or padding is None or op.args["ceil_mode"]:
        return None
    if op.name == "max_pool2d":
        if _two(op.args["dilation"]) != (1, 1) or op.args.get("return_indices"):
            return None
        return Window(leaf, True, kernel, stride, padding, True)
    if op.args["divisor_override"] is not None:
        return None
    return Window(leaf, False, kernel, stride, padding, bool(op.args["count_include_pad"]))


def _plan(target: Target) -> tuple[Window, bool] | None:
    """The window, and whether channels are last; None where a line does not fit on a stack."""
    window = plan_pooling(target)
    if window is not None:
        return (window, False) if window.leaf.shape[-1] <= _WIDEST else None
    window = plan_pooling(target, last=True)
    return None if window is None else (window, True)


def plan_pooling(target: Target, device: str = "cpu", *, last: bool = False) -> Window | None:
    """The window of a target that is one pooling, or None.

    Input and output must be dense: planes, or (``last``) channels last.
    """
    program = read_program(target, device)
    if program is None or len(program.ops) != 1 or len(program.outputs) != 1:
        return None
    op = program.ops[0]
    leaf = op.args.get("input")
    if op.name not in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"):
        return None
    if not isinstance(leaf, Leaf) or leaf.dtype not in CTYPES or len(leaf.shape) != 4:
        return None
    output = target.outputs[0]
    made = torch.empty_strided(output.shape, output.stride, device="meta")
    layout = torch.channels_last if last else torch.contiguous_format
    dense = all(t.is_contiguous(memory_format=layout) for t in (leaf.view, made))
    if not dense or 0 in leaf.shape or 0 in output.shape:
        return None
    return _window(op, leaf, output.shape)
