"""Load a cubin and launch its kernels on torch's current stream, through CuPy.

This is the launch path of tests and benchmarks, and the fallback where no C++ compiler exists. It
costs about 24 µs a launch on the host; installed kernels go through the C++ launch op instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.plan import resolve
from kforge_nb.errors import MissingTool

if TYPE_CHECKING:
    import torch

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.candidates.plan import Arg, ResolvedPlan

__all__ = ["LoadedPlan", "load_plan", "torch_stream"]

_STATIC_SHARED = 48 << 10
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class LoadedPlan:
    """A candidate's kernels, ready to launch on one device.

    ::

        loaded = load_plan(candidate, built.cubin, inputs)
        outputs = loaded.empty()
        loaded.launch(inputs, outputs)      # on torch's current stream, also while it is captured
    """

    def __init__(self, plan: ResolvedPlan, functions: Sequence[Any], specs: Sequence[Any]) -> None:
        self.plan = plan
        self._functions = functions
        self._specs = specs
        self._scratch: dict[str, torch.Tensor] = {}

    def empty(self) -> list[torch.Tensor]:
        """Fresh outputs with the strides that the plan was made for."""
        import torch

        return [
            torch.empty_strided(
                s.shape, s.stride, dtype=getattr(torch, s.dtype), device=torch.device("cuda")
            )
            for s in self._specs
        ]

    def bind(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Callable[[], None]:
        """A call that launches on these tensors; the scratch is allocated here, once."""
        scratch = self.scratch(outputs[0].device)
        zeroed = [scratch[n] for n, s in self.plan.scratch.items() if s.init == "zero"]
        launches = [
            (function, call, tuple(_argument(arg, inputs, outputs, scratch) for arg in call.args))
            for function, call in zip(self._functions, self.plan.calls, strict=True)
        ]

        def launch() -> None:
            stream = torch_stream()
            for buffer in zeroed:
                buffer.zero_()
            for function, call, args in launches:
                function(call.grid, call.block, args, call.shared, stream=stream)

        return launch

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
    """Load ``cubin`` into the current CUDA context.

    Args:
        candidate: a ``cuda`` candidate.
        cubin: its compiled code, for this device.
        inputs: specs of ``in0 …``.
        outputs: specs of ``out0 …``.

    Raises:
        MissingTool: CuPy is not installed.
        ContractBreach: the plan does not fit the specs.
    """
    try:
        import cupy
    except ImportError:
        raise MissingTool(
            "launching CUDA kernels needs CuPy: pip install 'kforge-nb[cuda]'"
        ) from None
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")  # makes torch's context current before CuPy asks for one
    plan = resolve(candidate.plan, inputs, outputs)
    module = cupy.cuda.function.Module()
    module.load(cubin.read_bytes())
    functions = []
    for call in plan.calls:
        function = module.get_function(call.name)
        if call.shared > _STATIC_SHARED:
            cupy.cuda.driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, call.shared)
        functions.append(function)
    return LoadedPlan(plan, functions, outputs)


def _argument(
    arg: Arg,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    scratch: Mapping[str, torch.Tensor],
) -> Any:
    import numpy as np

    match arg:
        case ("input", int(position)):
            return np.uint64(inputs[position].data_ptr())
        case ("output", int(position)):
            return np.uint64(outputs[position].data_ptr())
        case ("scratch", str(name)):
            return np.uint64(scratch[name].data_ptr())
        case ("i64", value):
            return np.int64(value)
        case ("i32", value):
            return np.int32(value)
        case ("f32", value):
            return np.float32(value)
        case ("f64", value):
            return np.float64(value)
    raise ValueError(f"a CUDA kernel cannot take the argument {arg!r}")
