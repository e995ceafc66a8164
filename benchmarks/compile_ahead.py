"""How long the notebook's first call through Inductor takes, cold and after a compile ahead.

``python -m benchmarks.compile_ahead MODEL [--json FILE]``: each side runs in a process of its own
with an empty cache folder, as a fresh notebook on a fresh machine would.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks.models import MODELS, build
from benchmarks.report import add_json_option, make_report, measure_row, write_report

__all__ = ["main"]


def _measure(name: str, ahead: bool) -> dict[str, Any]:
    """Seconds of the first call through Inductor in this process, and of the child before it."""
    from torch._dynamo.utils import counters

    from kforge_nb.guard.ahead import Ahead
    from kforge_nb.guard.measure import Model, Timer
    from kforge_nb.workload.capture import watch

    case = build(name)

    def cell() -> Any:
        with torch.no_grad():
            return case.run(case.model)

    calls = watch(cell).calls
    eager = Model.of(calls, [], "eager")
    eager.run(frozenset())
    child, why = Ahead(), ""
    if ahead:
        why = child.compile(eager.backend.sites, frozenset(), Timer.of(900))
    spent = {}
    for rest in ("eager", "inductor"):
        start = time.perf_counter()
        Model.of(calls, [], rest).run(frozenset())
        spent[rest] = time.perf_counter() - start
    found = {key: counters["inductor"][f"fxgraph_cache_{key}"] for key in ("hit", "miss")}
    return {**spent, "child": child.seconds, "why": why, **found}


def _apart(name: str, ahead: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "benchmarks.compile_ahead", name, "--one"]
        done = subprocess.run(
            [*command, "ahead" if ahead else "cold"],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=True,
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure one model and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    add_json_option(parser)
    parser.add_argument("--one", choices=("cold", "ahead"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_measure(options.model, options.one == "ahead")))
        return
    rows = []
    for ahead in (False, True):
        found = _apart(options.model, ahead)
        label = "after a compile ahead" if ahead else "cold"
        rows.append(measure_row(f"{options.model}: tracing alone", found["eager"], "s"))
        rows.append(measure_row(f"{options.model}: first call, {label}", found["inductor"], "s"))
        if ahead:
            rows.append(measure_row(f"{options.model}: the child", found["child"], "s"))
            rows.append(measure_row(f"{options.model}: cache hits", found["hit"], "graphs"))
            rows.append(measure_row(f"{options.model}: cache misses", found["miss"], "graphs"))
    write_report(make_report("compile_ahead", rows), options.json)


if __name__ == "__main__":
    main()
