"""Limits that were measured on a busy machine: good for a while, and better the more is seen.

Other programs make a machine look slower than it is, so such a measurement is not kept for good.
But measuring again in each process costs seconds for the same result. So the best figures seen so
far are kept beside the cache for some minutes; then they are measured again, and merged.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kforge_nb.profile.calibration import Calibration

__all__ = ["RETRY_S", "VALID_S", "keep", "merged", "recall", "remember"]

VALID_S = 600.0

RETRY_S = 30.0
"""For so long nobody looks whether the machine is quiet again, which takes a moment."""


def recall(
    path: Path, identity: str, *, now: float | None = None, within: float | None = None
) -> Calibration | None:
    """What was remembered for this device not longer than ``within`` seconds ago, else None."""
    within = VALID_S if within is None else within
    body = _body(path, identity)
    age = (time.time() if now is None else now) - (body["at"] if body else 0.0)
    return _calibration(body) if body is not None and 0.0 <= age < within else None


def remember(path: Path, measured: Calibration, *, now: float | None = None) -> Calibration:
    """Keep the best of this measurement and those before it; returns that."""
    body = _body(path, measured.identity)
    earlier = _calibration(body) if body is not None else None
    best = measured if earlier is None else merged(earlier, measured)
    keep(path, {"at": time.time() if now is None else now, "calibration": asdict(best)})
    return best


def keep(path: Path, body: dict[str, Any]) -> None:
    """Write figures to a file, whole or not at all; a place that takes none is a warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".remembered-")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(body, file)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(
            f"what this machine can do was measured but cannot be kept in {path.parent} "
            f"({error.strerror}); it is measured again each time until KFORGE_HOME names a folder "
            "that can be written to",
            stacklevel=2,
        )


def merged(one: Calibration, two: Calibration) -> Calibration:
    """The better of each figure: a limit is what was ever reached."""
    sizes = {*one.bandwidth_by_bytes, *two.bandwidth_by_bytes}
    dtypes = {*one.flops_gflops, *two.flops_gflops}
    costs = [c.overhead_us for c in (one, two) if c.overhead_us > 0]
    return replace(
        two,
        bandwidth_gbs=max(one.bandwidth_gbs, two.bandwidth_gbs),
        bandwidth_by_bytes={s: _most(s, one, two, "bandwidth_by_bytes") for s in sorted(sizes)},
        flops_gflops={d: _most(d, one, two, "flops_gflops") for d in sorted(dtypes)},
        overhead_us=min(costs, default=0.0),
    )


def _most(key: Any, one: Calibration, two: Calibration, name: str) -> float:
    return max(float(getattr(c, name).get(key, 0.0)) for c in (one, two))


def _body(path: Path, identity: str) -> dict[str, Any] | None:
    try:
        body = json.loads(path.read_text())
        found = _calibration(body)
        known = found.identity == identity and found.bandwidth_gbs > 0 and float(body["at"]) >= 0
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return body if known else None


def _calibration(body: dict[str, Any]) -> Calibration:
    from kforge_nb.profile.calibration import Calibration

    kept = body["calibration"]
    sizes = {int(k): float(v) for k, v in kept["bandwidth_by_bytes"].items()}
    return Calibration(**{**kept, "bandwidth_by_bytes": sizes})
