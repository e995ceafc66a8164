"""Small tools that tests of several rooms share: a target from a function, a C++ call."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import resolve, validate
from kforge_nb.compilers import cpp
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.target import Occurrence, Target, TensorSpec

__all__ = ["float64_of", "make_target", "run_cpp", "trace"]


def trace(fn: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    """Trace ``fn`` to a graph with placeholders ``in0 …`` that returns a tuple of tensors."""
    names = [f"in{i}" for i in range(len(inputs))]
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    proxies = [fx.Proxy(graph.placeholder(name), tracer) for name in names]
    result = fn(*proxies)
    values = result if isinstance(result, tuple | list) else (result,)
    graph.output(tuple(value.node for value in values))
    graph.eliminate_dead_code()
    graph.lint()
    return fx.GraphModule(torch.nn.Module(), graph)


def make_target(
    fn: Callable[..., Any],
    *inputs: torch.Tensor,
    family: str = "other",
    name: str | None = None,
    calls: int = 1,
) -> Target:
    """A target that computes ``fn`` on tensors like ``inputs`` (strides and dtypes are kept).

    ``fn`` is called with ``fx`` proxies, so it must be straight-line code.
    """
    gm = trace(fn, *inputs)
    outputs = gm(*inputs)
    specs = tuple(TensorSpec.of(t) for t in inputs)
    body = "\n".join([gm.code, repr(specs)])
    title = name or getattr(fn, "__name__", "target")
    captured = CapturedInputs()
    captured.add(list(inputs))
    captured.finish()
    return Target(
        fingerprint=hashlib.sha256(body.encode()).hexdigest(),
        name=title.strip("<>"),
        family=family,
        granularity="region",
        graph=gm,
        inputs=specs,
        outputs=tuple(TensorSpec.of(t) for t in outputs),
        occurrences=[Occurrence(0, "", tuple(n.name for n in gm.graph.nodes), calls)],
        captured=captured,
    )


def float64_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``fn`` on float64 copies of the floating inputs: the exact result to compare with."""
    result = fn(*(t.double() if t.is_floating_point() else t for t in inputs))
    return result if isinstance(result, tuple) else (result,)


def run_cpp(
    candidate: Candidate,
    target: Target,
    inputs: Sequence[torch.Tensor],
    cache: Path,
    threads: int = 2,
) -> list[torch.Tensor]:
    """Compile a C++ candidate and run it here, on poisoned outputs between guard zones.

    Only for sources that the tests themselves (or our recipes) wrote: it loads them into this
    process. Fails if the source does not compile or a guard zone was written to.
    """
    validate(candidate.plan, "cpp", target.inputs, target.outputs)
    call = resolve(candidate.plan, target.inputs, target.outputs).calls[0]
    built = cpp.build(candidate.source, call.name, cache=cache)
    assert isinstance(built, cpp.Built), f"{built.distilled}\n{candidate.source}"
    buffers = [_Guarded(spec) for spec in target.outputs]
    tensors = {"input": list(inputs), "output": [buffer.tensor for buffer in buffers]}
    args = [_c_argument(arg, tensors, threads) for arg in call.args]
    function = getattr(ctypes.CDLL(str(built.library)), call.name)
    function.restype = None
    function(*args)
    for number, buffer in enumerate(buffers):
        assert buffer.intact(), f"out{number} was written outside of its bounds"
    return [buffer.tensor for buffer in buffers]


def _c_argument(arg: tuple[Any, ...], tensors: dict[str, list[torch.Tensor]], threads: int) -> Any:
    if arg[0] in tensors:
        return ctypes.c_void_p(tensors[arg[0]][arg[1]].data_ptr())
    kinds = {"i64": ctypes.c_int64, "i32": ctypes.c_int32, "f32": ctypes.c_float,
             "f64": ctypes.c_double}  # fmt: skip
    return ctypes.c_int32(threads) if arg[0] == "nthreads" else kinds[arg[0]](arg[1])


class _Guarded:
    """An output of a spec, 64-byte aligned, poisoned, with 256 bytes of guard on both sides."""

    PAD = 256
    POISON = 0xA5

    def __init__(self, spec: TensorSpec) -> None:
        dtype = getattr(torch, spec.dtype)
        extent = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))
        size = extent * dtype.itemsize
        raw = torch.full((size + 2 * self.PAD + 64,), self.POISON, dtype=torch.uint8)
        shift = -raw.data_ptr() % 64
        self.before = raw[: shift + self.PAD]
        self.after = raw[shift + self.PAD + size :]
        flat = raw[shift + self.PAD : shift + self.PAD + size].view(dtype)
        self.tensor = flat.as_strided(spec.shape, spec.stride)

    def intact(self) -> bool:
        """Whether both guards still hold the poison."""
        return all(bool((part == self.POISON).all()) for part in (self.before, self.after))
