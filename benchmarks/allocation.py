"""Is the allocation worth it? ``python -m benchmarks.allocation [--seeds N] [--json [FILE]]``.

The paper gave each operation the same 50 iterations. Here both policies play the same runs over the
same non-vendor targets, with the recorded shares of the four models: ours, and uniform budgets. The
question is what part of the uniform budgets' full money ours needs to reach 95% of what they reach
with all of it. On the paper's shares the mean over models and seeds must be at most a half, and its
interval is shown; a seed where ours stops before it gets there counts as all of the money. Exits
with 1 otherwise.

The rows of each model stand beside it, with what uniform budgets themselves need to get there, how
often ours does, and what ours has spent and saved when it stops; so does a second record of the
models, which has few targets of like size and therefore little to allocate. With ``--runs`` the
candidates of real runs are played as well, in an order of each seed, and with ``--only-runs`` no
others; :mod:`benchmarks.recorded_runs` records such runs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.policies import tree_search
from benchmarks.recorded_runs import from_document
from benchmarks.report import Row, add_json_option, make_report, measure_row, write_report
from benchmarks.search import interval
from benchmarks.spenders import Attempt, Recorded, ours, uniform, usage_of
from benchmarks.workloads import WORKLOADS, SyntheticTarget, Workload, draw_targets

__all__ = ["BAR", "Outcome", "compare", "main", "pooled", "synthetic"]

HELD_OUT = 10_000
"""First of the seeds that figures are reported on; those before 1000 were for tuning."""

ITERATIONS = 50
REACH = 0.95
BAR = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed: money as parts of what uniform budgets spend in all, savings as parts of theirs.

    ``ours`` is what ours needs to reach 95% of their savings (1 where it never does), ``theirs``
    what they need themselves; ``at_stop`` and ``saved`` are where ours stops on its own.
    """

    ours: float
    theirs: float
    there: bool
    at_stop: float
    saved: float


def synthetic(workload: Workload, seed: int) -> list[Recorded]:
    """The targets of a workload, each searched to the end of its uniform budget."""
    return [_searched(target, seed) for target in draw_targets(workload, seed)]


def _searched(target: SyntheticTarget, seed: int) -> Recorded:
    found = tree_search(target.landscape, seed * 100 + target.index, ITERATIONS)
    rng = random.Random(f"{seed}/{target.index}/tokens")
    attempts = [
        Attempt(
            None if n.parent is None else f"{target.index}.{n.parent.partition('.')[2]}",
            n.action,
            n.evaluation,
            usage_of(rng),
            target.landscape.truth(found.points[n.id]) or 1.0,
        )
        for n in found.tree
        if n.evaluation is not None
    ]
    name, share = target.operation.name, target.operation.share
    family = name.partition(" ")[0]
    return Recorded(target.index, family, share, target.headroom, tuple(attempts))


def compare(records: Sequence[Recorded]) -> Outcome | None:
    """Both policies on the same runs; None where uniform budgets save nothing with all of it."""
    theirs = uniform(records)
    total, full = theirs.usd[-1], theirs.saved[-1]
    if full <= 0:
        return None
    mine = ours(records, total)
    need = mine.until(REACH * full)
    return Outcome(
        1.0 if need is None else need / total,
        (theirs.until(REACH * full) or total) / total,
        need is not None,
        (mine.usd[-1] if mine.usd else 0.0) / total,
        (mine.saved[-1] if mine.saved else 0.0) / full,
    )


def rows_of(name: str, found: Sequence[Outcome]) -> list[Row]:
    """What the report says of one workload."""
    mean, low, high = interval([o.ours for o in found])
    spread = statistics.quantiles([o.ours for o in found], n=10)
    n = len(found)
    rows = [
        measure_row(
            f"{name}: money for 95%",
            mean,
            "of uniform's total",
            low=low,
            high=high,
            n=n,
            p10=spread[0],
            p90=spread[-1],
            reached=sum(o.there for o in found) / n,
        )
    ]
    for label, unit, values in (
        ("uniform itself needs", "of uniform's total", [o.theirs for o in found]),
        ("spent when it stops", "of uniform's total", [o.at_stop for o in found]),
        ("saved when it stops", "of uniform's savings", [o.saved for o in found]),
    ):
        mean, low, high = interval(values)
        rows.append(measure_row(f"{name}: {label}", mean, unit, low=low, high=high, n=n))
    return rows


def pooled(source: str, found: Mapping[Workload, Sequence[Outcome]]) -> Row:
    """The four models together, each counting alike; the bar is on the paper's shares."""
    groups = [[o.ours for o in v] for w, v in found.items() if w.source == source]
    mean = statistics.mean(statistics.mean(g) for g in groups)
    errors = [statistics.variance(g) / len(g) for g in groups]
    error = 1.96 * math.sqrt(sum(errors)) / len(groups)
    row = measure_row(
        f"four models ({source}): money for 95%",
        mean,
        "of uniform's total",
        low=mean - error,
        high=mean + error,
        n=sum(map(len, groups)),
        models=len(groups),
    )
    return {**row, "bar": BAR, "ok": mean <= BAR} if source == "paper" else row


def _played(workload: Workload, seeds: Sequence[int]) -> list[Outcome]:
    found = (compare(synthetic(workload, seed)) for seed in seeds)
    return [o for o in found if o is not None]


def _rows_of_run(path: Path, seeds: Sequence[int]) -> list[Row]:
    """A recorded run in an order of each seed; one row that says so where it saved nothing."""
    document = json.loads(path.read_text())
    played = [compare(from_document(document, seed)) for seed in seeds]
    found = [o for o in played if o is not None]
    targets = from_document(document, seeds[0])
    size = {"targets": len(targets), "candidates": sum(len(t.attempts) for t in targets)}
    if len(found) < 2:
        return [measure_row(f"{path.name}: seeds that saved anything", len(found), "seeds", **size)]
    rows = rows_of(path.name, found)
    return [{**rows[0], **size}, *rows[1:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays all workloads; the status is 1 where the bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="seeds of each workload")
    parser.add_argument("--first", type=int, default=HELD_OUT, help="the first of them")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="run documents to play")
    parser.add_argument("--only-runs", action="store_true", help="leave the simulated runs out")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    found = {} if options.only_runs else {w: _played(w, seeds) for w in WORKLOADS}
    rows = [pooled(source, found) for source in ("paper", "profile")] if found else []
    for workload, outcomes in found.items():
        rows += rows_of(f"{workload.model} ({workload.source})", outcomes)
    for path in options.runs:
        rows += _rows_of_run(path, seeds)
    missed = [str(r["name"]) for r in rows if r.get("ok") is False]
    reached = "the bar is reached" if found else "there is no bar for single runs"
    notes = [
        f"seeds {seeds.start} to {seeds.stop - 1}; seeds in which uniform budgets save nothing "
        "with all of their money are left out (n counts the others)",
        f"missed: {', '.join(missed)}" if missed else reached,
    ]
    write_report(make_report("allocation", rows, notes=notes), options.json)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
