"""Softmax, log-softmax, layer norm and RMS norm over trailing axes, with what surrounds them.

The core (the reduction and what it scales) is one of the kernel texts; everything element-wise
before it (scale, mask, residual add, casts) and after it (weights, modulation, casts) is written
into the same pass. RMS norm is recognised as ``F.rms_norm`` and as models compose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.recipes.families import render
from kforge_nb.candidates.recipes.families.program import Leaf, Op, Program, Value, read_program
from kforge_nb.candidates.recipes.families.rowcode import RowCode, Store, is_pointwise, literal
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["LONGEST", "Core", "RowNorm", "families", "plan_rows"]

LONGEST = 65536
"""Longest row, in elements: on a CPU its buffer (4 bytes each) lives on a thread's stack."""

STAGED = 2048
"""Longest row of which three fit the first cache beside what else is read."""


@dataclass(frozen=True, slots=True)
class Core:
    """The reduction found in a program: which kernel, over how many trailing axes."""

    op: Op
    kind: str
    axes: int
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class RowNorm:
    """One family of row kernels; ``name`` is softmax, log_softmax, layer_norm or rms_norm."""

    name: str

    def match(self, target: Target) -> Match | None:
        """The match where the graph is this core and element-wise operators around it."""
        found = plan_rows(target, self.name)
        if found is None:
            return None
        code, core = found
        facts = {"rows": code.domain.rows, "length": code.domain.length, "eps": core.eps}
        return Match(self.name, target, {}, facts)

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Instruction set, unrolling, stores, rows to prefetch ahead and whether to keep rows."""
        found = plan_rows(match.target, self.name)
        assert found is not None  # noqa: S101  (a match exists, and matching is deterministic)
        code, _ = found
        size = sum(prod(o.shape) * (4 if o.dtype == "float32" else 2) for o in match.target.outputs)
        overlap: list[Any] = [True, False]
        if self.name == "layer_norm" and code.domain.length <= STAGED:
            overlap = [2, True, False]  # three rows in one loop
        own: dict[str, list[Any]] = {"overlap": overlap, "ahead": [1, 0, 2]}
        if self.name in ("layer_norm", "rms_norm"):
            own["keep"] = [True] if len(match.target.outputs) > 1 else [True, False]
        return render.common_parameters(size, code.streamable(), own)

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        found = plan_rows(match.target, self.name)
        assert found is not None  # noqa: S101
        code, core = found
        constants: dict[str, tuple[str, Any]] = {
            "ROWS": ("int64_t", code.domain.rows),
            "TASKS": ("int64_t", code.domain.rows),
            "C": ("int64_t", code.domain.length),
            "U": ("int", params["unroll"]),
            "AHEAD": ("int64_t", params["ahead"]),
            "OVERLAP": ("int", int(params["overlap"])),
        }
        if self.name in ("softmax", "log_softmax"):
            constants["LOG"] = ("bool", self.name == "log_softmax")
            kernel = "softmax.h"
        else:
            constants["CENTRE"] = ("bool", self.name == "layer_norm")
            constants["KEEP"] = ("bool", params["keep"])
            constants["EPS"] = ("float", literal(core.eps))
            kernel = "norm.h"
        texts = [
            code.structs(),
            code.function("KF_INLINE vf before(const Row& p, int64_t i, L n)", "before", "x"),
            code.function("KF_INLINE void after(const Row& p, int64_t i, vf y, L n)", "after"),
            render.kernel_text(kernel),
        ]
        name = f"kf_{self.name}"
        tail = render.row_entry(name, code, params["stores"] == "stream")
        text = render.source(params["isa"], constants, texts, tail)
        return render.candidate(match, params, name, text, [n for _, n in code.arguments()])


def families() -> list[RowNorm]:
    """The four families of this module."""
    return [RowNorm(n) for n in ("softmax", "log_softmax", "layer_norm", "rms_norm")]


def plan_rows(
    target: Target, family: str, device: str = "cpu", longest: int = LONGEST
) -> tuple[RowCode, Core] | None:
    """Row code with every phase written, or None where the target is not of this family.

    A row may have ``longest`` elements at most.
    """
    program = read_program(target, device)
    if program is None or len(program.ops) > 60:
        return None
    core = _FINDERS[family](program)
    if core is None:
        return None
    source = core.op.args["input"]
    shape = source.shape
    if not 1 <= core.axes <= len(shape) or prod(shape[-core.axes :]) > longest or 0 in shape:
        return None
    if any(spec.shape != shape for spec in target.outputs):
        return None
    stores = [Store(i, v) for i, v in enumerate(program.outputs)]
    code = RowCode.over(target, stores, shape, core.axes, core.op)
    if code is None or code.domain.length < 2:
        return None
    x = code.value(source, "before")
    code.lines.setdefault("before", []).append(f"const vf x = {x};")
    return (code, core) if code.write_stores() and code.ok else None


def _last_axes(dim: Any, rank: int) -> int | None:
    """Number of trailing axes that ``dim`` names, or None where it names others."""
    dims = dim if isinstance(dim, tuple) else (dim,)
    if not dims or not all(isinstance(d, int) and not isinstance(d, bool) for d in dims):
        return None
    axes = sorted(d % rank for d in dims)
    return len(axes) if axes == list(range(rank - len(axes), rank)) else None


def _cast(value: Value, dtype: torch.dtype) -> Op:
    return Op("cast", {"input": value, "dtype": dtype}, value_like(value, dtype))


def value_like(value: Value, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A meta tensor shaped as ``value``."""
    return torch.empty(value.shape, dtype=dtype or value.dtype, device="meta")


def _softmax(name: str) -> Any:
    def find(program: Program) -> Core | None:
        op = program.only(name)
        if op is None:
            return None
        source, dtype = op.args["input"], op.args["dtype"]
        if not isinstance(source, Leaf | Op) or not source.shape:
            return None
        axes = _last_axes(op.args["dim"], len(source.shape))
        if axes != 1 or (dtype is not None and op.dtype != dtype):
            return None
        return _with_result_dtype(program, op, Core(op, name, 1))

    return find


def _with_result_dtype(program: Program, op: Op, core: Core) -> Core:
    """Let readers of a 16-bit core see its rounded result, as eager's readers do."""
    if op.dtype is torch.float16:
        program.replace(op, _cast(op, torch.float16))
    return core


def _affine(program: Program, op: Op, eps: float, axes: int, kind: str) -> Core:
    """Take weight and bias out of a norm, as element-wise operators behind the bare core."""
    bare = Op("core", {"input": op.args["input"]}, value_like(op.args["input"]))
    result: Value = bare
    for name, other in (("mul", op.args["weight"]), ("add", op.args.get("bias"))):
        if other is not None:
            args = {"input": result, "other": other}
            result = Op(name, args, value_like(bare, torch.float32))
    if result is bare or op.dtype is torch.float16:
        result = _cast(result, op.dtype)
    program.replace(op, result)
    return Core(bare, kind, axes, eps)


def _layer_norm(program: Program) -> Core | None:
    op = program.only("layer_norm")
    if op is None or not isinstance(op.args["input"], Leaf | Op):
        return None
    if not isinstance(op.args["eps"], int | float):
        return None
    return _affine(program, op, float(op.args["eps"]), len(_shape(op)), "layer_norm")


def _shape(op: Op) -> tuple[int, ...]:
    shape = op.args["normalized_shape"]
    return tuple(shape) if isinstance(shape, tuple | list | torch.Size) else (shape,)


def _rms_norm(program: Program) -> Core | None:
    op = program.only("rms_norm")
    if op is None:
        return _composed_rms(program)
    source = op.args["input"]
    if not isinstance(source, Leaf | Op):
        return None
    eps = op.args["eps"]
    if not isinstance(eps, int | float | None):
        return None
    # Without an epsilon torch takes that of the type it computes in.
    eps = torch.finfo(torch.float32).eps if eps is None else float(eps)
    return _affine(program, op, eps, len(_shape(op)), "rms_norm")


def _composed_rms(program: Program) -> Core | None:
    """``x * rsqrt(mean(x^2, -1, keepdim) + eps)`` in its usual spellings, in float32."""
    mean = program.only("mean")
    if mean is None or mean.args["keepdim"] is not True or mean.args["dtype"] is not None:
        return None
    square = mean.args["input"]
    if not isinstance(square, Op) or square.dtype is not torch.float32:
        return None
    x = _squared(square)
    axes = _last_axes(mean.args["dim"], len(square.shape))
    if x is None or axes is None or program.uses.get(square) != 1:
        return None
    root, eps = _rsqrt_of(program, mean)
    if root is None or x.dtype is not torch.float32 or eps is None or eps < 0:
        return None
    scaled = [o for o in program.ops if o.name == "mul" and root in o.args.values()]
    if len(scaled) != 1 or program.uses.get(root) != 1:
        return None
    product = scaled[0]
    other = product.args["other"] if product.args["input"] is root else product.args["input"]
    if other is not x:
        return None
    bare = Op("core", {"input": x}, value_like(x))
    program.replace(product, bare)
    return Core(bare, "rms_norm", axes, eps)


def _squared(op: Op) -> Value | None:
    if (
        op.name == "square"
        or (op.name == "pow" and op.args["exponent"] == 2)
        or (op.name == "mul" and op.args["input"] is op.args["other"])
    ):
        value = op.args["input"]
    else:
        return None
    return value if isinstance(value, Leaf | Op) else None


def _rsqrt_of(program: Program, mean: Op) -> tuple[Op | None, float | None]:
    """``rsqrt(mean + eps)`` or ``(mean + eps) ** -0.5`` and its epsilon."""
    adds = [o for o in program.ops if o.name == "add" and mean in o.args.values()]
    if len(adds) != 1 or program.uses.get(mean) != 1 or program.uses.get(adds[0]) != 1:
        return None, None
    add = adds[0]
    eps = add.args["other"] if add.args["input"] is mean else add.args["input"]
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not is_pointwise(add):
        return None, None
    for op in program.ops:
        if op.args.get("input") is add and (
            op.name == "rsqrt" or (op.name == "pow" and op.args["exponent"] == -0.5)
        ):
            return op, float(eps)
    return None, None


_FINDERS: dict[str, Any] = {
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
