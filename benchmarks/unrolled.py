"""Seconds of each stage on graphs of Qwen 3.5's make-up: 4,000, 12,000 and 32,000 nodes.

What a model that Dynamo unrolls goes through between its trace and its first guarded call, stage by
stage, on tensors of a few numbers: what is left is the cost of a node. A row holds the seconds of
processor time and the node count; ``growth`` rows the exponent between the smallest graph and the
largest (1 is linear). Tracing is Dynamo's own, and is timed for one period only.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.report import Row, add_json_option, make_report, measure_row, write_report
from benchmarks.unrolled_model import repeated, unrolled
from kforge_nb.guard import launch
from kforge_nb.guard.ahead_graph import graph_to_rows, rows_to_graph
from kforge_nb.targets.build import find_targets
from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.fingerprint import fingerprint
from kforge_nb.targets.observe import observe
from kforge_nb.targets.operators import describe
from kforge_nb.targets.partition import Cut, cut
from kforge_nb.targets.regions import find_regions
from kforge_nb.targets.rewrite import Replacement, replace
from kforge_nb.targets.schedule import Schedule
from kforge_nb.workload.capture import Workload
from kforge_nb.workload.collection import quiet_gc

__all__ = ["Stages", "main", "stages"]

SIZES = (4_000, 12_000, 32_000)
Stages = dict[str, Callable[[], Any]]


def stages(workload: Workload) -> Stages:
    """What is timed, by name, in order; later stages use what earlier ones made."""
    (graph,) = workload.graphs
    gm, inputs, made = graph.gm, graph.example_inputs, dict[str, Any]()

    def kept(name: str, value: Any) -> Any:
        made[name] = value
        return value

    def names() -> list[str]:
        return [fingerprint(c.flow, c.nodes, c.inputs, c.outputs) for c in made["cuts"]]

    fakes = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    return {
        "observe": lambda: observe(gm, inputs, [describe(n) for n in gm.graph.nodes]),
        "observe, fake": lambda: observe(gm, fakes, [describe(n) for n in gm.graph.nodes]),
        "analyse": lambda: kept("flow", analyse(gm, inputs)),
        "grow regions": lambda: find_regions(made["flow"], Schedule(made["flow"].deps)),
        "cut": lambda: kept("cuts", cut(gm, inputs, vendor=True)),
        "fingerprint": names,
        "find targets": lambda: find_targets(workload, vendor=True),
        "find targets, op by op": lambda: find_targets(workload, "op", vendor=True),
        "rewrite, all regions": lambda: replace(gm, _swaps(made["cuts"])),
        "rewrite, norms alone": lambda: replace(gm, _swaps(made["cuts"], "rms_norm")),
        "to rows": lambda: kept("rows", graph_to_rows(gm)),
        "from rows": lambda: rows_to_graph(made["rows"]),
    }


def _swaps(cuts: list[Cut], family: str = "") -> list[Replacement]:
    op = torch.ops.kforge.launch.default
    chosen = [c for c in cuts if not c.vendor and family in ("", c.family)]
    return [Replacement(c, op, (0,), packed=True) for c in chosen]


def _seconds(run: Callable[[], Any]) -> float:
    with quiet_gc():
        start = time.process_time()
        run()
        return time.process_time() - start


def rows_of(sizes: tuple[int, ...], rounds: int) -> list[Row]:
    """The rows of all sizes: the least of some rounds, as other work only ever adds to it."""
    start = time.process_time()
    period = unrolled()
    count = len(period.gm.graph.nodes)
    rows = [measure_row(f"trace one period of {count} nodes", time.process_time() - start, "s")]
    found: dict[str, list[tuple[int, float]]] = {}
    for size in sizes:
        workload = repeated(period, max(1, round(size / count)))
        nodes = len(workload.graphs[0].gm.graph.nodes)
        for name, run in stages(workload).items():
            seconds = min(_seconds(run) for _ in range(rounds))
            found.setdefault(name, []).append((nodes, seconds))
            rows.append(measure_row(f"{name}: {nodes} nodes", seconds, "s", n=rounds, nodes=nodes))
    return rows + [
        measure_row(f"growth of {name}", _exponent(points), "")
        for name, points in found.items()
        if len(points) > 1
    ]


def _exponent(points: list[tuple[int, float]]) -> float:
    (small, least), (large, most) = points[0], points[-1]
    return math.log(max(most, 1e-9) / max(least, 1e-9)) / math.log(large / small)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES, help="about so many each")
    parser.add_argument("--rounds", type=int, default=2)
    add_json_option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    launch.load()
    rows = rows_of(tuple(given.nodes), given.rounds)
    write_report(make_report("unrolled", rows), given.json)


if __name__ == "__main__":
    main()
