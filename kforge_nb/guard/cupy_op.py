"""The launch op in Python, for machines that have a GPU and CuPy but no C++ compiler.

It follows ``launch.cpp`` rule by rule: the same checks in the same order, the same counters. A call
costs more on the host than the compiled op's; ``benchmarks/launch_op.py`` measures both.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.compilers.cupy_raw import Launcher, load_kernels
from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.guard import table as codes
from kforge_nb.guard.layout import CUDA_ALIGNMENT, ScratchLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kforge_nb.candidates.plan import ResolvedPlan
    from kforge_nb.targets.target import TensorSpec

__all__ = ["CupyTable", "is_sticky"]

STICKY = {  # as in launch_driver.h
    4,
    201,
    214,
    220,
    226,
    700,
    702,
    709,
    710,
    714,
    715,
    716,
    717,
    718,
    719,
    721,
}
_CAPTURE = range(900, 910)


def is_sticky(status: int) -> bool:
    """Whether a driver error says that an earlier kernel broke the context."""
    return status in STICKY


class _Form:
    """A tensor's spec in torch's own words, so that a call compares objects and not names."""

    __slots__ = ("device", "dtype", "repeated", "shape", "stride", "wide")

    def __init__(self, spec: TensorSpec) -> None:
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self.device = torch.device(spec.device)
        self.shape, self.stride = torch.Size(spec.shape), tuple(spec.stride)
        self.wide = [axis for axis, size in enumerate(spec.shape) if size != 1]
        self.repeated = any(spec.stride[axis] == 0 for axis in self.wide)

    def mismatch(self, tensor: torch.Tensor) -> int:
        """Why this is not what the kernel was judged with; 0 also when a copy would mend it."""
        if tensor.dtype is not self.dtype:
            return codes.DTYPE
        if tensor.device != self.device:
            return codes.DEVICE
        if tensor.layout is not torch.strided:
            return codes.LAYOUT
        if tensor.shape != self.shape:
            return codes.SHAPE
        return codes.LAYOUT if self.repeated and self.needs_copy(tensor) else 0

    def needs_copy(self, tensor: torch.Tensor) -> bool:
        """Whether it is laid out differently, or not aligned."""
        have = tensor.stride()
        other = have != self.stride and any(have[i] != self.stride[i] for i in self.wide)
        return (other or tensor.data_ptr() % CUDA_ALIGNMENT != 0) and tensor.numel() > 0

    def empty(self) -> torch.Tensor:
        """A fresh tensor of this form."""
        return torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device=self.device
        )  # fmt: skip


@dataclass(slots=True)
class _Entry:
    """One kernel: its variant, its loaded code and its counters."""

    inputs: tuple[_Form, ...]
    outputs: tuple[_Form, ...]
    launcher: Launcher
    scratch: ScratchLayout
    shadows: int
    enabled: bool = True
    fault: str = ""
    counts: list[int] = field(default_factory=lambda: [0] * (3 + len(codes.REASONS)))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, place: int) -> None:
        """Add one to a counter."""
        with self.lock:
            self.counts[place] += 1

    def take_shadow(self) -> bool:
        """Whether this call is to be checked; a capture forbids reading values."""
        if self.shadows <= 0 or torch.cuda.is_current_stream_capturing():
            return False
        with self.lock:
            taken = self.shadows > 0
            self.shadows -= taken
        return taken


class CupyTable:
    """The table and the op in Python.

    Args:
        original: called with (inputs, handle, reason) where the kernel does not fit.
        shadow: called with (inputs, outputs, handle) on the first calls; gives what to hand on.
    """

    name = "cupy"

    def __init__(
        self,
        original: Callable[[list[torch.Tensor], int, int], list[torch.Tensor]],
        shadow: Callable[[list[torch.Tensor], list[torch.Tensor], int], list[torch.Tensor]],
    ) -> None:
        self._original, self._check = original, shadow
        self._entries: dict[int, _Entry] = {}
        self._numbers = itertools.count()
        self._running = True

    def add_cpu(self, library: Path, *_: Any) -> int:
        """C++ kernels need the compiler whose absence brought this table here."""
        raise MissingTool(
            f"{library.name} cannot run: C++ kernels need the compiled launch op, and so a compiler"
        )

    def add_cuda(
        self,
        cubin: Path,
        plan: ResolvedPlan,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        shadow: int,
        device: int,
    ) -> int:
        """Load a cubin on a device; raises as :func:`kforge_nb.compilers.cupy_raw.load_kernels`."""
        try:
            launcher = load_kernels(plan, cubin, device)
        except OSError as problem:
            raise BadInput(f"the kernel {cubin} cannot be read: {problem}") from None
        handle = next(self._numbers)
        forms = tuple(map(_Form, inputs)), tuple(map(_Form, outputs))
        self._entries[handle] = _Entry(*forms, launcher, ScratchLayout(plan), shadow)
        return handle

    def launch(self, inputs: list[torch.Tensor], handle: int) -> list[torch.Tensor]:
        """``torch.ops.kforge.launch``."""
        entry = self._entries.get(handle)
        if entry is None:
            raise RuntimeError(
                f"kforge::launch: no kernel is registered under handle {handle} in this process"
            )
        reason = self._reason(entry, inputs)
        outputs: list[torch.Tensor] = []
        if reason == 0:
            reason, outputs = _run(entry, inputs)
        if reason != 0:
            entry.count(3 + reason)
            return self._original(inputs, handle, reason)
        entry.count(0)
        if entry.take_shadow():
            entry.count(2)
            return self._check(inputs, outputs, handle)
        return outputs

    def _reason(self, entry: _Entry, inputs: list[torch.Tensor]) -> int:
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            return codes.GRAD
        if not self._running:
            return codes.KILLED
        if not entry.enabled:
            return codes.DISABLED
        if len(inputs) != len(entry.inputs):
            return codes.COUNT
        for tensor, form in zip(inputs, entry.inputs, strict=True):
            if reason := form.mismatch(tensor):
                return reason
        return 0

    def run(self, on: bool) -> None:
        """The kill switch."""
        self._running = on

    def running(self) -> bool:
        """Whether kernels run at all."""
        return self._running

    def enable(self, handle: int, on: bool) -> None:
        """Switch one kernel."""
        self._entries[handle].enabled = on

    def shadow(self, handle: int, calls: int) -> None:
        """How many next calls are checked."""
        self._entries[handle].shadows = calls

    def counts(self, handle: int) -> list[int]:
        """Launches, copies, shadowed, then one fallback count for each of ``REASONS``."""
        return list(self._entries[handle].counts)

    def fault(self, handle: int) -> str:
        """Why a launch failed, empty if none did."""
        return self._entries[handle].fault

    def error(self, text: str) -> None:
        """Exceptions keep their words here, so nothing needs to be kept."""


def _run(entry: _Entry, inputs: list[torch.Tensor]) -> tuple[int, list[torch.Tensor]]:
    """The outputs of a launch, or the reason why there are none."""
    try:
        given = []
        for tensor, form in zip(inputs, entry.inputs, strict=True):
            if form.needs_copy(tensor):
                given.append(form.empty().copy_(tensor))  # no gradient is needed here
                entry.count(1)
            else:
                given.append(tensor)
        outputs = [form.empty() for form in entry.outputs]
        scratch = _scratch(entry)
    except torch.OutOfMemoryError:
        return codes.MEMORY, []
    return _launch(entry, given, outputs, scratch), outputs


def _current_stream(device: int) -> int:
    """The driver's handle of torch's current stream."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the public way's time
    if raw is not None:
        return int(raw(device))
    return int(torch.cuda.current_stream(device).cuda_stream)


def _scratch(entry: _Entry) -> torch.Tensor | None:
    layout = entry.scratch
    if layout.bytes == 0:
        return None
    buffer = torch.empty(layout.bytes, dtype=torch.uint8, device=entry.outputs[0].device)
    if layout.zeroed:
        buffer[: layout.zeroed].zero_()
    return buffer


def _launch(
    entry: _Entry,
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    scratch: torch.Tensor | None,
) -> int:
    base = scratch.data_ptr() if scratch is not None else 0
    places = {name: base + offset for name, offset in entry.scratch.offsets.items()}
    launcher = entry.launcher
    try:
        launcher.launch(
            [t.data_ptr() for t in inputs], [t.data_ptr() for t in outputs], places,
            _current_stream(launcher.device),
        )  # fmt: skip
    except RuntimeError as problem:
        status = getattr(problem, "status", None)  # CuPy's errors have the driver's number
        if status is None:
            raise
        return _failed(entry, status, problem)
    return 0


def _failed(entry: _Entry, status: int, problem: Exception) -> int:
    """Not tried again, unless a capture was at fault; a broken context is the user's to hear of."""
    device = f"cuda:{entry.launcher.device}"
    if is_sticky(status):
        raise RuntimeError(
            f"kforge: the CUDA context of {device} is broken ({problem}). An earlier kernel did "
            "this, and it shows only now; nothing more can run there in this process. Restart it, "
            "with CUDA_LAUNCH_BLOCKING=1 to see which kernel it is"
        ) from problem
    if status in _CAPTURE:
        return codes.CAPTURE
    entry.fault = f"a launch failed on {device} ({problem})"
    entry.enabled = False
    return codes.FAILED
