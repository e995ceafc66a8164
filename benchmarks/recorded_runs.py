"""Runs that really took place, from run documents, played again in many orders.

A run document holds each target's candidates with their verdicts and speed-ups. In which order they
came was partly luck, so for each seed they come in another one, parents before their children.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from benchmarks.spenders import Attempt, Recorded, usage_of
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict

__all__ = ["from_document"]


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
