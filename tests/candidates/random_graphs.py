"""Random element-wise and row-reduction graphs with random shapes, strides, dtypes and values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

__all__ = ["Program", "programs"]

SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 64, 100)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
UNARY = (
    "exp", "tanh", "sigmoid", "relu", "neg", "abs", "square", "sqrt", "rsqrt", "log", "gelu",
    "gelu_tanh", "silu", "erf", "softplus", "elu", "leaky", "clamp", "cast_bf16", "cast_f32",
    "scale", "hardswish", "mish", "log1p", "expm1", "where_positive", "isnan_zero",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "where", "masked_add", "lerp")
REDUCE = (
    "mean", "sum", "amax", "amin", "var", "layer_norm", "rms", "softmax", "log_softmax", "centre",
    "norm", "logsumexp",
)  # fmt: skip
VIEWS = ("rotate_half", "interleave", "flip", "pad", "chunk_mul", "gate_halves", "shift")


@dataclass
class Program:
    """A straight-line program over inputs; callable on tensors or fx proxies."""

    shape: tuple[int, ...]
    axes: int
    steps: list[tuple[str, int, int]] = field(default_factory=list)
    finish: str = "none"
    extra: int = -1
    inputs: list[torch.Tensor] = field(default_factory=list)
    mask: torch.Tensor | None = None
    __name__ = "program"

    def tensors(self) -> list[torch.Tensor]:
        """What the program is called with."""
        return [*self.inputs, *([self.mask] if self.mask is not None else [])]

    def __call__(self, *tensors: Any) -> Any:
        values = list(tensors[: len(self.inputs)])
        mask = tensors[-1] if self.mask is not None else None
        for name, left, right in self.steps:
            a, b = values[left % len(values)], values[right % len(values)]
            values.append(self._apply(name, a, b, mask))
        result = self._finished((values[-1] + values[0]).expand(self.shape))
        if self.extra >= 0:
            return result, values[len(self.inputs) + self.extra % len(self.steps)] * 1.5
        return result

    def _apply(self, name: str, a: Any, b: Any, mask: Any) -> Any:
        if name in UNARY:
            return _unary(name, a)
        if name in BINARY:
            return _binary(name, a, b, mask)
        full = a.expand(self.shape)
        if name in REDUCE:
            return _reduce(name, full, self.axes, self.shape)
        return _view(name, full, self.shape[-1])

    def _finished(self, value: Any) -> Any:
        if self.finish == "transpose" and len(self.shape) > 1:
            return value.transpose(-1, -2)
        if self.finish == "contiguous" and len(self.shape) > 1:
            return value.transpose(0, -1).contiguous()
        if self.finish == "flatten":
            return value.flatten(0)
        if self.finish == "bf16":
            return value.to(torch.bfloat16)
        return value


def _unary(name: str, a: Any) -> Any:
    table = {
        "exp": lambda: (a * 0.5).exp(),
        "square": lambda: a.pow(2),
        "sqrt": lambda: (a.abs() + 0.01).sqrt(),
        "rsqrt": lambda: torch.rsqrt(a * a + 0.1),
        "log": lambda: torch.log(a.abs() + 0.1),
        "gelu": lambda: F.gelu(a),
        "gelu_tanh": lambda: F.gelu(a, approximate="tanh"),
        "silu": lambda: F.silu(a),
        "softplus": lambda: F.softplus(a),
        "elu": lambda: F.elu(a),
        "leaky": lambda: F.leaky_relu(a, 0.2),
        "clamp": lambda: a.clamp(-1.5, 2),
        "cast_bf16": lambda: a.to(torch.bfloat16),
        "cast_f32": lambda: a.float(),
        "scale": lambda: a * 0.3 - 1,
        "hardswish": lambda: F.hardswish(a),
        "mish": lambda: F.mish(a),
        "log1p": lambda: torch.log1p(a.abs()),
        "expm1": lambda: torch.expm1(a * 0.3),
        "where_positive": lambda: torch.where(a > 0, a, 0.25),
        "isnan_zero": lambda: a.masked_fill(torch.isnan(a), 0.0),
        "relu": lambda: a.relu(),
        "neg": lambda: -a,
        "abs": lambda: a.abs(),
    }
    return table[name]() if name in table else getattr(torch, name)(a)


def _binary(name: str, a: Any, b: Any, mask: Any) -> Any:
    if name in ("where", "masked_add") and mask is None:
        return a + b
    table = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "div": lambda: a / (b.abs() + 0.5),
        "maximum": lambda: torch.maximum(a, b),
        "minimum": lambda: torch.minimum(a, b),
        "where": lambda: torch.where(mask, a, b),
        "masked_add": lambda: a + b.masked_fill(mask, 0.5),
        "lerp": lambda: a + 0.25 * (b - a),
    }
    return table[name]()


def _reduce(name: str, a: Any, axes: int, shape: tuple[int, ...]) -> Any:
    dims = tuple(range(-axes, 0))
    table = {
        "mean": lambda: a.mean(dims, keepdim=True),
        "sum": lambda: a.sum(dims, keepdim=True) * 0.1,
        "amax": lambda: a.amax(dims, keepdim=True),
        "amin": lambda: a.amin(dims, keepdim=True),
        "var": lambda: a.var(dims, keepdim=True, correction=0),
        "layer_norm": lambda: F.layer_norm(a, shape[-axes:], eps=1e-3),
        "rms": lambda: a * torch.rsqrt(a.pow(2).mean(dims, keepdim=True) + 1e-3),
        "softmax": lambda: F.softmax(a, -1) if axes == 1 else a.exp().mean(dims, keepdim=True),
        "log_softmax": lambda: (
            F.log_softmax(a, -1) if axes == 1 else a - a.mean(dims, keepdim=True)
        ),
        "centre": lambda: a - a.mean(dims, keepdim=True),
        "norm": lambda: a / (torch.linalg.vector_norm(a, dim=dims, keepdim=True) + 1),
        "logsumexp": lambda: torch.logsumexp(a, dims, keepdim=True),
    }
    return table[name]()


def _view(name: str, a: Any, size: int) -> Any:
    half = size // 2
    if name in ("rotate_half", "interleave", "chunk_mul", "gate_halves") and size % 2:
        return -a
    table = {
        "rotate_half": lambda: torch.cat((-a[..., half:], a[..., :half]), dim=-1),
        "interleave": lambda: torch.stack((-a[..., 1::2], a[..., ::2]), dim=-1).flatten(-2),
        "flip": lambda: a.flip(-1),
        "pad": lambda: F.pad(a[..., 1:], (0, 1), value=0.5),
        "chunk_mul": lambda: torch.cat([p * 2 for p in (a[..., :half], a[..., half:])], dim=-1),
        "gate_halves": lambda: torch.cat((a[..., :half] * torch.sigmoid(a[..., half:]),) * 2, -1),
        "shift": lambda: torch.cat((a[..., -1:], a[..., :-1]), dim=-1),
    }
    return table[name]()


@st.composite
def programs(draw: st.DrawFn, *, special: bool = False) -> Program:
    """A program with inputs; ``special`` puts NaN and infinities into float32 inputs."""
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4)))
    while torch.Size(shape).numel() > 60_000:
        shape = shape[1:]
    axes = draw(st.integers(1, len(shape)))
    program = Program(shape, axes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    for _ in range(draw(st.integers(1, 3))):
        program.inputs.append(_input(draw, shape, generator, special))
    if draw(st.booleans()):
        program.mask = torch.rand(shape[-1:], generator=generator) > 0.5
    kinds = st.sampled_from([*UNARY, *BINARY, *REDUCE, *REDUCE, *VIEWS])
    places = st.integers(0, 9)
    program.steps = draw(st.lists(st.tuples(kinds, places, places), min_size=1, max_size=7))
    finishes = ["none", "none", "transpose", "contiguous", "flatten"]
    program.finish = draw(st.sampled_from(finishes + ([] if special else ["bf16"])))
    program.extra = draw(st.sampled_from([-1, -1, 0, 1, 2]))
    return program


def _input(
    draw: st.DrawFn, shape: tuple[int, ...], generator: torch.Generator, special: bool
) -> torch.Tensor:
    """A tensor that broadcasts to ``shape``, in one of several layouts."""
    layout = draw(
        st.sampled_from(["dense", "dense", "permuted", "sliced", "row", "column", "expanded"])
    )
    dtype = torch.float32 if special else draw(st.sampled_from(DTYPES))

    def values(*sizes: int) -> torch.Tensor:
        made = torch.randn(sizes, generator=generator)
        if special:
            place = torch.rand(sizes, generator=generator)
            made[place < 0.02] = torch.nan
            made[(place > 0.02) & (place < 0.04)] = torch.inf
            made[(place > 0.04) & (place < 0.06)] = -torch.inf
        return made.to(dtype)

    if layout == "permuted" and len(shape) > 1:
        return values(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "sliced":
        return values(*shape[:-1], 2 * shape[-1] + 1)[..., 1::2]
    if layout == "row":
        return values(*shape[-1:])
    if layout == "column":
        return values(*shape[:-1], 1)
    if layout == "expanded" and len(shape) > 1:
        return values(1, *shape[1:]).expand(shape)
    return values(*shape)
