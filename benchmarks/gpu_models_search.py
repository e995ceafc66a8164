"""The search stage of ``gpu_models``: the product's own optimize run, with nothing picked by hand.

The run's store stays in the state folder. A run that was broken off is gone on with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_models_cases import Size, build
from benchmarks.gpu_models_profile import target_bodies, workload_of
from benchmarks.gpu_models_state import Body, Places, StageFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from kforge_nb.run.handle import Run

__all__ = ["Budget", "Diary", "follow", "search_stage"]

CANDIDATES = 4000
LINES = 200
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


def search_stage(name: str, size: Size, device: str, places: Places, budget: Budget) -> None:
    """Run ``kforge_nb.optimize`` on one model and write down what came of it."""
    stage = StageFile(places, name, "search")
    stage.put(size=size, budget=[budget.search, budget.guard, budget.rest, budget.baseline])
    with stage.step("build"):
        case = build(name, size, device)
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
