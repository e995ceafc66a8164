"""Launch plans: strict reading and writing, the rules, and working out a launch's arguments.

A plan is data that came from outside. :func:`plan_from_document` refuses whatever is not in the
contract, :func:`validate` checks a plan against a target's variant, and :func:`resolve` gives the
concrete arguments, ready for a C call. Every refusal is a ``ContractBreach`` that names the place.

Rules of a ``cpp`` plan: one kernel; arguments are tensors and scratch first, then scalars, and
last of all ``"i32:nthreads"``; no grid, block or shared memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kforge_nb.candidates.candidate import Kernel, Language, LaunchPlan, Scratch
from kforge_nb.candidates.expressions import INT_LIMIT, RESERVED, Value, evaluate, names
from kforge_nb.candidates.extension import check_extension_plan
from kforge_nb.errors import ContractBreach

if TYPE_CHECKING:
    from kforge_nb.targets.target import TensorSpec

__all__ = [
    "DTYPE_BYTES",
    "Arg",
    "ResolvedCall",
    "ResolvedPlan",
    "ResolvedScratch",
    "plan_from_document",
    "plan_to_document",
    "resolve",
    "scratch_limit",
    "validate",
]

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Element size of each dtype that a plan may name."""

MAX_KERNELS = 16
MAX_ARGS = 48
MAX_SYMBOLS = 64
MAX_SCRATCH = 16
SCRATCH_FLOOR = 16 << 20
SCRATCH_CEILING = 4 << 30
SCRATCH_PER_BYTE = 4
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)
_SHARED_LIMIT = 232448
_LARGEST_F32 = (2 - 2**-23) * 2.0**127
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_TENSOR = re.compile(r"(?:in|out)(?:0|[1-9][0-9]*)", re.ASCII)
_SCALARS = ("i64", "i32", "f32", "f64")
_FORBIDDEN_ENTRIES = frozenset({"main", "malloc", "free", "memcpy", "memset", "abort", "exit"})

Arg = (
    tuple[Literal["input", "output"], int]
    | tuple[Literal["scratch"], str]
    | tuple[Literal["i64", "i32"], int]
    | tuple[Literal["f32", "f64"], float]
    | tuple[Literal["nthreads"]]
)


@dataclass(frozen=True, slots=True)
class ResolvedScratch:
    """A scratch buffer with its size worked out; unpacks as ``(dtype, shape, init)``."""

    dtype: str
    shape: tuple[int, ...]
    init: Literal["none", "zero"]

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def __iter__(self) -> Any:
        return iter((self.dtype, self.shape, self.init))


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """One launch with concrete arguments (and, for CUDA, grid, block and shared bytes)."""

    name: str
    args: list[Arg]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """All launches in order, the scratch buffers they share, and what the symbols stand for."""

    calls: list[ResolvedCall]
    scratch: dict[str, ResolvedScratch]
    symbols: dict[str, int | float] = field(default_factory=dict)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all scratch buffers."""
        return sum(buffer.bytes for buffer in self.scratch.values())


def plan_to_document(plan: LaunchPlan) -> dict[str, Any]:
    """Plain JSON; what has its default value is left out, so equal plans give equal text."""
    kernels = []
    for kernel in plan.kernels:
        entry: dict[str, Any] = {"name": kernel.name, "args": list(kernel.args)}
        if kernel.grid != ("1", "1", "1"):
            entry["grid"] = list(kernel.grid)
        if kernel.block != ("1", "1", "1"):
            entry["block"] = list(kernel.block)
        if kernel.shared != "0":
            entry["shared"] = kernel.shared
        kernels.append(entry)
    scratch = {
        name: {"dtype": s.dtype, "shape": list(s.shape), "init": s.init}
        for name, s in plan.scratch.items()
    }
    return {"kernels": kernels, "symbols": dict(plan.symbols), "scratch": scratch}


def plan_from_document(document: Any) -> LaunchPlan:
    """Read a plan; unknown fields, wrong types and sizes beyond the limits are ContractBreach."""
    top = _fields(document, "the plan", required={"kernels"}, optional={"symbols", "scratch"})
    kernels = _sequence(top["kernels"], "kernels", 1, MAX_KERNELS)
    symbols = _mapping(top.get("symbols", {}), "symbols", MAX_SYMBOLS)
    scratch = _mapping(top.get("scratch", {}), "scratch", MAX_SCRATCH)
    return LaunchPlan(
        kernels=tuple(_kernel(entry, f"kernels[{i}]") for i, entry in enumerate(kernels)),
        symbols={name: _text(text, f"symbols[{name!r}]") for name, text in symbols.items()},
        scratch={name: _scratch(entry, f"scratch[{name!r}]") for name, entry in scratch.items()},
    )


def _kernel(entry: Any, where: str) -> Kernel:
    optional = {"grid", "block", "shared"}
    data = _fields(entry, where, required={"name", "args"}, optional=optional)
    args = _sequence(data["args"], f"{where}.args", 1, MAX_ARGS)
    return Kernel(
        name=_text(data["name"], f"{where}.name"),
        args=tuple(_text(arg, f"{where}.args[{i}]") for i, arg in enumerate(args)),
        grid=_triple(data.get("grid", ["1", "1", "1"]), f"{where}.grid"),
        block=_triple(data.get("block", ["1", "1", "1"]), f"{where}.block"),
        shared=_text(data.get("shared", "0"), f"{where}.shared"),
    )


def _scratch(entry: Any, where: str) -> Scratch:
    data = _fields(entry, where, required={"dtype", "shape"}, optional={"init"})
    shape = _sequence(data["shape"], f"{where}.shape", 1, 8)
    init = data.get("init", "none")
    if init not in ("none", "zero"):
        raise ContractBreach(f"{where}.init must be 'none' or 'zero', not {init!r:.60}")
    return Scratch(
        dtype=_text(data["dtype"], f"{where}.dtype"),
        shape=tuple(_text(size, f"{where}.shape[{i}]") for i, size in enumerate(shape)),
        init=init,
    )


def _fields(data: Any, where: str, required: set[str], optional: set[str]) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ContractBreach(f"{where} must be an object, not {type(data).__name__}")
    unknown = sorted(str(key) for key in set(data) - required - optional)
    missing = sorted(required - set(data))
    if unknown:
        allowed = ", ".join(sorted(required | optional))
        raise ContractBreach(f"{where} has unknown field(s) {', '.join(unknown)[:200]}; {allowed}")
    if missing:
        raise ContractBreach(f"{where} lacks {', '.join(missing)}")
    return dict(data)


def _mapping(data: Any, where: str, limit: int) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ContractBreach(f"{where} must be an object, not {type(data).__name__}")
    if len(data) > limit:
        raise ContractBreach(f"{where} has {len(data)} entries; at most {limit} are allowed")
    return {_identifier(name, where): value for name, value in data.items()}


def _sequence(data: Any, where: str, least: int, most: int) -> list[Any]:
    if not isinstance(data, list | tuple) or not least <= len(data) <= most:
        raise ContractBreach(f"{where} must be a list of {least} to {most} entries")
    return list(data)


def _triple(data: Any, where: str) -> tuple[str, str, str]:
    x, y, z = (_text(entry, where) for entry in _sequence(data, where, 3, 3))
    return x, y, z


def _text(data: Any, where: str) -> str:
    if isinstance(data, int) and not isinstance(data, bool):
        if not -INT_LIMIT <= data < INT_LIMIT:
            raise ContractBreach(f"{where}: an integer does not fit into 64 bits")
        return str(data)  # a bare number is what most writers of JSON put for a constant
    if not isinstance(data, str):
        raise ContractBreach(f"{where} must be a string, not {type(data).__name__}")
    return data


def _identifier(name: Any, where: str) -> str:
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ContractBreach(f"{where}: {name!r:.80} is not a name (letters, digits, underscore)")
    return name


def scratch_limit(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    """How many bytes of scratch a plan may ask for: 16 MiB, or 4 times what it reads and writes."""
    touched = sum(math.prod(s.shape) * DTYPE_BYTES.get(s.dtype, 8) for s in [*inputs, *outputs])
    return min(SCRATCH_CEILING, max(SCRATCH_FLOOR, SCRATCH_PER_BYTE * touched))


def validate(
    plan: LaunchPlan,
    language: Language,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> None:
    """Check a plan against the contract and a target's variant; raises ContractBreach."""
    if language == "cuda_extension":
        check_extension_plan(plan, inputs, outputs)
    _check_names(plan, inputs, outputs)
    if language == "cpp":
        _check_cpp(plan)
    resolved = resolve(plan, inputs, outputs)
    limit = scratch_limit(inputs, outputs)
    if resolved.scratch_bytes > limit:
        raise ContractBreach(
            f"scratch takes {resolved.scratch_bytes} bytes; at most {limit} are allowed here"
        )
    given = {arg for call in resolved.calls for arg in call.args if arg[0] == "output"}
    missing = [f"out{i}" for i in range(len(outputs)) if ("output", i) not in given]
    if missing:
        raise ContractBreach(f"no kernel is given {', '.join(missing)}, so it would stay unwritten")
    if language != "cpp":
        for call in resolved.calls:
            _check_launch(call)


def _check_names(
    plan: LaunchPlan, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    if not 1 <= len(plan.kernels) <= MAX_KERNELS:
        raise ContractBreach(f"a plan has 1 to {MAX_KERNELS} kernels, not {len(plan.kernels)}")
    for kernel in plan.kernels:
        _identifier(kernel.name, "kernel name")
        if kernel.name in _FORBIDDEN_ENTRIES:
            raise ContractBreach(f"a kernel may not be called {kernel.name!r}")
        tensors = [arg for arg in kernel.args if ":" not in arg]
        twice = sorted({arg for arg in tensors if tensors.count(arg) > 1})
        if twice:
            raise ContractBreach(f"{kernel.name} is given {', '.join(twice)} more than once")
    for name in [*plan.symbols, *plan.scratch]:
        _identifier(name, "symbols and scratch")
        if name in RESERVED or _TENSOR.fullmatch(name):
            raise ContractBreach(f"{name!r} is reserved; call the symbol or scratch buffer another")
    both = sorted(set(plan.symbols) & set(plan.scratch))
    if both:
        raise ContractBreach(f"{', '.join(both)} names both a symbol and a scratch buffer")
    for spec in [*inputs, *outputs]:
        if spec.dtype not in DTYPE_BYTES:
            raise ContractBreach(f"tensors of dtype {spec.dtype} cannot be passed to a kernel")


def _check_cpp(plan: LaunchPlan) -> None:
    if len(plan.kernels) != 1:
        raise ContractBreach(f"a cpp plan has exactly one kernel, not {len(plan.kernels)}")
    kernel = plan.kernels[0]
    if (kernel.grid, kernel.block, kernel.shared) != (("1", "1", "1"), ("1", "1", "1"), "0"):
        raise ContractBreach("a cpp plan has no grid, block or shared memory")
    if kernel.args[-1:] != ("i32:nthreads",) or kernel.args.count("i32:nthreads") != 1:
        raise ContractBreach("the last argument of a cpp kernel, and only it, is 'i32:nthreads'")
    scalars = [":" in arg for arg in kernel.args]
    if scalars != sorted(scalars):
        raise ContractBreach("a cpp kernel takes tensors and scratch first, scalars after them")


def _check_launch(call: ResolvedCall) -> None:
    for what, sizes, limits in (
        ("grid", call.grid, _GRID_LIMITS),
        ("block", call.block, _BLOCK_LIMITS),
    ):
        if any(not 1 <= size <= limit for size, limit in zip(sizes, limits, strict=True)):
            raise ContractBreach(f"{call.name}: {what} {sizes} is outside 1 to {limits}")
    if math.prod(call.block) > 1024:
        raise ContractBreach(f"{call.name}: block {call.block} has more than 1024 threads")
    if not 0 <= call.shared <= _SHARED_LIMIT:
        raise ContractBreach(f"{call.name}: shared {call.shared} is outside 0 to {_SHARED_LIMIT}")


def resolve(
    plan: LaunchPlan, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> ResolvedPlan:
    """Work out every symbol, scratch size and argument; raises ContractBreach.

    Args:
        plan: the plan.
        inputs: specs of ``in0 …`` (anything with ``shape`` and ``stride`` tuples).
        outputs: specs of ``out0 …``.
    """
    env: dict[str, Value] = {f"in{i}": spec for i, spec in enumerate(inputs)}
    env |= {f"out{i}": spec for i, spec in enumerate(outputs)}
    symbols = _bind_symbols(plan.symbols, env)
    scratch = {name: _resolve_scratch(name, s, env) for name, s in plan.scratch.items()}
    calls = []
    for kernel in plan.kernels:
        gx, gy, gz = (_integer(text, env, f"{kernel.name}.grid") for text in kernel.grid)
        bx, by, bz = (_integer(text, env, f"{kernel.name}.block") for text in kernel.block)
        args = [_argument(arg, env, scratch, kernel.name) for arg in kernel.args]
        shared = _integer(kernel.shared, env, f"{kernel.name}.shared")
        calls.append(ResolvedCall(kernel.name, args, (gx, gy, gz), (bx, by, bz), shared))
    return ResolvedPlan(calls, scratch, symbols)


def _bind_symbols(symbols: Mapping[str, str], env: dict[str, Value]) -> dict[str, int | float]:
    """Add the symbols to ``env`` in order of dependency; their values."""
    if len(symbols) > MAX_SYMBOLS:
        raise ContractBreach(f"{len(symbols)} symbols; at most {MAX_SYMBOLS} are allowed")
    values: dict[str, int | float] = {}
    waiting = {name: names(text) & symbols.keys() for name, text in symbols.items()}
    while waiting:
        ready = [name for name, needs in waiting.items() if not needs & waiting.keys()]
        if not ready:
            raise ContractBreach(f"symbols depend on each other in a ring: {sorted(waiting)}")
        for name in ready:
            env[name] = values[name] = evaluate(symbols[name], env)
            del waiting[name]
    return {name: values[name] for name in symbols}


def _resolve_scratch(name: str, scratch: Scratch, env: Mapping[str, Value]) -> ResolvedScratch:
    if scratch.dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise ContractBreach(f"scratch {name!r}: no dtype {scratch.dtype!r:.40}; known are {known}")
    shape = tuple(_integer(text, env, f"scratch {name!r}") for text in scratch.shape)
    if any(size < 0 for size in shape):
        raise ContractBreach(f"scratch {name!r} has a negative size: {shape}")
    return ResolvedScratch(scratch.dtype, shape, scratch.init)


def _integer(text: str, env: Mapping[str, Value], where: str) -> int:
    value = evaluate(text, env)
    if not isinstance(value, int):
        raise ContractBreach(f"{where}: {text!r} gives {value}, but must be an integer")
    return value


def _argument(
    arg: str, env: Mapping[str, Value], scratch: Mapping[str, ResolvedScratch], kernel: str
) -> Arg:
    kind, colon, text = arg.partition(":")
    if not colon:
        return _tensor_argument(arg, env, scratch, kernel)
    if arg == "i32:nthreads":
        return ("nthreads",)
    if kind == "i64":
        return ("i64", _integer(text, env, f"{kernel}: {arg}"))
    if kind == "i32":
        value = _integer(text, env, f"{kernel}: {arg}")
        if not -(2**31) <= value < 2**31:
            raise ContractBreach(f"{kernel}: {arg} gives {value}, which does not fit 32 bits")
        return ("i32", value)
    if kind == "f32":
        number = float(evaluate(text, env))
        if abs(number) > _LARGEST_F32:
            raise ContractBreach(f"{kernel}: {arg} gives {number}, which does not fit 32 bits")
        return ("f32", number)
    if kind == "f64":
        return ("f64", float(evaluate(text, env)))
    raise ContractBreach(f"{kernel}: {arg!r:.80} has no known type; use {', '.join(_SCALARS)}")


def _tensor_argument(
    arg: str, env: Mapping[str, Value], scratch: Mapping[str, ResolvedScratch], kernel: str
) -> Arg:
    if arg in scratch:
        return ("scratch", arg)
    if _TENSOR.fullmatch(arg) and arg in env:
        if arg.startswith("out"):
            return ("output", int(arg[3:]))
        return ("input", int(arg[2:]))
    raise ContractBreach(
        f"{kernel}: there is no input, output or scratch buffer {arg!r:.80} "
        "(a scalar needs its type, as in 'i64:C')"
    )
