"""What the launch table is told of a kernel: tensors, scratch and arguments as flat numbers.

``read_layout`` in ``launch_table.h`` reads them in the same order; the two change together.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

from kforge_nb.compilers.cupy_raw import word
from kforge_nb.errors import ContractBreach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.candidates.plan import Arg, ResolvedCall, ResolvedPlan
    from kforge_nb.targets.target import TensorSpec

__all__ = ["ALIGNMENT", "CUDA_ALIGNMENT", "ScratchLayout", "encode"]

ALIGNMENT = 64
"""Bytes: C++ candidates may load whole vectors from the start of an input."""
CUDA_ALIGNMENT = 16
"""Bytes: the widest access of CUDA candidates."""
_STEP = 256
_INPUT, _OUTPUT, _SCRATCH, _INTEGER, _FLOATING, _THREADS, _WORD = range(7)


class ScratchLayout:
    """Where each scratch buffer stands in the one buffer that a call allocates.

    Those to be zeroed come first, so that one memset does. ``offsets`` by name, ``zeroed`` and
    ``bytes`` in bytes; every buffer starts at a multiple of 256.
    """

    def __init__(self, plan: ResolvedPlan) -> None:
        self.offsets: dict[str, int] = {}
        self.bytes = self.zeroed = 0
        for name, buffer in sorted(plan.scratch.items(), key=lambda item: item[1].init != "zero"):
            self.offsets[name] = self.bytes
            self.bytes += -(-buffer.bytes // _STEP) * _STEP
            if buffer.init == "zero":
                self.zeroed = self.bytes


def encode(
    module: ctypes.CDLL,
    plan: ResolvedPlan,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    cuda: bool,
) -> ctypes.Array[ctypes.c_int64]:
    """The flat numbers: inputs, outputs, scratch, launches with their arguments.

    Raises:
        ContractBreach: a tensor's dtype or device is none that kernels can take.
    """
    alignment = CUDA_ALIGNMENT if cuda else ALIGNMENT
    words = [len(inputs)]
    for spec in inputs:
        words += _spec(module, spec.dtype, spec.device, spec.shape, spec.stride, alignment)
    words.append(len(outputs))
    for spec in outputs:
        words += _spec(module, spec.dtype, spec.device, spec.shape, spec.stride, alignment)
    layout = ScratchLayout(plan)
    device = (outputs or inputs)[0].device
    words.append(layout.zeroed)
    words += _spec(module, "uint8", device, [layout.bytes], [1], 1)
    words.append(len(plan.calls))
    for call in plan.calls:
        words += _call(call, layout, cuda)
    return (ctypes.c_int64 * len(words))(*words)


def _spec(
    module: ctypes.CDLL,
    dtype: str,
    device: str,
    shape: Sequence[int],
    stride: Sequence[int],
    alignment: int,
) -> list[int]:
    code = module.kforge_dtype(dtype.encode())
    kind, _, index = device.partition(":")
    device_code = module.kforge_device(kind.encode())
    if code < 0 or device_code < 0:
        raise ContractBreach(f"kernels cannot take tensors of dtype {dtype} on {device}")
    where = int(index or (0 if kind == "cuda" else -1))
    return [code, device_code, where, alignment, len(shape), *shape, *stride]


def _call(call: ResolvedCall, layout: ScratchLayout, cuda: bool) -> list[int]:
    words = [*call.grid, *call.block, call.shared, len(call.args)]
    for arg in call.args:
        words += _argument(arg, layout, cuda)
    return words


def _argument(arg: Arg, layout: ScratchLayout, cuda: bool) -> tuple[int, int]:
    kind, *rest = arg
    value: Any = rest[0] if rest else 0
    if kind == "input":
        return _INPUT, int(value)
    if kind == "output":
        return _OUTPUT, int(value)
    if kind == "scratch":
        return _SCRATCH, layout.offsets[str(value)]
    if cuda:
        return _WORD, word(arg)
    if kind == "nthreads":
        return _THREADS, 0
    if kind in ("i64", "i32"):
        return _INTEGER, int(value)
    return _FLOATING, struct.unpack("<q", struct.pack("<d", float(value)))[0]
