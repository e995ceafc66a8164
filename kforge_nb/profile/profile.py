"""Profile a workload: watch, capture, cut, time, and put it in one table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kforge_nb.errors import BadInput
from kforge_nb.profile.calibration import BUSY_CORES, Calibration, calibrate
from kforge_nb.profile.cost import compute_dtype, flops_of, moved_bytes
from kforge_nb.profile.device import facts, kind_of
from kforge_nb.profile.left_out import gradient_note, left_out_note
from kforge_nb.profile.table import Profile, Row
from kforge_nb.profile.timing import ForeignLoad, interleaved_us
from kforge_nb.profile.whole import device_of, device_us, wall_us
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.target import Granularity, Target
from kforge_nb.workload.capture import Workload, capture_graphs, watch

__all__ = ["profile"]

LAUNCH_BOUND = 2.0


def profile(
    fn: Callable[[], Any] | Workload,
    granularity: Granularity = "region",
    *,
    vendor: bool = True,
    memory_limit: int = 1 << 30,
    seconds: float = 5.0,
) -> Profile:
    """Run ``fn`` once, then measure where the time of its module calls goes.

    ``granularity`` is ``op``, ``module`` or ``region``. ``vendor`` adds rows for linear layers,
    convolutions and the like, marked so. ``memory_limit`` bounds captured inputs held in memory
    (bytes), ``seconds`` about how long the targets are timed. ``fn`` may be a Workload that was
    watched before. Raises BadInput for another granularity, a cell without a module call, or a
    model on ``meta``; exceptions of ``fn`` pass through.
    """
    if granularity not in ("op", "module", "region"):
        raise BadInput(f"granularity is {granularity!r}; choose op, module or region")
    workload = fn if isinstance(fn, Workload) else watch(fn)
    device = device_of(workload)
    known = facts(device)
    limits = calibrate(device)
    wall = wall_us(workload)
    busy = min(device_us(workload), wall)
    if not workload.graphs:
        capture_graphs(workload)
    targets = find_targets(workload, granularity, memory_limit, vendor=vendor)
    for text in (gradient_note(workload), left_out_note(workload, targets if vendor else ())):
        if text is not None:
            workload.note(text)
    with ForeignLoad() as load:
        times = _time_targets(targets, workload, seconds)
    if load.cores >= BUSY_CORES:
        workload.note(
            f"other processes kept {load.cores:.1f} cores busy while the targets were timed: "
            "take the times as rough"
        )
    rows = [_row(t, times.get(i), wall, limits, workload) for i, t in enumerate(targets)]
    rows.sort(key=lambda r: -(r.share or 0.0))
    for index, row in enumerate(rows):
        row.index = index
    bound = wall > LAUNCH_BOUND * busy
    return Profile(workload, rows, wall, busy, bound, granularity, {**known, **_limits(limits)})


def _limits(limits: Calibration) -> dict[str, Any]:
    return {"bandwidth_gbs": limits.bandwidth_gbs, "flops_gflops": dict(limits.flops_gflops)}


def _time_targets(targets: list[Target], workload: Workload, seconds: float) -> dict[int, float]:
    """Time of each target on its first captured inputs (µs), by place in ``targets``."""
    calls: dict[int, Callable[[], Any]] = {}
    with torch.no_grad():
        for i, target in enumerate(targets):
            if target.captured is None or not len(target.captured):
                continue
            inputs = target.captured.sets()[0]
            forward = target.graph.forward
            try:
                forward(*inputs)
            except RuntimeError as error:
                workload.note(f"{target.name} could not be run alone: {str(error)[:200]}")
                continue
            calls[i] = partial(forward, *inputs)
        devices = {targets[i].device for i in calls}
        found: dict[int, float] = {}
        for device in sorted(devices):
            here = {i: c for i, c in calls.items() if targets[i].device == device}
            share = seconds * len(here) / max(1, len(calls))
            found.update(interleaved_us(here, device, seconds=share))
    return found


def _row(
    target: Target,
    mean_us: float | None,
    wall: float,
    limits: Calibration,
    workload: Workload,
) -> Row:
    moved = moved_bytes(target)
    flops = 0
    if target.captured is not None and len(target.captured):
        try:
            flops = flops_of(target, target.captured.sets()[0])
        except RuntimeError as error:
            workload.note(f"operations of {target.name} could not be counted: {str(error)[:200]}")
    roofline = limits.roofline_us(moved, flops if target.vendor else 0, compute_dtype(target))
    if kind_of(target.device) != kind_of(limits.device):
        roofline = 0.0
    return Row(target, target.calls, mean_us, moved, flops, roofline or None, wall)
