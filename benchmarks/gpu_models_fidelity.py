"""The fidelity stage of ``gpu_models``: is the guarded model as close to float64 as eager is?

At least eight inputs, each through plain eager, through the rest with its kernels, and through the
graph in float64 by an interpreter that upcasts lazily; the median of (our error / eager's error)
may be at most 1.05, and an error of 0 stays 0. The bare rest is checked beside it: what it does to
rounding is not the kernels' doing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.gpu_models_cases import Size, build
from benchmarks.gpu_models_kernels import kernels_of
from benchmarks.gpu_models_profile import workload_of
from benchmarks.gpu_models_state import Body, Places, StageFile

if TYPE_CHECKING:
    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.workload.capture import Workload

__all__ = ["fidelity_stage"]


def fidelity_stage(name: str, size: Size, device: str, places: Places, limit: float) -> None:
    """Check the eager rest with the kernels, then the guard's own rest with and without them."""
    from kforge_nb.workload.capture import watch

    end = time.monotonic() + limit
    stage = StageFile(places, name, "fidelity")
    stage.put(size=size, checks={})
    with stage.step("build"):
        case = build(name, size, device)
        workload, kernels = watch(workload_of(case)), kernels_of(places, name)
    checks: dict[str, Body] = {}
    rests = {rest for rest, found in kernels.by_rest.items() if found}
    wanted = _wanted(places, name, rests)
    for done, (side, rest, with_kernels) in enumerate(wanted):
        share = (end - time.monotonic() - 5.0) / (len(wanted) - done)
        if share < 5.0:
            break
        with stage.step(side):
            installed = kernels.by_rest.get(rest, [])
            checks[side] = _check(workload, installed, rest, with_kernels, share)
        stage.put(checks=checks)
    stage.put(done=len(checks) == len(wanted), step="done")


def _wanted(places: Places, name: str, kernels: set[str]) -> list[tuple[str, str, bool]]:
    """(name of the side, its rest, whether with kernels); ``kernels``: the rests that have some."""
    advice = places.read(name, "search").get("recommendation") or {}
    best = advice.get("rest") or "eager"
    found = [("guarded-eager", "eager", True)] if "eager" in kernels else []
    if best not in ("eager", "none"):
        found += [(f"guarded-{best}", best, True)] if best in kernels else []
        found.append((f"empty-{best}", best, False))
    return found


def _check(
    workload: Workload, kernels: list[Accepted], rest: str, with_kernels: bool, limit: float
) -> Body:
    from kforge_nb.guard.fidelity import check_fidelity
    from kforge_nb.guard.measure import Model, Timer

    model = Model.of(workload.calls, kernels, rest)
    enabled = frozenset(model.backend.handles) if with_kernels else frozenset[str]()
    found = check_fidelity(model, enabled, Timer.of(limit))
    return {**found.to_document(), "good": found.good, "figure": found.figure}
