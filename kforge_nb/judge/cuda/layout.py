"""How a CUDA target's outputs and a plan's scratch lie in host regions and on the device.

Outputs lie in the outputs region as they lie in each of their sets on the device, guard zones
included. Of the scratch only the guard zones ever come to the host, into an area whose size does
not depend on the plan; so regions, and with them a runner, can be made before there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kforge_nb.candidates.plan import Arg, ResolvedPlan
from kforge_nb.errors import ContractBreach
from kforge_nb.judge.cuda.protocol import CudaBinding, Launch, LaunchArg, LaunchKind, ScratchSpace
from kforge_nb.judge.protocol import HELD_CALLS, STATUS_BYTES
from kforge_nb.judge.regions import (
    DEVICE_ALIGN,
    GUARD,
    PAGE,
    InputLayout,
    OutputLayout,
    up,
)

if TYPE_CHECKING:
    from kforge_nb.targets.target import TensorSpec

__all__ = ["CudaOutputLayout", "make_binding"]

_MAX_SCRATCH = 16
_SCALARS = {"i64": "<i8", "i32": "<i4", "f32": "<f4", "f64": "<f8"}


class CudaOutputLayout(OutputLayout):
    """Outputs and guard zones in the outputs region, then room for the scratch's guard zones."""

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        super().__init__(outputs, ResolvedPlan([], {}))
        self.region_bytes = self.bytes
        self.scratch_guards_at = self.bytes
        self.bytes += up((_MAX_SCRATCH + 1) * (GUARD + DEVICE_ALIGN), PAGE)
        self._output_guards = list(self.guards)

    def place_scratch(self, plan: ResolvedPlan) -> list[ScratchSpace]:
        """Offsets of a plan's scratch in its slab; their guard zones join ``guards``."""
        spaces: list[ScratchSpace] = []
        end, guarded = 0, 0
        for scratch in plan.scratch.values():
            offset = up(end + GUARD, DEVICE_ALIGN)
            guarded += offset - end
            end = offset + scratch.bytes
            spaces.append(ScratchSpace(offset, scratch.bytes, scratch.init == "zero"))
        start = self.scratch_guards_at
        self.guards = [*self._output_guards, (start, start + guarded + GUARD)]
        return spaces


def make_binding(
    plan: ResolvedPlan, inputs: InputLayout, outputs: CudaOutputLayout, slots: int
) -> CudaBinding:
    """What the runner is told of a plan; raises ContractBreach on an argument CUDA has not.

    Args:
        plan: resolved for the target.
        inputs: of one slot.
        outputs: of the same target; gets the plan's scratch placed.
        slots: timed input sets.
    """
    spaces = outputs.place_scratch(plan)
    at = {name: space.offset for name, space in zip(plan.scratch, spaces, strict=True)}
    names = list(dict.fromkeys(call.name for call in plan.calls))
    launches = tuple(
        Launch(
            names.index(call.name),
            call.grid,
            call.block,
            call.shared,
            tuple(_argument(arg, inputs, outputs, at, call.name) for arg in call.args),
        )
        for call in plan.calls
    )
    return CudaBinding(
        slot_stride=inputs.stride,
        slots=slots,
        region_bytes=outputs.region_bytes,
        outputs_at=STATUS_BYTES,
        scratch_guards_at=outputs.scratch_guards_at,
        sets=HELD_CALLS,
        outputs=tuple((buffer.offset, buffer.bytes) for buffer in outputs.outputs),
        scratch=tuple(spaces),
        launches=launches,
    )


def _argument(
    arg: Arg, inputs: InputLayout, outputs: CudaOutputLayout, scratch: dict[str, int], kernel: str
) -> LaunchArg:
    match arg:
        case ("input", int(index)):
            return LaunchArg(LaunchKind.INPUT, inputs.buffers[index].offset)
        case ("output", int(index)):
            return LaunchArg(LaunchKind.OUTPUT, outputs.outputs[index].offset)
        case ("scratch", str(name)):
            return LaunchArg(LaunchKind.SCRATCH, scratch[name])
        case (str(kind), value) if kind in _SCALARS:
            with np.errstate(over="ignore"):  # a float beyond float32 is infinite, as in C
                data = np.array(value).astype(_SCALARS[kind]).tobytes()
            return LaunchArg(LaunchKind.SCALAR, int.from_bytes(data, "little"), len(data))
    raise ContractBreach(f"{kernel}: a CUDA kernel cannot be given {arg[0]!r}")
