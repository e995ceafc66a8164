"""CUDA kernels for depthwise convolution along a row, as the delta rule's causal convolution is.

A slice of the answer (which makes it causal) and an activation may follow. The input may be dense
along the row, or along the channels, as it comes out of a linear layer and a transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.families.operators import read_call
from kforge_nb.candidates.recipes.families.rowcode import CTYPES
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["CudaConv1d", "families"]

_ACTIVATIONS = {"": 0, "silu": 1, "relu": 2}
_LONGEST_SPAN = 32
_SIDE, _LONG = 64, 64
"""Channels and positions of a tile of ``conv.cuh``."""


def families() -> list[Any]:
    """The family of this module."""
    return [CudaConv1d()]


@dataclass(slots=True)
class _Conv:
    """A depthwise convolution: input (meta), which inputs, padding in front, what follows."""

    x: torch.Tensor
    inputs: tuple[int, int, int | None]
    taps: int
    dilation: int
    pad: int
    length: int
    activation: str = ""

    @property
    def turned(self) -> bool:
        """Whether the input is dense along its channels."""
        return self.x.stride(2) != 1


@dataclass(frozen=True, slots=True)
class CudaConv1d:
    """``F.conv1d`` with one channel a group and stride 1, maybe cut and activated."""

    name: str = "conv1d"

    def match(self, target: Target) -> Match | None:
        """The match where the graph is such a convolution and nothing else."""
        conv = _plan(target)
        if conv is None:
            return None
        x, w, b = conv.inputs
        roles = {"x": f"in{x}", "w": f"in{w}", "out": "out0"}
        roles |= {} if b is None else {"bias": f"in{b}"}
        return Match(self.name, target, roles, {"taps": conv.taps, "activation": conv.activation})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Elements an access, and threads a block."""
        return {"vector": _widths(_known(match), match.target), "block": [256, 128, 512]}

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        conv, target = _known(match), match.target
        vector, block = params["vector"], params["block"]
        batch, channels, length = conv.x.shape
        out = target.outputs[0].shape[2]
        constants: dict[str, emit.Constant] = {
            "V": ("int", vector),
            "FAST": ("bool", emit.short_answers(target)),
            "BLOCK": ("int", block),
            "TAPS": ("int", conv.taps),
            "DIL": ("int", conv.dilation),
            "PAD": ("int", conv.pad),
            "BEFORE": ("int", -(-conv.pad // vector) * vector),
            "L": ("int", length),
            "OUT": ("int", out),
            "ACT": ("int", _ACTIVATIONS[conv.activation]),
            "BATCH": ("int", batch),
            "C": ("int", channels),
        }
        strides = zip(("XB", "XC", "XL"), conv.x.stride(), strict=True)
        constants |= {name: ("int64_t", stride) for name, stride in strides}
        tensors = [target.inputs[conv.inputs[0]], target.inputs[conv.inputs[1]], target.outputs[0]]
        x, w, y = (CTYPES[getattr(torch, spec.dtype)] for spec in tensors)
        large = max(batch * channels * out, batch * channels * length) >= 2**31 - 2**20
        texts = [
            f"using X = {x};\nusing W = {w};\nusing Y = {y};",
            f"using Index = {'int64_t' if large else 'int32_t'};",
            emit.kernel_text("conv.cuh"),
        ]
        bias = "bias" if "bias" in match.roles else "nullptr"
        given = f"x + {conv.x.storage_offset()}, w, {bias}, out"
        pointers = [(f"const {x}* ", "x"), (f"const {w}* ", "w")]
        pointers += [(f"const {w}* ", "bias")] if "bias" in match.roles else []
        pointers.append((f"{y}* ", "out"))
        if conv.turned:
            grid = batch * -(-channels // _SIDE) * -(-out // _LONG)
            body = f"  __shared__ float room[SIDE * PITCH];\n  conv_turned({given}, room);"
        else:
            grid = -(-batch * channels * -(-out // vector) // block)
            body = f"  conv_rows({given});"
        entry = emit.Entry("kf_conv1d", pointers, body, min(grid, 2**31 - 1), block)
        text = emit.source(constants, texts, [entry], f"conv1d of {target.name}")
        return emit.candidate(match, params, text, [entry], None, match.roles)


class _Reader:
    """Walks a graph that must be: views of the input, the convolution, what may follow."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.metas: dict[fx.Node, torch.Tensor] = {}
        self.sources: dict[fx.Node, int] = {}
        self.conv: _Conv | None = None
        self.last: fx.Node | None = None

    def read(self) -> _Conv | None:
        for node in self.target.graph.graph.nodes:
            if node.op == "placeholder":
                index = len(self.sources)
                self.sources[node] = index
                self.metas[node] = _meta(self.target.inputs[index])
            elif node.op == "output":
                return self.conv if list(node.args[0]) == [self.last] else None
            elif not self._call(node):
                return None
        return None

    def _call(self, node: fx.Node) -> bool:
        call = read_call(node, self.target.device)
        if call is None:
            return False
        name, args = call
        if name == "conv1d":
            return self.conv is None and self._convolution(node, args)
        source = args.get("input")
        if not isinstance(source, fx.Node):
            return False
        if name in ("view", "getitem"):
            return self._view(node, source)
        return source is self.last and len(source.users) == 1 and self._following(node, name, args)

    def _view(self, node: fx.Node, source: fx.Node) -> bool:
        """Another look at an input; or at the answer, of which the row may be cut."""
        old = self.metas[source]
        new = fx.map_arg((node.args, node.kwargs), lambda n: self.metas[n])
        if node.op == "call_method":
            new = getattr(old, str(node.target))(*new[0][1:], **new[1])
        else:
            new = node.target(*new[0], **new[1])  # type: ignore[operator]
        if not isinstance(new, torch.Tensor):
            return False
        self.metas[node] = new
        if source in self.sources:
            self.sources[node] = self.sources[source]
            return new.untyped_storage()._cdata == old.untyped_storage()._cdata
        if source is not self.last or self.conv is None or self.conv.activation:
            return False
        same = new.stride() == old.stride() and new.shape[:2] == old.shape[:2]
        if not same or len(source.users) != 1:
            return False
        self.conv.pad -= int(new.storage_offset()) - int(old.storage_offset())
        self.conv.length = new.shape[2]
        self.last = node
        return True

    def _convolution(self, node: fx.Node, args: dict[str, Any]) -> bool:
        x, w, b = args["input"], args["weight"], args["bias"]
        if x not in self.sources or w not in self.sources or (b and b not in self.sources):
            return False
        data, weight = self.metas[x], self.metas[w]
        stride, pad, dilation = (_one(args[n]) for n in ("stride", "padding", "dilation"))
        if stride != 1 or pad is None or dilation is None or len(data.shape) != 3:
            return False
        channels, taps = data.shape[1], weight.shape[-1]
        if args["groups"] != channels or weight.shape != (channels, 1, taps):
            return False
        dense = weight.is_contiguous() and (b is None or self.metas[b].is_contiguous())
        whole = all(not self.metas[n].storage_offset() for n in (w, b) if n is not None)
        if not dense or not whole or taps < 1 or (taps - 1) * dilation > _LONGEST_SPAN:
            return False
        inputs = (self.sources[x], self.sources[w], None if b is None else self.sources[b])
        out = data.shape[2] + 2 * pad - (taps - 1) * dilation
        self.conv = _Conv(data, inputs, taps, dilation, pad, out)
        self.metas[node] = torch.empty((data.shape[0], channels, out), device="meta")
        self.last = node
        return True

    def _following(self, node: fx.Node, name: str, args: dict[str, Any]) -> bool:
        if self.conv is None or (name != "cast" and name not in _ACTIVATIONS):
            return False
        if name != "cast":
            if self.conv.activation:
                return False
            self.conv.activation = name
        elif args["dtype"] not in CTYPES:
            return False
        self.metas[node] = self.metas[args["input"]]
        self.last = node
        return True


def _meta(spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device="meta")


def _one(value: Any) -> int | None:
    """An int, or a tuple of one, as an int."""
    if isinstance(value, tuple | list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _plan(target: Target) -> _Conv | None:
    devices = {spec.device for spec in (*target.inputs, *target.outputs)}
    if len(devices) != 1 or not target.device.startswith("cuda") or len(target.outputs) != 1:
        return None
    try:
        with torch.no_grad():
            conv = _Reader(target).read()
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
        return None
    if conv is None:
        return None
    out = target.outputs[0]
    wanted = (*conv.x.shape[:2], conv.length)
    used = [target.inputs[i] for i in conv.inputs if i is not None]
    types = {getattr(torch, spec.dtype) for spec in [*used, out]} <= CTYPES.keys()
    dense = out.stride == torch.empty(wanted, device="meta").stride() and out.shape == wanted
    rows = conv.x.stride(2) == 1 or conv.x.stride(1) == 1
    same = len({spec.dtype for spec in used[1:]}) == 1
    return (
        conv if types and dense and rows and same and 0 not in (*out.shape, *conv.x.shape) else None
    )


def _known(match: Match) -> _Conv:
    conv = _plan(match.target)
    assert conv is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return conv


def _widths(conv: _Conv, target: Target) -> list[int]:
    """Elements an access, best first: rows of the input, and where it is dense so of the answer."""
    best = 16 // conv.x.dtype.itemsize
    across = conv.x.stride(2 if conv.turned else 1)
    parts = [conv.x.stride(0), across, conv.x.storage_offset()]
    parts.append(conv.x.shape[1] if conv.turned else target.outputs[0].shape[2])
    found = [w for w in (best, best // 2, 2, 1) if all(part % w == 0 for part in parts)]
    return list(dict.fromkeys(found))[:3]
