"""Is the tree search worth it? ``python -m benchmarks.search [--seeds N] [--json [FILE]]``.

Each policy gets the same number of evaluations on each of many seeds of each landscape, and is held
to what it would install: the true speed-up of its best candidate as measured. A ratio is the
geometric mean over the seeds of ours over another policy's, with the 95% interval of the paired
differences. On the deep and on the deceptive landscape ours must be better than each other policy;
on the flat, the noisy and the mostly failing one it must be within noise of the best of them: the
interval reaches 1, or the mean is less than a percent behind. Exits with 1 where that is not so.

The seeds are none that anything was tuned on (those are 0 to 199; see docs/decisions/019).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.landscapes import LANDSCAPES, Landscape
from benchmarks.policies import POLICIES
from benchmarks.report import Row, add_json_option, make_report, measure_row, write_report

__all__ = ["HELD_OUT", "Verdict", "judge", "main", "scores"]

HELD_OUT = 20_000
"""First of the seeds that figures are reported on."""

BUDGET = 60
EAGER_US = 100.0
OURS = "tree search"
TO_BEAT = ("deep good parent", "deceptive")
NOISE = math.log(1.01)
_T = 1.96


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ours against one policy on one landscape, as logarithms; ``ok`` is what was asked for."""

    landscape: str
    against: str
    mean: float
    low: float
    high: float
    ok: bool | None


def scores(
    landscape: Callable[[int], Landscape], policy: str, seeds: Iterable[int], budget: int = BUDGET
) -> list[float]:
    """Log speed-up that a policy would install, by seed."""
    run = POLICIES[policy]
    return [math.log(run(landscape(s), s, budget).reached) for s in seeds]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its 95% interval."""
    mean = statistics.mean(values)
    error = _T * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - error, mean + error


def judge(name: str, found: dict[str, list[float]]) -> list[Verdict]:
    """Ours against each other policy; the bar is for all of them, or for the best of them."""
    others = [p for p in found if p != OURS]
    strongest = max(others, key=lambda p: statistics.mean(found[p]))
    verdicts = []
    for other in others:
        gaps = [a - b for a, b in zip(found[OURS], found[other], strict=True)]
        mean, low, high = interval(gaps)
        if name in TO_BEAT:
            ok: bool | None = low > 0
        else:
            ok = (high >= 0 or mean > -NOISE) if other == strongest else None
        verdicts.append(Verdict(name, other, mean, low, high, ok))
    return verdicts


def rows_of(name: str, optimum: list[float], found: dict[str, list[float]]) -> list[Row]:
    """What the report says of one landscape."""
    rows: list[Row] = []
    times = {p: EAGER_US / math.exp(statistics.mean(v)) for p, v in found.items()}
    for policy, values in found.items():
        part = [v / o for v, o in zip(values, optimum, strict=True)]
        mean, low, high = interval(part)
        rows.append(
            measure_row(
                f"{name}: {policy}",
                mean,
                "of the optimum's log speed-up",
                low=low,
                high=high,
                n=len(values),
                near=sum(p > 0.9 for p in part) / len(part),
            )
        )
    rows.extend(
        {
            "name": f"{name}: {OURS}",
            "against": v.against,
            "ratio": math.exp(v.mean),
            "low": math.exp(v.low),
            "high": math.exp(v.high),
            "n": len(found[OURS]),
            "ours_us": times[OURS],
            "against_us": times[v.against],
            "bar": "better" if name in TO_BEAT else "within noise of the best",
            "ok": v.ok,
        }
        for v in judge(name, found)
    )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all landscapes; the status is 1 where a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="seeds of each landscape")
    parser.add_argument("--first", type=int, default=HELD_OUT, help="the first of them")
    parser.add_argument("--budget", type=int, default=BUDGET, help="evaluations of each search")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    rows: list[Row] = []
    for make in LANDSCAPES:
        found = {p: scores(make, p, seeds, options.budget) for p in POLICIES}
        optimum = [math.log(make(s).optimum) for s in seeds]
        rows += rows_of(make(0).name, optimum, found)
    missed = [f"{r['name']} against {r['against']}" for r in rows if r.get("ok") is False]
    notes = [
        f"{options.budget} evaluations for each policy, seeds {seeds.start} to {seeds.stop - 1}; "
        f"times are those of a kernel whose eager call takes {EAGER_US:g} us",
        f"missed: {', '.join(missed)}" if missed else "every bar is reached",
    ]
    write_report(make_report("search", rows, notes=notes), options.json)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
