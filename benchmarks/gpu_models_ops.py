"""Each listed target of one model by itself: eager, torch.compile (max-autotune) and our kernel.

The targets are those of the list (90% of what no vendor library computes), on the inputs that the
model gave them. *Ours* is the winner of the model's run, launched through the launch op; a target
without one keeps its original, and then ours is eager. On a GPU the times are the device's, with a
cold cache, all sides of a target in the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu_models_cases import Size, build
from benchmarks.gpu_models_profile import list_rows, workload_of
from benchmarks.gpu_models_state import Body, Places, StageFile
from benchmarks.timing import Comparison, compare, interleave

if TYPE_CHECKING:
    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.targets.target import Target

__all__ = ["ops_stage", "winners_of"]

Calls = Mapping[str, Callable[[], Any]]
BATCH_US = 2500.0
ROUNDS = 30
CPU_S = 0.3


def winners_of(places: Places, name: str) -> dict[str, Accepted]:
    """The confirmed winners of the model's run by fingerprint, installed or not."""
    import kforge_nb
    from kforge_nb.errors import BadInput
    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.run.building import INSTALLABLE, build_for_model
    from kforge_nb.run.guarding import winner_of
    from kforge_nb.run.reload import works_of

    try:
        record = kforge_nb.load_run(name, store=places.store(name)).record
    except BadInput:
        return {}
    found = {}
    for work in works_of(record):
        node = winner_of(work)
        if node is not None and (candidate := work.candidate(node)).language in INSTALLABLE:
            library = build_for_model(candidate, work.target)
            found[work.target.fingerprint] = Accepted.of_target(work.target, candidate, library)
    return found


def ops_stage(name: str, size: Size, device: str, places: Places, limit: float) -> None:
    """Time the listed targets, largest share first, until all are done or the limit is near."""
    end = time.monotonic() + limit - 5.0
    stage = StageFile(places, name, "ops")
    listed = _listed(places, name)
    with stage.step("build"):
        targets = _targets(name, size, device)
        winners = winners_of(places, name)
    timer = _OnGpu() if device.startswith("cuda") else _OnCpu()
    rows: list[Body] = []
    for row in listed:
        target = targets.get(row["fingerprint"])
        if target is None or time.monotonic() > end:
            continue
        with torch.inference_mode():
            rows.append(
                {**_one(target, winners.get(target.fingerprint), timer, places), **_of(row)}
            )
        stage.put(rows=rows, step=f"{len(rows)} of {len(listed)} targets timed")
    stage.put(rows=rows, listed=len(listed), done=bool(listed) and len(rows) == len(listed))


def _listed(places: Places, name: str) -> list[Body]:
    """The list by the model's profile, or by its run where it was not profiled by itself."""
    for stage in ("profile", "search"):
        body = places.read(name, stage)
        if body.get("done"):
            return [row for row in list_rows(body) if "fingerprint" in row]
    return []


def _of(row: Body) -> Body:
    kept = ("fingerprint", "family", "variant", "calls")
    return {"share": row["value"], **{key: row[key] for key in kept}}


def _targets(name: str, size: Size, device: str) -> dict[str, Target]:
    from kforge_nb.targets.build import find_targets
    from kforge_nb.workload.capture import capture_graphs, watch

    workload = capture_graphs(watch(workload_of(build(name, size, device))))
    return {target.fingerprint: target for target in find_targets(workload)}


def _one(target: Target, winner: Accepted | None, timer: Any, places: Places) -> Body:
    """One target's figures; what cannot be compiled, launched or timed is told in ``problem``."""
    body: Body = {"name": target.name, "kernel": winner is not None, "problem": ""}
    if target.captured is None or not len(target.captured):
        return {**body, "problem": "no inputs were captured"}
    inputs = target.captured.sets()[0]
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: target.graph.forward(*inputs)}
    try:
        calls["compile"] = _compiled(target, inputs, timer.mode)
    except Exception as problem:  # noqa: BLE001 - a baseline that fails is told in the row
        body["problem"] = f"compile: {type(problem).__name__}: {str(problem)[:200]}"
    if winner is not None:
        calls["ours"] = _launched(winner, inputs)
    try:
        with places.device():
            found = timer.compared(calls)
    except RuntimeError as problem:
        return {**body, "problem": f"timing: {str(problem)[:200]}"}
    return {**body, **found}


def _compiled(target: Target, inputs: list[torch.Tensor], mode: str | None) -> Callable[[], Any]:
    compiled = torch.compile(target.graph, dynamic=False, mode=mode)
    compiled(*inputs)
    return lambda: compiled(*inputs)


def _launched(winner: Accepted, inputs: list[torch.Tensor]) -> Callable[[], Any]:
    handle = winner.register(shadow=0)
    launch = torch.ops.kforge.launch
    launch(inputs, handle)
    return lambda: launch(inputs, handle)


def _figures(found: Mapping[str, Comparison]) -> Body:
    return {
        other: {
            "ratio": c.ratio,
            "low": c.low,
            "high": c.high,
            "n": c.n,
            "ours_us": c.ours_us,
            "against_us": c.against_us,
        }
        for other, c in found.items()
    }


class _OnCpu:
    """Wall time, all sides of a target interleaved."""

    mode: str | None = None

    def compared(self, calls: Calls) -> Body:
        samples = interleave(calls, seconds=CPU_S, least=8, most=60)
        ours = "ours" if "ours" in samples else "eager"
        others = [side for side in ("eager", "compile") if side in samples]
        return _figures({side: compare(samples[ours], samples[side]) for side in others})


class _OnGpu:
    """Device time by replays of CUDA graphs with a flushed cache."""

    mode: str | None = "max-autotune-no-cudagraphs"

    def __init__(self) -> None:
        from benchmarks.gpu_timing import Flush
        from kforge_nb.settings import cache_dir

        self._flush = Flush(cache_dir() / "cuda")

    def compared(self, calls: Calls) -> Body:
        from benchmarks.gpu_timing import against, capture, quick_us, rounds

        once = capture(calls["eager"], self._flush, 2)
        repeats = max(4, min(64, int(BATCH_US / max(quick_us(once, 2, 0.0), 1.0))))
        graphs = {side: capture(call, self._flush, repeats) for side, call in calls.items()}
        graphs["empty"] = capture(None, self._flush, repeats)
        samples = rounds(graphs, repeats, ROUNDS)
        ours = "ours" if "ours" in calls else "eager"
        others = [side for side in ("eager", "compile") if side in calls]
        return _figures({side: against(samples, ours, side) for side in others})
