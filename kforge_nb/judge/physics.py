"""What no kernel on this machine can be faster than; below that a timing is suspicious, not fast."""

from __future__ import annotations

import re
from pathlib import Path

from kforge_nb.judge.regions import extent
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.candidates.plan import DTYPE_BYTES
from kforge_nb.targets.target import Target

__all__ = ["floor_seconds", "last_level_cache", "moved_bytes"]

_NEAR = 16.0  # how much faster than memory the near caches of all cores together may be
_SHARED = 8.0  # the same for a last-level cache that holds all slots
_SLACK = 1.5  # calibration of the memory is a measurement too
_SPARSE = frozenset({"other", "pooling"})  # families that need not read every input element


def moved_bytes(target: Target) -> int:
    """Bytes that any kernel must at least read and write once."""
    outputs = sum(extent(s) * DTYPE_BYTES.get(s.dtype, 8) for s in target.outputs)
    inputs = sum(extent(s) * DTYPE_BYTES.get(s.dtype, 8) for s in target.inputs)
    return outputs if target.family in _SPARSE else outputs + inputs


def floor_seconds(target: Target, timed: TimedInputs, bandwidth_gbs: float) -> float:
    """Seconds below which one call would break the memory's bandwidth, caches allowed for.

    Args:
        target: what is computed.
        timed: the slots that the timed calls rotate through.
        bandwidth_gbs: calibrated memory bandwidth in GB/s; 0 if unknown (then there is no floor).
    """
    if bandwidth_gbs <= 0:
        return 0.0
    reads = moved_bytes(target)
    writes = sum(extent(s) * DTYPE_BYTES.get(s.dtype, 8) for s in target.outputs)
    resident = timed.region.bytes < last_level_cache()
    rate = bandwidth_gbs * 1e9 * _SLACK
    return (reads - writes) / (rate * (_SHARED if resident else 1.0)) + writes / (rate * _NEAR)


def last_level_cache() -> int:
    """Bytes of the largest cache of the first core; 0 if the system does not say."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KM]?)\s*", path.read_text())
        if found:
            sizes.append(int(found[1]) << {"": 0, "K": 10, "M": 20}[found[2]])
    return max(sizes)
