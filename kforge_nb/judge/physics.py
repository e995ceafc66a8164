"""What no kernel on this machine can be faster than: below it a timing is suspicious, not fast."""

from __future__ import annotations

import re

from kforge_nb.candidates.plan import DTYPE_BYTES
from kforge_nb.judge.regions import extent
from kforge_nb.profile.calibration import Calibration
from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["device_floor_seconds", "floor_seconds", "moved_bytes"]

_SLACK = 2.0  # how much faster than the calibrated copy reading or writing alone may be
_LEAST_FAR, _LEAST_NEAR = 25.0, 100.0  # GB/s that any machine may have, whatever was calibrated
_BUSY = 2.0  # times so many where the calibration says itself that it is too low
_DEVICE_SLACK = 1.3
_PARTS = re.compile(
    r"getitem|slice|narrow|select|index|gather|embedding|take|chunk|split|unbind|where|mask|tri[lu]|"
    r"diag|as_strided|unfold|upsample|interpolate"
)
_SPARSE = frozenset({"other", "pooling"})  # families that need not read every input element


def _bytes(specs: tuple[TensorSpec, ...]) -> int:
    return sum(extent(s) * DTYPE_BYTES.get(s.dtype, 8) for s in specs)


def moved_bytes(target: Target) -> int:
    """Bytes that any kernel must at least read and write once."""
    inputs = 0 if target.family in _SPARSE else _bytes(target.inputs)
    return inputs + _bytes(target.outputs)


def _all_read(target: Target) -> bool:
    """Whether the graph needs all of its inputs: it names no parts of them and masks none out."""
    if target.family in _SPARSE:
        return False
    if target.graph is None:
        return True
    names = (str(getattr(n.target, "__name__", n.target)) for n in target.graph.graph.nodes)
    return not any(_PARTS.search(name) for name in names)


def device_floor_seconds(target: Target, calibration: Calibration) -> float:
    """The same on a GPU, where every timed call finds its inputs in memory, not in a cache.

    The calibrated copy there is steady and near what the memory can do, so the slack is small:
    enough for reading alone, which is faster than copying. What was written may still be in the
    second-level cache when the call ends, so outputs count by the fastest copy of any size.
    """
    least_far, least_near = _least(calibration)
    far = max(calibration.bandwidth_gbs, least_far)
    near = max(far, *calibration.bandwidth_by_bytes.values(), least_near)
    inputs = _bytes(target.inputs) if _all_read(target) else 0
    return (inputs / far + _bytes(target.outputs) / near) * 1e-9 / _DEVICE_SLACK


def floor_seconds(target: Target, rotated_bytes: int, calibration: Calibration) -> float:
    """Seconds below which one call would move data faster than this machine can.

    Inputs come from ``rotated_bytes`` of memory that timed calls go through in turn, so the copy of
    that size was calibrated for them; outputs may stay in the nearest cache, so the fastest copy of
    any size is. A calibration taken while other programs kept the machine busy is far too low, and
    an honest kernel must not look impossible for it: the speeds have a floor of their own, twice as
    high where the calibration says that it was disturbed. It is never 0: data cannot be moved at
    any speed, whatever else ran.
    """
    speeds = {**calibration.bandwidth_by_bytes} or {0: calibration.bandwidth_gbs}
    fitting = [size for size in speeds if size <= rotated_bytes] or [min(speeds)]
    least_far, least_near = _least(calibration)
    far = max(speeds[max(fitting)], least_far)
    near = max(least_near, *speeds.values())
    outputs = _bytes(target.outputs)
    inputs = moved_bytes(target) - outputs
    return (inputs / far + outputs / near) * 1e-9 / _SLACK


def _least(calibration: Calibration) -> tuple[float, float]:
    """GB/s, from memory and from caches, that this machine is taken to have in any case."""
    factor = _BUSY if calibration.busy else 1.0
    return _LEAST_FAR * factor, _LEAST_NEAR * factor
