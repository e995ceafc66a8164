"""The time stage of ``gpu_models``: all sides of one model, interleaved in one process.

What Inductor compiles is compiled ahead by children of their own, side by side, each with a cache
folder of its own and a limit; the process that measures finds their work in its cache. A side whose
child did not end in time is ``did_not_finish`` and is not timed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.gpu_models_cases import Size, build
from benchmarks.gpu_models_kernels import Kernels, kernels_of, without_kernels
from benchmarks.gpu_models_sides import EAGER, Sides, ahead_of, all_sides
from benchmarks.gpu_models_state import Body, Places, StageFile
from benchmarks.timing import interleave

__all__ = ["ahead_stage", "time_stage", "wanted_sides"]

RESERVE_S = 12.0
"""Seconds kept beside the timing itself when it is asked whether one more side can be prepared."""
TIMING_SHARE = 0.35
RESERVE_SHARE = 0.15
"""At most so much of what the stage has left goes to timing, and to what is kept beside it."""
SAMPLE_S = 0.004
TIME_OVER = "not prepared: the time was over"
"""Why a side is left out; a stage with such sides is not done, and a later call runs it again."""
FIRST, QUICK_S = 2, 2.0
"""So many sides beside eager are timed for so long before the others are prepared."""
LONGER = 1.5
"""A side is prepared only where so many times the longest preparation so far still fits."""
_FIGURES = ("samples", "differences", "kernels", "decided", "told", "left_out", "peak_gb")


def wanted_sides(places: Places, name: str, device: str, only: Sequence[str] = ()) -> list[str]:
    """The sides to time, the most telling first; ``only`` leaves out all others."""
    advice = places.read(name, "search").get("recommendation") or {}
    found = all_sides(device, advice.get("rest") or "eager")
    return [side for side in found if side == EAGER or not only or side in only]


def ahead_stage(name: str, side: str, size: Size, device: str, places: Places) -> None:
    """Compile one side in this process, so that its cache folder can be taken over."""
    stage = StageFile(places, name, f"ahead.{side}")
    stage.put(size=size)
    with stage.step("build"):
        case = build(name, size, device)
    with stage.step("compile"):
        kernels = kernels_of(places, name) if side.startswith("guarded") else Kernels()
        Sides(case, kernels, device).add(side)
    stage.put(done=True, step="done")


def time_stage(
    name: str,
    size: Size,
    device: str,
    places: Places,
    *,
    limit: float,
    seconds: float,
    only: Sequence[str] = (),
    need_ahead: bool = False,
    ends: float = math.inf,
) -> None:
    """Prepare as many sides as the limit allows, then time them all in turn.

    ``need_ahead`` leaves out what Inductor would have to compile here, where nothing can stop it.
    Where the limit is short the timing is too: a few samples of the first sides tell more than no
    side. ``ends`` is when the whole call ends, on the monotonic clock; waiting for the device
    counts against that alone.
    """
    end = time.monotonic() + limit
    stage = StageFile(places, name, "time")
    stage.put(**{k: v for k, v in places.read(name, "time").items() if k in _FIGURES})
    stage.put(size=size, sides={})
    with stage.step("build"):
        case = build(name, size, device)
        sides = Sides(case, kernels_of(places, name), device)
    wanted = wanted_sides(places, name, device, only)
    left_out = _not_compiled(places, name, wanted) if need_ahead else {}
    seconds, until = _shares(end - time.monotonic(), seconds)
    early = [s for s in wanted if s not in left_out]
    first, later = early[: 1 + FIRST], early[1 + FIRST :]
    left_out |= _prepare(sides, stage, first, until)
    if later and not stage.body.get("samples"):  # whatever the others do, these are compared
        stage.put(left_out=left_out, **_figures(sides, stage, min(QUICK_S, seconds), device))
    left_out |= _prepare(sides, stage, later, until)
    seconds = min(seconds, max(0.0, ends - time.monotonic() - RESERVE_S / 2))
    stage.put(**_figures(sides, stage, seconds, device))
    sides.leave()
    stage.put(left_out=left_out, done=TIME_OVER not in left_out.values(), step="done")


def _figures(sides: Sides, stage: StageFile, seconds: float, device: str) -> Body:
    """Samples of all sides that are ready, interleaved, and what else is told of them."""
    calls = {side: sides.side(side) for side in sides.calls}
    want = _floats(calls[EAGER]())
    differences = {side: _difference(want, _floats(call())) for side, call in calls.items()}
    with stage.measuring("time"):
        samples = _timed(calls, seconds)
    return {
        "samples": {side: [float(f"{s:.6g}") for s in taken] for side, taken in samples.items()},
        "differences": differences,
        "kernels": dict(sides.installed),
        "decided": dict(sides.decided),
        "told": dict(sides.told),
        "peak_gb": _peak_gb(device),
    }


def _not_compiled(places: Places, name: str, wanted: Sequence[str]) -> dict[str, str]:
    """Sides whose compile ahead did not come to its end."""
    found = {}
    alone = without_kernels(places.read(name, "search"))
    for side in (s for s in wanted if ahead_of(s, alone)):
        ahead = places.read(name, f"ahead.{ahead_of(side, alone)}")
        if not ahead.get("done"):
            found[side] = f"did_not_finish ({ahead.get('step', 'not begun')})"
    return found


def _shares(left: float, seconds: float) -> tuple[float, float]:
    """Seconds to time with so much time left, and until when sides may be prepared."""
    seconds = min(seconds, TIMING_SHARE * left)
    reserve = min(RESERVE_S, RESERVE_SHARE * left)
    return seconds, time.monotonic() + left - seconds - reserve


def _prepare(sides: Sides, stage: StageFile, wanted: Sequence[str], end: float) -> dict[str, str]:
    """Add one side after the other while there is time; why the others were left out.

    The plain eager side is always there, and one beside it, or nothing could be compared.
    """
    left_out: dict[str, str] = {}
    for side in wanted:
        took = [s for step, s in stage.body["seconds"].items() if step.startswith("prepare ")]
        if len(sides.calls) > 1 and time.monotonic() + LONGER * max(took, default=0.0) > end:
            left_out[side] = TIME_OVER
            continue
        try:
            with stage.step(f"prepare {side}"):
                sides.add(side)
        except Exception as problem:  # noqa: BLE001 - a side that fails is a row, not the end
            lines = str(problem).strip().splitlines() or [""]
            left_out[side] = f"failed: {type(problem).__name__}: {lines[0][:200]}"
            stage.put(left_out=left_out)
            _check_device(side, left_out[side])
    return left_out


def _check_device(side: str, why: str) -> None:
    """Raise where the failure of one side has left a device on which nothing can run any more."""
    if not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as problem:
        raise RuntimeError(f"the GPU is lost since preparing {side}, which {why}") from problem


def _timed(calls: Mapping[str, Any], seconds: float) -> dict[str, list[float]]:
    for call in calls.values():
        call()
    return interleave(calls, seconds=seconds, batch_seconds=SAMPLE_S, least=8, most=200)


def _floats(result: Any) -> torch.Tensor:
    return result.detach().double()


def _difference(want: torch.Tensor, found: torch.Tensor) -> float | None:
    """Relative distance in norm from the first eager output; None where it is not finite."""
    off = torch.linalg.vector_norm(found - want) / torch.linalg.vector_norm(want).clamp(min=1e-30)
    return float(off) if torch.isfinite(off) else None


def _peak_gb(device: str) -> float | None:
    if not device.startswith("cuda"):
        return None
    return round(torch.cuda.max_memory_allocated() / 1e9, 2)
