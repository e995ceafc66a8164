"""The launch table as Python sees it, and its usual form: the compiled launch op.

Two things keep the table and do the work of a call: ``launch.cpp``, reached through ctypes here,
and :mod:`kforge_nb.guard.cupy_op`, in Python, for machines with a GPU but no C++ compiler. Both
follow the same rules and count the same things under the same numbers.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Protocol

from kforge_nb.errors import BadInput, ContractBreach, MissingTool
from kforge_nb.guard import native
from kforge_nb.guard.layout import encode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kforge_nb.candidates.plan import ResolvedPlan
    from kforge_nb.targets.target import TensorSpec

__all__ = ["FAILED", "REASONS", "NativeTable", "Table"]

REASONS = {
    0: "none",
    1: "another number of inputs",
    2: "another dtype",
    3: "another device",
    4: "another shape",
    5: "a layout that cannot be copied",
    6: "a gradient is needed",
    7: "the kill switch is on",
    8: "switched off after a mismatch or an error",
    9: "a launch that failed",
    10: "no memory for its outputs",
    11: "a broken CUDA-graph capture",
}
"""Why a call ran the original, by the numbers that the launch op counts under."""
COUNT, DTYPE, DEVICE, SHAPE, LAYOUT, GRAD, KILLED, DISABLED, FAILED, MEMORY, CAPTURE = range(1, 12)


class Table(Protocol):
    """What registers kernels, switches them and counts their calls."""

    name: str

    def add_cpu(
        self,
        library: Path,
        plan: ResolvedPlan,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shadow: int,
    ) -> int:
        """The handle of a C++ kernel in a shared library."""

    def add_cuda(
        self,
        cubin: Path,
        plan: ResolvedPlan,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shadow: int,
        device: int,
    ) -> int:
        """The handle of a CUDA plan whose code is loaded on a device."""

    def run(self, on: bool) -> None:
        """The kill switch."""

    def running(self) -> bool:
        """Whether kernels run at all."""

    def enable(self, handle: int, on: bool) -> None:
        """Switch one kernel."""

    def shadow(self, handle: int, calls: int) -> None:
        """How many next calls are checked."""

    def counts(self, handle: int) -> list[int]:
        """Launches, copies, shadowed, then one fallback count for each of ``REASONS``."""

    def fault(self, handle: int) -> str:
        """Why a launch failed, empty if none did."""

    def error(self, text: str) -> None:
        """Keep the words of an exception that would lose them on its way."""


class NativeTable:
    """The table of ``launch.cpp``; builds and loads it.

    Raises:
        MissingTool: there is no C++ compiler.
    """

    name = "c++"

    def __init__(self) -> None:
        self._lib = native.load_launch_library()

    def add_cpu(
        self,
        library: Path,
        plan: ResolvedPlan,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shadow: int,
    ) -> int:
        """Load a shared library and add its kernel; raises ContractBreach without the entry."""
        call = plan.calls[0]
        words = encode(self._lib, plan, inputs, outputs, cuda=False)
        trampoline = native.trampoline(native.signature(call.args))
        try:
            entry = native.entry_address(library, call.name)
        except (OSError, AttributeError) as problem:
            text = f"{library.name} has no usable entry {call.name!r}: {problem}"
            raise ContractBreach(text) from None
        return self._accepted(self._lib.kforge_add_cpu(trampoline, entry, words, shadow), call.name)

    def add_cuda(
        self,
        cubin: Path,
        plan: ResolvedPlan,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shadow: int,
        device: int,
    ) -> int:
        """Load a cubin on a device and add its kernels.

        Raises:
            MissingTool: no driver, or a torch without CUDA.
            ContractBreach: the cubin is not for this device, or lacks a kernel of the plan.
            BadInput: it cannot be read, or the driver fails otherwise.
        """
        words = encode(self._lib, plan, inputs, outputs, cuda=True)
        driver, torch_cuda = native.cuda_libraries()
        self._accepted(self._lib.kforge_open_cuda(driver.encode(), torch_cuda.encode()), cubin.name)
        try:
            image = cubin.read_bytes()
        except OSError as problem:
            raise BadInput(f"the kernel {cubin} cannot be read: {problem}") from None
        names = (ctypes.c_char_p * len(plan.calls))(*(call.name.encode() for call in plan.calls))
        handle = self._lib.kforge_add_cuda(image, len(image), device, names, words, shadow)
        return self._accepted(handle, cubin.name)

    def _accepted(self, handle: int, what: str) -> int:
        if handle >= 0:
            return handle
        text = f"the launch op refused {what}: {self._lib.kforge_problem().decode()}"
        if handle == -2:
            raise MissingTool(text)
        if handle == -3:
            raise ContractBreach(text)
        raise BadInput(text)

    def run(self, on: bool) -> None:
        """The kill switch."""
        self._lib.kforge_run(int(on))

    def running(self) -> bool:
        """Whether kernels run at all."""
        return bool(self._lib.kforge_running())

    def enable(self, handle: int, on: bool) -> None:
        """Switch one kernel."""
        self._lib.kforge_enable(handle, int(on))

    def shadow(self, handle: int, calls: int) -> None:
        """How many next calls are checked."""
        self._lib.kforge_shadow(handle, calls)

    def counts(self, handle: int) -> list[int]:
        """Launches, copies, shadowed, then one fallback count for each of ``REASONS``."""
        out = (ctypes.c_int64 * (3 + len(REASONS)))()
        self._lib.kforge_counters(handle, out)
        return list(out)

    def fault(self, handle: int) -> str:
        """Why a launch failed, empty if none did."""
        return str(self._lib.kforge_fault(handle).decode())

    def error(self, text: str) -> None:
        """Keep the words of an exception of the original until the op throws it on."""
        self._lib.kforge_error(text.encode())
