"""Load a cubin and launch its kernels on torch's current stream, through CuPy.

This is the launch path of tests and benchmarks, and what the launch op uses where no C++ compiler
exists. CuPy's driver calls are used rather than its kernel objects: no array is wrapped, and
scalars are laid out once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.plan import resolve
from kforge_nb.errors import BadInput, ContractBreach, MissingTool, install

if TYPE_CHECKING:
    import torch

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.candidates.plan import Arg, ResolvedCall, ResolvedPlan

__all__ = ["Launcher", "LoadedPlan", "load_kernels", "load_plan", "torch_stream", "word"]

_ALWAYS_ALLOWED = 48 << 10  # bytes of shared memory, fixed and dynamic together
_SHARED_SIZE, _MAX_DYNAMIC_SHARED = 1, 8  # CU_FUNC_ATTRIBUTE_…
_BAD_IMAGE = {200, 209, 218, 500}  # invalid image, no binary for this GPU, invalid PTX, not found


def word(arg: Arg) -> int:
    """Eight bytes, as a signed number, that start with a scalar as a CUDA kernel reads it.

    Raises:
        ContractBreach: no CUDA kernel can take this argument.
    """
    match arg:
        case ("i64" | "i32", value):
            return int(value)
        case ("f32", value):  # beyond float32 it is infinite, as in C; struct would raise
            return int.from_bytes(bytes(ctypes.c_float(value)), "little")
        case ("f64", value):
            return int(struct.unpack("<q", struct.pack("<d", float(value)))[0])
    raise ContractBreach(f"a CUDA kernel cannot take the argument {arg!r}")


class _Call:
    """One launch of a plan: scalars in place, and where pointers go."""

    def __init__(self, call: ResolvedCall, function: int) -> None:
        self.function = function
        self.shape = (*call.grid, *call.block, call.shared)
        self.count = len(call.args)
        self.template = bytearray(8 * self.count)
        self.pointers: list[tuple[int, str, Any]] = []
        for place, arg in enumerate(call.args):
            if arg[0] in ("input", "output", "scratch"):
                self.pointers.append((place, arg[0], arg[1:][0]))
            else:
                struct.pack_into("<q", self.template, 8 * place, word(arg))
        self._values = ctypes.c_uint64 * self.count
        self._params = ctypes.c_void_p * self.count

    def launch(self, driver: Any, pointers: Mapping[str, Any], stream: int) -> None:
        """Launch with these pointers: ``input``, ``output`` by position, ``scratch`` by name."""
        values = self._values.from_buffer_copy(self.template)
        for place, kind, key in self.pointers:
            values[place] = pointers[kind][key]
        start = ctypes.addressof(values)
        params = self._params(*range(start, start + 8 * self.count, 8))
        driver.launchKernel(self.function, *self.shape, stream, ctypes.addressof(params), 0)


class Launcher:
    """The kernels of a resolved plan, loaded in the context that is current while it is made.

    ``driver`` has the functions of ``cupy.cuda.driver`` that are used; ``module`` is kept alive.
    """

    def __init__(self, plan: ResolvedPlan, device: int, driver: Any, module: Any) -> None:
        self.device = device
        self._driver, self._module = driver, module
        self._context = driver.ctxGetCurrent()
        self._calls = []
        granted: dict[int, int] = {}
        for call in plan.calls:
            function = driver.moduleGetFunction(module.ptr, call.name)
            fixed = driver.funcGetAttribute(_SHARED_SIZE, function)  # also loads a lazy function
            if fixed + call.shared > _ALWAYS_ALLOWED and call.shared > granted.get(function, 0):
                driver.funcSetAttribute(function, _MAX_DYNAMIC_SHARED, call.shared)
                granted[function] = call.shared
            self._calls.append(_Call(call, function))

    def launch(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        scratch: Mapping[str, int],
        stream: int,
    ) -> None:
        """Launch every kernel in order on a stream of the device; all arguments are addresses."""
        pointers = {"input": inputs, "output": outputs, "scratch": scratch}
        before = self._driver.ctxGetCurrent()  # none in a new thread, or another device's
        if before != self._context:
            self._driver.ctxSetCurrent(self._context)
        try:
            for call in self._calls:
                call.launch(self._driver, pointers, stream)
        finally:
            if before not in (0, self._context):
                self._driver.ctxSetCurrent(before)


def load_kernels(plan: ResolvedPlan, cubin: Path, device: int) -> Launcher:
    """Load ``cubin`` into the context that torch uses on ``device``.

    Raises:
        MissingTool: CuPy is not installed.
        ContractBreach: the cubin is not for this device, or lacks a kernel of the plan.
        BadInput: the driver fails otherwise.
    """
    try:
        import cupy
    except ImportError:
        raise MissingTool(f"launching CUDA kernels needs CuPy: {install('cuda')}") from None
    import torch

    torch.cuda.init()
    driver = cupy.cuda.driver
    with torch.cuda.device(device):
        torch.empty(1, device="cuda")  # makes torch's context current before CuPy asks for one
        module = cupy.cuda.function.Module()
        try:
            module.load(cubin.read_bytes())
            return Launcher(plan, device, driver, module)
        except driver.CUDADriverError as problem:
            kind = ContractBreach if problem.status in _BAD_IMAGE else BadInput
            raise kind(f"the kernels of {cubin.name} do not load: {problem}") from None


class LoadedPlan:
    """A candidate's kernels, ready to launch on one device.

    ::

        loaded = load_plan(candidate, built.cubin, inputs, outputs)
        results = loaded.empty()
        loaded.launch(tensors, results)      # on torch's current stream, also while it is captured
    """

    def __init__(self, plan: ResolvedPlan, launcher: Launcher, specs: Sequence[Any]) -> None:
        self.plan = plan
        self._launcher = launcher
        self._specs = specs
        self._scratch: dict[str, torch.Tensor] = {}

    def empty(self) -> list[torch.Tensor]:
        """Fresh outputs with the strides that the plan was made for."""
        import torch

        device = torch.device("cuda", self._launcher.device)
        return [
            torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device=device)
            for s in self._specs
        ]

    def bind(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Callable[[], None]:
        """A call that launches on these tensors and keeps them; scratch is allocated here, once."""
        scratch = self.scratch(outputs[0].device)
        zeroed = [scratch[n] for n, s in self.plan.scratch.items() if s.init == "zero"]
        given = [t.data_ptr() for t in inputs]
        made = [t.data_ptr() for t in outputs]
        places = {name: t.data_ptr() for name, t in scratch.items()}
        kept = (*inputs, *outputs, *scratch.values())  # else their memory would become others'
        return partial(self._launch, given, made, places, zeroed, kept)

    def _launch(
        self,
        given: Sequence[int],
        made: Sequence[int],
        places: Mapping[str, int],
        zeroed: Sequence[torch.Tensor],
        _kept: tuple[torch.Tensor, ...],
    ) -> None:
        import torch

        stream = torch.cuda.current_stream(self._launcher.device).cuda_stream
        for buffer in zeroed:
            buffer.zero_()
        self._launcher.launch(given, made, places, stream)

    def launch(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Launch every kernel of the plan on torch's current stream."""
        self.bind(inputs, outputs)()

    def scratch(self, device: Any) -> dict[str, torch.Tensor]:
        """The scratch buffers by name, allocated when first asked for."""
        import torch

        if not self._scratch:
            for name, buffer in self.plan.scratch.items():
                dtype = getattr(torch, buffer.dtype)
                self._scratch[name] = torch.empty(buffer.shape, dtype=dtype, device=device)
        return self._scratch


def torch_stream() -> Any:
    """Torch's current stream, as CuPy takes it."""
    import cupy
    import torch

    current = torch.cuda.current_stream()
    if hasattr(current, "__cuda_stream__"):
        return cupy.cuda.Stream.from_external(current)
    return cupy.cuda.ExternalStream(current.cuda_stream)  # torch before it knew that protocol


def load_plan(
    candidate: Candidate, cubin: Path, inputs: Sequence[Any], outputs: Sequence[Any]
) -> LoadedPlan:
    """Load a candidate's kernels on the device of its outputs, or the current one.

    Args:
        candidate: a ``cuda`` candidate.
        cubin: its compiled code, for this device.
        inputs: specs of ``in0 …``.
        outputs: specs of ``out0 …``.

    Raises:
        MissingTool: CuPy is not installed.
        ContractBreach: the plan does not fit the specs, or the cubin not the device or the plan.
        BadInput: the driver fails otherwise.
    """
    import torch

    kind, _, index = str(outputs[0].device).partition(":")
    device = int(index) if kind == "cuda" and index else torch.cuda.current_device()
    plan = resolve(candidate.plan, inputs, outputs)
    return LoadedPlan(plan, load_kernels(plan, cubin, device), outputs)
