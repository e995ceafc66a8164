"""The paper's four models at real size on one GPU: profile, search, whole-model time, fidelity.

``python -m benchmarks.gpu_models [--list] [--stage STAGE ...] [--models NAME ...] [--json FILE]
[--tables FILE] [--state FOLDER]``

``--list`` profiles each model and lists the targets that make up 90% of the device time of all
non-vendor nodes. The stages are the product's own profile; its own ``optimize`` run with nothing
picked by hand; the whole model in every way a user could run it, interleaved in one process, and
its listed targets alone; and fidelity against float64. Each stage of each model is a child process
with a time limit of its own; what it leaves in the state folder is kept, also when it is stopped,
and a stage that is done there is not run again. ``--device cpu`` runs tiny copies of the models,
with ``--size deep`` all layers of them: graphs of the real number of nodes, next to no arithmetic.

Exit status 1: a bar that this report can answer is missed (only at real size); 2: there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu_models_bars import bar_rows
from benchmarks.gpu_models_cases import CASES, size_for
from benchmarks.gpu_models_rows import rows_of
from benchmarks.gpu_models_run import COMPILE_S, run_stages
from benchmarks.gpu_models_state import Places
from benchmarks.gpu_models_tables import tables
from benchmarks.report import add_json_option, make_report, write_report

__all__ = ["main"]

STAGES = ("profile", "search", "time", "fidelity")


def _report(options: argparse.Namespace, lines: Sequence[str]) -> dict[str, Any]:
    """The report as far as it has come."""
    places: Places = options.places
    rows = [row for name in options.models for row in rows_of(places, name)]
    if not options.list and size_for(options.device, options.size) == "real":
        rows += bar_rows(rows, options.models)
    notes = [*lines, *_notes(places, options.models)]
    return make_report("gpu_models", rows, notes=notes, gpu=_gpu(places, options.models))


def _notes(places: Places, models: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in models:
        for stage in ("profile", "search"):
            for note in places.read(name, stage).get("notes", []):
                found[f"{name}: {note}"] = None
        for side, why in places.read(name, "time").get("told", {}).items():
            found.update({f"{name}: {side}: {text}": None for text in why})
    return list(found)


def _gpu(places: Places, models: Sequence[str]) -> str | None:
    """Name of the GPU that was measured, as the profiles of this state folder say."""
    known = (places.read(name, "profile").get("device", {}).get("name") for name in models)
    return next((str(name) for name in known if name), None)


def _keep(options: argparse.Namespace, lines: Sequence[str]) -> None:
    """Write the report as far as it has come, so that a call that is stopped leaves it."""
    if options.json not in (None, "-"):
        path = Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_report(options, lines), indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(parser)
    add = parser.add_argument
    add("--list", action="store_true", help="profile, and list the targets")
    add("--tables", metavar="FILE", help="write the two Markdown tables here, - to print them")
    add("--models", nargs="*", default=list(CASES), choices=list(CASES), metavar="NAME")
    add("--stage", nargs="*", default=list(STAGES), choices=STAGES)
    add("--device", default="cuda", help="cuda, cuda:N, or cpu for tiny models")
    add("--size", default="", choices=("real", "deep", "tiny"), help="without: as the device asks")
    add("--state", type=Path, help="folder of results, to go on with later")
    add("--work", type=Path, help="folder of stores and caches, in the state folder if left out")
    add("--time-limit", type=float, default=520.0, help="s for one stage of one model")
    add("--total", type=float, default=530.0, help="s for this whole call")
    add("--jobs", type=int, default=1, help="models at once; only one of them measures at a time")
    add("--search-time", type=float, default=240.0, help="s that an optimize run may search")
    add("--guard-time", type=float, default=240.0, help="s that its guard may measure")
    add("--rest", default="auto", help="rest of the optimize run")
    add("--baseline", default="compile", help="what its winners are timed against")
    add("--candidates", type=int, default=4000, help="candidates it may judge")
    add("--seconds", type=float, default=30.0, help="s of timing of the whole model")
    add("--sides", nargs="*", default=[], metavar="SIDE", help="only these beside eager")
    add("--compile-limit", type=float, default=COMPILE_S, help="s that a baseline may compile")
    add("--overlap", action="store_true", help="compile baselines while the search runs")
    add("--no-ahead", dest="ahead", action="store_false", help="compile where it is timed")
    add("--no-ops", dest="ops", action="store_false", help="leave out the targets alone")
    return parser.parse_args()


def _run(options: argparse.Namespace) -> list[str]:
    """All models; what each stage said."""
    lines: list[str] = []

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        lines.append(line)
        _keep(options, lines)

    stages = ("profile",) if options.list else tuple(options.stage)
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = [pool.submit(run_stages, name, stages, options, tell) for name in options.models]
        for job in jobs:
            job.result()
    return lines


def _no_gpu(options: argparse.Namespace) -> str:
    """Why nothing can be measured; empty where there is a GPU, or results to go on with."""
    import torch

    if not options.device.startswith("cuda") or options.state or torch.cuda.is_available():
        return ""
    return (
        f"--device {options.device} needs a GPU, and torch sees none here; --device cpu runs tiny "
        "copies of the models, and --state FOLDER tells what was measured elsewhere"
    )


def main() -> int:
    """Run the benchmark."""
    options = _options()
    if why := _no_gpu(options):
        print(why, file=sys.stderr)
        return 2
    options.deadline = time.monotonic() + options.total
    with tempfile.TemporaryDirectory(prefix="kforge-models-") as scratch:
        state = options.state or Path(scratch)
        options.places = Places(state.absolute(), (options.work or state / "work").absolute())
        for folder in (options.places.state, options.places.work):
            folder.mkdir(parents=True, exist_ok=True)
        lines = _run(options)
        report = _report(options, lines)
        write_report(report, options.json)
        if options.tables:
            text = tables(report["rows"], options.places, options.models)
            _show(text, options.tables)
    return 1 if any(row.get("reached") is False for row in report["rows"]) else 0


def _show(text: str, target: str) -> None:
    if target == "-":
        sys.stdout.write(text)
        return
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
