"""The search stage of ``gpu_models``: the product's own optimize run, with nothing picked by hand.

The run's store stays in the state folder. A run that was broken off is gone on with.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_models_cases import Size, build
from benchmarks.gpu_models_profile import target_bodies, workload_of
from benchmarks.gpu_models_state import Body, Places, StageFile
from kforge_nb.options import OptimizeOptions
from kforge_nb.run.confirming import again_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from kforge_nb.run.handle import Run

__all__ = ["Budget", "Diary", "fitted", "follow", "search_stage"]

CANDIDATES = 4000
LINES = 200
BEFORE_S = 45.0
"""What a run may take before it searches, where the model's profile does not tell."""
LATE_S = 45.0
"""Seconds by which a guard may end late, with what comes after it."""
LEAST_S = 10.0
LOOK_S = 3.0
"""Seconds between two looks at what a run is doing."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one optimize run may take: seconds of search and of the guard, its rest and baseline."""

    search: float = 240.0
    guard: float = 240.0
    rest: str = "auto"
    baseline: str = "compile"
    candidates: int = CANDIDATES


def fitted(budget: Budget, left: float, before: float) -> Budget:
    """As much search and guard as ``left`` seconds have room for, ``before`` being taken by others.

    A run that is broken off in its guard has decided nothing, so both are made shorter instead.
    """
    asked = budget.search + again_s(OptimizeOptions(time_limit=budget.search)) + budget.guard
    part = min(1.0, max(left - before - LATE_S, 0.0) / max(asked, 1e-9))
    if part == 1.0:
        return budget
    search, guard = (round(max(LEAST_S, part * s), 1) for s in (budget.search, budget.guard))
    return replace(budget, search=search, guard=guard)


def _before(profiled: Body) -> float:
    """Seconds until a run searches, as the profile stage took them."""
    if not profiled.get("done"):
        return BEFORE_S
    seconds = profiled["seconds"]
    return float(sum(seconds.get(step, 0.0) for step in ("watch", "capture", "profile")))


def search_stage(
    name: str, size: Size, device: str, places: Places, budget: Budget, limit: float = math.inf
) -> None:
    """Run ``kforge_nb.optimize`` on one model and write down what came of it.

    ``limit`` is when this process will be ended, seconds from now: the run is made to fit.
    """
    end = time.monotonic() + limit
    stage = StageFile(places, name, "search")
    stage.put(size=size)
    with stage.step("build"):
        case = build(name, size, device)
    budget = fitted(budget, end - time.monotonic(), _before(places.read(name, "profile")))
    stage.put(budget=[budget.search, budget.guard, budget.rest, budget.baseline])
    with stage.measuring("optimize"):
        with stage.step("profile"):  # what a run does before it searches in the background
            run = _run(name, workload_of(case), str(places.store(name)), budget)
        diary = Diary()
        follow(run, lambda status: stage.put(**diary.told(status), **_judged(run)))
    stage.put(**_found(run), done=run.state == "done", step=run.status())


class Diary:
    """When a run began to say something else, figures apart: where a broken-off run's time went."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begun = clock, clock()
        self._lines: list[tuple[float, str]] = []
        self._last = ""

    def told(self, status: str) -> Body:
        """``step`` is the status, ``diary`` its changes so far, each after so many seconds."""
        words = re.sub(r"[0-9]+", "", status)
        if words != self._last:
            self._last = words
            self._lines.append((round(self._clock() - self._begun, 1), status[:200]))
        return {"step": f"optimize: {status}", "diary": self._lines[-LINES:]}


def follow(run: Run, tell: Callable[[str], None], every: float = LOOK_S) -> None:
    """Wait for a run's end; what it is doing is told meanwhile, should it be broken off."""
    while True:
        tell(run.status())
        try:
            run.wait(every)
        except TimeoutError:
            continue
        return


def _run(name: str, fn: Callable[[], Any], store: str, budget: Budget) -> Run:
    import kforge_nb
    from kforge_nb.errors import BadInput

    try:
        run = kforge_nb.load_run(name, store=store)
    except BadInput:
        return kforge_nb.optimize(
            fn,
            name=name,
            store=store,
            budget=budget.candidates,
            time_limit=budget.search,
            guard_time=budget.guard,
            rest=budget.rest,
            baseline=budget.baseline,
            wait=False,
        )
    return run if run.state == "done" else kforge_nb.resume(name, fn, store=store)


def _judged(run: Run) -> Body:
    """The candidates that were judged so far."""
    document = run.document
    targets = {t["index"]: t for t in document["targets"]}
    return {"candidates": [_candidate(run, node, targets) for node in document["nodes"]]}


def _candidate(run: Run, node: Body, targets: Mapping[int, Body]) -> Body:
    """A judged candidate: its verdict, and the seconds that each step of the judge took."""
    evaluation = run.record.store.node(run.record.id, node["id"])["evaluation"] or {}
    return {
        "target": targets[node["target"]]["name"],
        **{key: node[key] for key in ("title", "verdict", "speedup", "created")},
        "reason": (node["reason"] or "")[:200],
        "seconds": {k: round(s, 2) for k, s in evaluation.get("seconds", {}).items()},
    }


def _by_rest(decisions: list[Body]) -> dict[str, list[int]]:
    """Of each rest that was measured the targets whose kernels it keeps."""
    found: dict[str, list[int]] = {}
    for decision in decisions:
        for entry in decision.get("rests", []):
            kept = found.setdefault(entry["rest"], [])
            kept.extend([decision["target"]] if entry["installed"] else [])
    return found


def _found(run: Run) -> Body:
    """Targets with their decisions, and what the guard says of the whole model."""
    document = run.document
    targets = {t["index"]: t for t in document["targets"]}
    nodes = {n["id"]: n for n in document["nodes"]}
    decisions = []
    for decision in document["decisions"]:
        target = targets[decision["target"]]
        node = nodes.get(decision["node"] or "")
        decisions.append(
            {
                **{k: target[k] for k in ("fingerprint", "name", "family", "share", "calls")},
                **{k: decision[k] for k in ("installed", "reason", "isolated", "in_model")},
                "rests": decision.get("rests", []),
                "title": node["title"] if node else None,
                "compile_us": node["compile_us"] if node else None,
            }
        )
    return {
        "state": run.state,
        "targets": target_bodies(document["targets"]),
        "wall_us": document["workload"]["wall_us"],
        "device_us": document["workload"]["device_us"],
        "installed": sum(1 for d in decisions if d["installed"]),
        "by_rest": _by_rest(document["decisions"]),
        "judged": len(nodes),
        **_judged(run),
        "decisions": decisions,
        "whole": document["whole"],
        "recommendation": document["recommendation"],
        "guard_fidelity": document["fidelity"],
        "notes": document["workload"].get("notes", []),
        "status": run.status(),
    }
