"""What the launch table is told of a kernel: tensors, scratch and arguments as flat numbers.

``kforge_add`` in ``launch.cpp`` reads them in the same order; the two change together.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import ContractBreach

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence

    from kforge_nb.candidates.plan import Arg, ResolvedPlan
    from kforge_nb.targets.target import TensorSpec

__all__ = ["ALIGNMENT", "encode"]

ALIGNMENT = 64
"""Bytes: candidates may load whole vectors from the start of an input."""
_KIND = {"input": 0, "output": 1, "scratch": 2, "nthreads": 5}


def encode(
    module: ctypes.CDLL,
    plan: ResolvedPlan,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> list[int]:
    """The flat numbers that ``kforge_add`` reads: inputs, outputs, scratch, arguments."""
    words = [len(inputs)]
    for spec in inputs:
        words += _spec(module, spec.dtype, spec.device, spec.shape, spec.stride)
    words.append(len(outputs))
    for spec in outputs:
        words += _spec(module, spec.dtype, spec.device, spec.shape, spec.stride)
    words.append(len(plan.scratch))
    device = (outputs or inputs)[0].device
    for buffer in plan.scratch.values():
        words.append(int(buffer.init == "zero"))
        words += _spec(module, buffer.dtype, device, buffer.shape, _contiguous(buffer.shape))
    args = plan.calls[0].args
    words.append(len(args))
    names = list(plan.scratch)
    for arg in args:
        words += _argument(arg, names)
    return words


def _spec(
    module: ctypes.CDLL, dtype: str, device: str, shape: Sequence[int], stride: Sequence[int]
) -> list[int]:
    code = module.kforge_dtype(dtype.encode())
    kind, _, index = device.partition(":")
    device_code = module.kforge_device(kind.encode())
    if code < 0 or device_code < 0:
        raise ContractBreach(f"kernels cannot take tensors of dtype {dtype} on {device}")
    where = int(index or (0 if kind == "cuda" else -1))
    return [code, device_code, where, ALIGNMENT, len(shape), *shape, *stride]


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def _argument(arg: Arg, scratch: list[str]) -> tuple[int, int]:
    kind, *rest = arg
    value: Any = rest[0] if rest else 0
    if kind == "scratch":
        return 2, scratch.index(str(value))
    if kind in ("i64", "i32"):
        return 3, int(value)
    if kind in ("f32", "f64"):
        return 4, struct.unpack("<q", struct.pack("<d", float(value)))[0]
    return _KIND[str(kind)], int(value)
