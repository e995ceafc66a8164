"""The profile stage of ``gpu_models``: the product's own profile of one model, and the list.

The list is the targets, largest first, that make up 90% of the device time of all non-vendor
nodes that the product cuts. What no target covers (operators that it leaves to torch) is a row of
its own: the profiler's device time less every target's, where that is more than nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu_models_cases import Size, build
from benchmarks.gpu_models_state import Body, Places, StageFile
from benchmarks.models import Case
from benchmarks.report import Row, measure_row

if TYPE_CHECKING:
    from kforge_nb.profile.table import Profile

__all__ = ["COVERED", "list_rows", "profile_stage", "target_bodies", "workload_of"]

COVERED = 0.9
PROFILE_S = 2.0
_CODE = 4000


def workload_of(case: Case) -> Callable[[], Any]:
    """The cell that a user would run."""

    def run() -> Any:
        with torch.inference_mode():
            return case.run(case.model)

    return run


def profile_stage(name: str, size: Size, device: str, places: Places) -> None:
    """Build, trace and profile one model; writes the stage's file."""
    from kforge_nb.profile.profile import profile
    from kforge_nb.workload.capture import capture_graphs, watch

    stage = StageFile(places, name, "profile")
    stage.put(size=size)
    with stage.step("build"):
        case = build(name, size, device)
    with stage.step("watch"):
        workload = watch(workload_of(case))
    with stage.step("capture"):
        capture_graphs(workload)
    stage.put(
        parameters=sum(p.numel() for p in case.model.parameters()),
        graphs=[_calls_in(g.gm) for g in workload.graphs],
        notes=list(workload.notes),
    )
    with stage.measuring("profile"):
        found = profile(workload, "region", seconds=PROFILE_S, layout="auto")
    stage.put(**_summary(found), done=True, step="done")


def _calls_in(gm: torch.fx.GraphModule) -> int:
    return sum(1 for n in gm.graph.nodes if n.op.startswith("call"))


def _summary(found: Profile) -> Body:
    return {
        "wall_us": found.wall_us,
        "device_us": found.device_us,
        "launch_bound": found.launch_bound,
        "device": found.device,
        "notes": list(found.notes),
        "targets": target_bodies([row.to_document() for row in found.rows]),
    }


def target_bodies(documents: Sequence[Body]) -> list[Body]:
    """What is kept of the targets of a profile, or of a run: a few modules, not all of the code."""
    return [_target(document) for document in documents]


def _target(document: Body) -> Body:
    kept = ("index", "fingerprint", "name", "family", "vendor", "calls", "mean_us", "share",
            "bytes", "flops", "roofline_us", "headroom", "ceiling", "variant")  # fmt: skip
    return {
        **{key: document[key] for key in kept},
        "modules": document["modules"][:3],
        "code": document["code"][:_CODE],
    }


def list_rows(body: Body) -> list[Row]:
    """The rows of one profiled model: its times, then the listed targets, largest first."""
    name = body["model"]
    targets = body.get("targets", [])
    timed = [t for t in targets if t["mean_us"] is not None]
    ours = sorted((t for t in timed if not t["vendor"]), key=_time_of, reverse=True)
    vendor = sum(_time_of(t) for t in timed if t["vendor"])
    cut = sum(_time_of(t) for t in ours)
    left = max(body["device_us"] - vendor - cut, 0.0)
    rows = [
        measure_row(f"{name}: {what}", value, "us", model=name)
        for what, value in (
            ("wall", body["wall_us"]),
            ("device", body["device_us"]),
            ("vendor targets", vendor),
            ("other targets", cut),
            ("in no target", left),
        )
    ]
    return rows + _covering(name, ours, cut)


def _time_of(target: Body) -> float:
    return float(target["mean_us"] * target["calls"])


def _covering(name: str, ours: Sequence[Body], whole: float) -> list[Row]:
    """Targets, largest first, until 90% of the whole is reached."""
    rows: list[Row] = []
    reached = 0.0
    for target in ours:
        if reached >= COVERED * whole:
            break
        reached += _time_of(target)
        kept = ("fingerprint", "family", "variant", "calls", "mean_us", "headroom")
        rows.append(
            measure_row(
                f"{name}: {target['name']}",
                _time_of(target) / whole,
                "share",
                model=name,
                cumulative=reached / whole,
                **{key: target[key] for key in kept},
            )
        )
    return rows
