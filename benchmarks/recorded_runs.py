"""Runs that really took place, from run documents, played again in many orders.

``python -m benchmarks.recorded_runs MODEL FILE [--budget N] [--time-limit SECONDS]`` records one on
the CPU: the recipes on a model of :mod:`benchmarks.models`, saved without sources.

A run document holds each target's candidates with their verdicts and speed-ups. In which order they
came was partly luck, so for each seed they come in another one, parents before their children.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.spenders import Attempt, Recorded, usage_of
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict

__all__ = ["from_document", "main"]


def from_document(document: Mapping[str, Any], seed: int) -> list[Recorded]:
    """The non-vendor targets of a run that had candidates, these in an order of the seed."""
    found = []
    for target in document["targets"]:
        nodes = [n for n in document["nodes"] if n["target"] == target["index"]]
        if target["vendor"] or not nodes:
            continue
        rng = random.Random(f"{seed}/{target['index']}")
        found.append(
            Recorded(
                target["index"],
                target["family"],
                target["share"] or 0.0,
                target["headroom"] or 1.5,
                _attempts(nodes, target["index"], rng),
            )
        )
    return found


def _attempts(nodes: list[Any], target: int, rng: random.Random) -> tuple[Attempt, ...]:
    waiting = list(nodes)
    ids: dict[str | None, str | None] = {None: None}
    attempts: list[Attempt] = []
    while waiting:
        node = rng.choice([n for n in waiting if n["parent"] in ids])
        waiting.remove(node)
        ids[node["id"]] = f"{target}.{len(attempts)}"
        attempts.append(
            Attempt(
                ids[node["parent"]],
                node["action"],
                _evaluation(node),
                usage_of(rng),
                node["speedup"] or 1.0,
            )
        )
    return tuple(attempts)


def _evaluation(node: Mapping[str, Any]) -> Evaluation:
    ratio = node["speedup"]
    if ratio is None:
        return Evaluation(Verdict(node["verdict"]), node["reason"])
    low, high = node["low"] or ratio, node["high"] or ratio
    times = node["ours_us"] or 0.0, node["eager_us"] or 0.0
    timing = Comparison("eager", ratio, low, high, 1, *times)
    return Evaluation(Verdict(node["verdict"]), node["reason"], timings=(timing,))


def main(arguments: Sequence[str] | None = None) -> int:
    """Records one run; the status is 1 where it did not end in order."""
    import torch

    import kforge_nb
    from benchmarks.models import MODELS, build

    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorded_runs")
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("file", type=Path)
    parser.add_argument("--budget", type=int, default=40, help="candidates judged")
    parser.add_argument("--time-limit", type=float, help="seconds of the search")
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    case = build(options.model)

    def workload() -> Any:
        with torch.inference_mode():
            return case.run(case.model)

    with TemporaryDirectory(prefix="kforge-record-") as folder:
        run = kforge_nb.optimize(
            workload,
            name=options.model,
            store=folder,
            budget=options.budget,
            time_limit=options.time_limit,
            rest="eager",
            baseline="eager",
            guard_time=5,
            wait=True,
        )
        run.save(options.file, redact=True)
    sys.stdout.write(f"{run.status()}\n")
    return 0 if run.state == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
