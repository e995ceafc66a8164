"""CUDA kernels for max, average and adaptive average pooling, in planes and channels last."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.families.pooling import Window, plan_pooling
from kforge_nb.candidates.recipes.families.rowcode import CTYPES
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["CudaPooling", "families"]

_LARGEST_WINDOW = 64
"""Elements of a window that one thread may read by itself."""


def families() -> list[Any]:
    """The family of this module."""
    return [CudaPooling()]


@dataclass(frozen=True, slots=True)
class CudaPooling:
    """One pooling operator on one dense input of four dimensions."""

    name: str = "pooling"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is one pooling without dilation and ceil mode."""
        found = _plan(target)
        if found is None:
            return None
        window, way = found
        roles = {"x": f"in{window.leaf.index}", "out": "out0"}
        facts = {"kernel": window.kernel, "stride": window.stride, "way": way}
        return Match(self.name, target, roles, facts)

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Results a thread and elements (channels last) an access; or threads a plane; block."""
        window, way = _known(match)
        found: dict[str, list[Any]] = {}
        if way == "last":
            best = 16 // window.leaf.dtype.itemsize
            widths = [w for w in (best, best // 2, 2, 1) if window.leaf.shape[1] % w == 0]
            overlap = window.kernel[1] > window.stride[1]
            found["each"] = [2, 1, 4] if overlap else [1, 2]
            found["vector"] = list(dict.fromkeys(widths))[:3]
        elif way == "rows":
            size = prod(window.leaf.shape[2:])
            best = min(256, emit.power_of_two(max(1, size // 4)))
            options = [best, best // 2, best * 2, best // 4]
            found["threads"] = [t for t in options if 1 <= t <= 1024]
        else:
            found["each"] = [4, 2, 8, 1]
            found["vector"] = _plane_widths(window)
        return {**found, "block": [256, 128, 512]}

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        window, way = _known(match)
        n, c, height, width = window.leaf.shape
        oh, ow = match.target.outputs[0].shape[2:]
        block = max(32, params["block"])
        constants: dict[str, emit.Constant] = {
            "V": ("int", _width(window, way, params)),
            "FAST": ("bool", emit.short_answers(match.target)),
            "BLOCK": ("int", block),
            "MAX": ("bool", window.maximum),
            "PADDED": ("bool", window.count_padding),
            "OUT": ("int", params.get("each", 1)),
            "T": ("int", min(block, params.get("threads", 1))),
        }
        sizes = {"N": n, "C": c, "H": height, "Wd": width, "OH": oh, "OW": ow}
        for letter, pair in (("K", window.kernel), ("S", window.stride), ("P", window.padding)):
            sizes |= {f"{letter}H": pair[0], f"{letter}W": pair[1]}
        constants |= {name: ("int", size) for name, size in sizes.items()}
        x = CTYPES[window.leaf.dtype]
        total = n * c * height * width
        index = "int32_t" if total < 2**31 - 2**20 else "int64_t"
        work, call = _work(way, constants, n * c * oh, oh, ow)
        body = f"  {call};"
        if way == "rows":
            body = "  __shared__ float shared[Team<T, BLOCK>::FLOATS];\n" + body
        start = window.leaf.view.storage_offset()
        body = body.replace("(x", f"(x + {start}" if start else "(x")
        entry = emit.Entry(
            "kf_pooling",
            [(f"const {x}* ", "x"), (f"{x}* ", "out")],
            body,
            max(1, min(-(-work // block), 2**30)),
            block,
        )
        texts = [f"using X = {x};\nusing Index = {index};", emit.kernel_text("pool.cuh")]
        text = emit.source(constants, texts, [entry], match.target.name)
        return emit.candidate(match, params, text, [entry], None, match.roles)


def _plane_widths(window: Window) -> list[int]:
    """Elements of a line read at once, best first; lines must start and end on them."""
    best = 16 // window.leaf.dtype.itemsize
    parts = (window.leaf.shape[3], window.leaf.view.storage_offset())
    found = [w for w in (best, best // 2, 2, 1) if all(part % w == 0 for part in parts)]
    return list(dict.fromkeys(found))[:3]


def _width(window: Window, way: str, params: Params) -> int:
    """The width chosen, or in planes the widest below it on which every window starts."""
    width = int(params.get("vector", 1))
    while way == "planes" and width > 1 and params["each"] * window.stride[1] % width:
        width //= 2
    return width


def _work(
    way: str, constants: dict[str, emit.Constant], lines: int, oh: int, ow: int
) -> tuple[int, str]:
    """Threads needed, and the call."""
    if way == "last":
        line = -(-ow // constants["OUT"][1])
        return lines * line // constants["V"][1], "pool_last<false>(x, out)"
    if way == "rows":
        return lines // oh * constants["T"][1], "pool_rows(x, out, shared)"
    return lines * -(-ow // constants["OUT"][1]), "pool_planes(x, out)"


def _plan(target: Target) -> tuple[Window, str] | None:
    """The window, and which kernel takes it: ``planes``, ``rows`` or ``last``."""
    window, way = plan_pooling(target, "cuda"), "planes"
    if window is not None and _covers(window):
        return window, "rows"
    if window is None:
        window, way = plan_pooling(target, "cuda", last=True), "last"
    if window is None or prod(window.kernel) > _LARGEST_WINDOW:
        return None
    return window, way


def _known(match: Match) -> tuple[Window, str]:
    found = _plan(match.target)
    assert found is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return found


def _covers(window: Window) -> bool:
    """Whether the one window of a plane is the whole plane."""
    return window.kernel == tuple(window.leaf.shape[2:]) and window.padding == (0, 0)
