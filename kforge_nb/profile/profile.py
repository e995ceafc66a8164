"""Profile a workload: watch, capture, cut, time, and put it in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kforge_nb.errors import BadInput
from kforge_nb.profile.believing import (
    BUSY_NOTE,
    LAUNCH_BOUND,
    beaten_note,
    believed,
    crowded_note,
)
from kforge_nb.profile.calibration import BUSY_CORES, Calibration, calibrate
from kforge_nb.profile.cost import compute_dtype, moved_bytes
from kforge_nb.profile.device import facts, kind_of
from kforge_nb.profile.elsewhere import elsewhere, overfull
from kforge_nb.profile.layout import choose_layout
from kforge_nb.profile.left_out import gradient_note, left_out_note, training_note
from kforge_nb.profile.measuring import Measured, measure
from kforge_nb.profile.numbering import numbers
from kforge_nb.profile.table import Profile, Row
from kforge_nb.profile.timing import ForeignLoad
from kforge_nb.profile.whole import device_us, wall_us
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.target import Granularity, Target
from kforge_nb.workload.capture import Workload, capture_graphs, watch
from kforge_nb.workload.devices import main_device, memory_told, split_note

__all__ = ["profile"]

LAYOUT_SHARE = 0.25
"""So much of the time for targets is there for the choice of a layout, on top of it."""


def profile(
    fn: Callable[[], Any] | Workload,
    granularity: Granularity = "region",
    *,
    vendor: bool = True,
    memory_limit: int = 1 << 30,
    seconds: float = 5.0,
    layout: str = "keep",
) -> Profile:
    """Run ``fn`` once, then measure where the time of its module calls goes.

    ``granularity`` is ``op``, ``module`` or ``region``. ``vendor`` adds rows for linear layers,
    convolutions and the like, marked so. ``memory_limit`` bounds captured inputs held in memory
    (bytes), ``seconds`` about how long the targets are timed. ``layout``: ``keep`` leaves tensors
    as the model has them, ``channels_last`` lays its graphs out so for convolutions, ``auto`` does
    where that is measured to be faster. ``fn`` may be a Workload that was watched before. Raises
    BadInput for another granularity, a cell without a module call, a model on ``meta``, or a GPU
    whose memory does not suffice; exceptions of ``fn`` pass through.
    """
    if granularity not in ("op", "module", "region"):
        raise BadInput(f"granularity is {granularity!r}; choose op, module or region")
    workload = fn if isinstance(fn, Workload) else watch(fn)
    device = main_device(workload)
    known = facts(device)
    with memory_told("measuring what the device can do"):
        limits = calibrate(device)
    with memory_told("running the workload again to time it"), ForeignLoad() as load_whole:
        wall = wall_us(workload)
        busy = device_us(workload)
    if not workload.graphs:
        capture_graphs(workload)
    choose_layout(workload, layout, wall if busy is None else busy, LAYOUT_SHARE * seconds)
    targets = find_targets(workload, granularity, memory_limit, vendor=vendor)
    for text in _notes(workload, targets if vendor else ()):
        workload.note(text)
    if limits.busy:
        workload.note(BUSY_NOTE)
    with ForeignLoad() as load:
        found = measure(targets, workload.note, seconds)
    cores = max(load.cores, load_whole.cores)
    if crowded := cores >= BUSY_CORES:
        workload.note(crowded_note(cores))
    rows = _rows(workload, granularity, zip(targets, found, strict=True), wall, limits)
    if busy is None:
        workload.note("the profiler told no device times; those of the targets are taken instead")
        busy = sum((row.mean_us or 0.0) * row.calls for row in rows)
    busy = min(busy, wall)
    left = elsewhere((row.share for row in rows), wall, busy)
    if beside := left.note if left else overfull(row.share for row in rows):
        workload.note(beside)
    bound = None if crowded else wall > LAUNCH_BOUND * busy
    return Profile(workload, rows, wall, busy, bound, granularity, {**known, **_limits(limits)})


def _notes(workload: Workload, targets: Sequence[Target]) -> list[str]:
    """What the table does not say by itself."""
    texts = (
        gradient_note(workload),
        split_note(workload),
        left_out_note(workload, targets),
        training_note(workload),
    )
    return [text for text in texts if text is not None]


def _limits(limits: Calibration) -> dict[str, Any]:
    found = {"bandwidth_gbs": limits.bandwidth_gbs, "flops_gflops": dict(limits.flops_gflops)}
    return {**found, "calibrated_busy": limits.busy}


def _roofline_us(target: Target, found: Measured, limits: Calibration) -> float:
    """The least time of a call by the device's limits, µs; 0 where they are another device's."""
    if kind_of(target.device) != kind_of(limits.device):
        return 0.0
    flops = found.flops if target.vendor else 0
    return limits.roofline_us(moved_bytes(target), flops, compute_dtype(target))


def _rows(
    workload: Workload,
    granularity: Granularity,
    measured: Iterable[tuple[Target, Measured]],
    wall: float,
    limits: Calibration,
) -> list[Row]:
    """The table's rows in order, with their numbers; a roofline that was beaten is told."""
    least = [(target, found, _roofline_us(target, found, limits)) for target, found in measured]
    rows = [_row(target, found, wall, us) for target, found, us in least]
    beaten = [
        row for row, (*_, us) in zip(rows, least, strict=True) if row.roofline_us is None and us > 0
    ]
    # By what the table shows of a share: smaller differences are luck, and equal rows keep the
    # order in which the model runs them.
    rows.sort(key=lambda row: -round(row.share or 0.0, 3))
    own = numbers(granularity, [row.fingerprint for row in rows])
    for row, index in zip(rows, own, strict=True):
        row.index = index
    if beaten:
        told = (f"{row.index} {row.name}" for row in sorted(beaten, key=lambda row: row.index))
        workload.note(beaten_note(list(told)))
    return rows


def _row(target: Target, found: Measured, wall: float, least_us: float) -> Row:
    roofline_us = believed(found.mean_us, least_us)
    moved = moved_bytes(target)
    return Row(target, target.calls, found.mean_us, moved, found.flops, roofline_us, wall)
