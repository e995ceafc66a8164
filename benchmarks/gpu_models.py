"""The paper's four models at real size on one GPU: profile, search, whole-model time, fidelity.

``python -m benchmarks.gpu_models [--list] [--stage STAGE ...] [--models NAME ...] [--json FILE]``

``--list`` profiles each model and lists the targets that make up 90% of the device time of all
non-vendor nodes. Each stage of each model is a child process with a time limit of its own; what it
leaves in the state folder is kept, also when it is stopped, and a stage that is done there is not
run again. ``--device cpu`` runs the tiny copies of the same models.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.gpu_models_cases import CASES
from benchmarks.gpu_models_profile import list_rows
from benchmarks.gpu_models_state import read_stage
from benchmarks.report import Row, add_json_option, make_report, measure_row, write_report

__all__ = ["main"]

STAGES = ("profile", "search", "time", "fidelity")
_GRACE_S = 5.0


def run_stage(name: str, stage: str, options: argparse.Namespace) -> str:
    """Run one stage of one model in a child where it is not done yet; says how that went."""
    if read_stage(options.state, name, stage).get("done"):
        return f"{name} {stage}: done before"
    left = options.deadline - time.monotonic()
    limit = min(options.time_limit, left)
    if limit < _GRACE_S:
        return f"{name} {stage}: not begun, the time is up"
    start = time.monotonic()
    how = _child(name, stage, options, limit)
    body = read_stage(options.state, name, stage)
    steps = " ".join(f"{k} {v:.0f}" for k, v in body.get("seconds", {}).items())
    said = "done" if body.get("done") else f"{how} while: {body.get('step', 'starting')}"
    return f"{name} {stage}: {said} in {time.monotonic() - start:.0f} s ({steps})"


def _child(name: str, stage: str, options: argparse.Namespace, limit: float) -> str:
    """Run the child; its output goes to a log in the state folder. Returns how it ended."""
    words = [name, stage, "--device", options.device, "--state", str(options.state)]
    words += ["--limit", f"{limit:.0f}"]
    root = Path(__file__).resolve().parent.parent
    log = options.state / f"{name}.{stage}.log"
    with log.open("w") as file, tempfile.TemporaryDirectory(prefix="kforge-ind-") as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONPATH": _path(root)}
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_models_child", *words],
            cwd=root,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=limit + _GRACE_S)
        except subprocess.TimeoutExpired:
            _stop(child)
            return f"did_not_finish within {limit:.0f} s"
        except BaseException:
            _stop(child)
            raise
    if code == 0:
        return "ended"
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"failed ({last[-1][:200] if last else f'exit {code}'})"


def _path(root: Path) -> str:
    return os.pathsep.join(p for p in (str(root), os.environ.get("PYTHONPATH", "")) if p)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Stop a child with everything that it started."""
    from signal import SIGKILL

    os.killpg(child.pid, SIGKILL)
    child.wait()


def _run(options: argparse.Namespace, stage: str, report: partial[None]) -> list[str]:
    """One stage of all models; a line for each as it ends, and the report written again."""
    lines = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(lambda name: run_stage(name, stage, options), options.models):
            print(line, file=sys.stderr, flush=True)
            lines.append(line)
            report()
    return lines


def _rows(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for name in options.models:
        body = read_stage(options.state, name, "profile")
        if body.get("done"):
            rows += list_rows(body)
        elif body:
            text = f"{name}: profile did_not_finish ({body.get('step', 'starting')})"
            rows.append(measure_row(text, sum(body["seconds"].values()), "s", model=name))
    return rows


def _write(options: argparse.Namespace, notes: Sequence[str], *, quiet: bool = False) -> None:
    """The report as far as it has come."""
    if quiet and options.json in (None, "-"):
        return
    notes = [*notes, *_notes(options)]
    report = make_report("gpu_models", _rows(options), notes=notes, gpu=_gpu(options))
    if quiet:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        write_quietly(report, Path(options.json))
        return
    write_report(report, options.json)


def write_quietly(report: dict[str, object], path: Path) -> None:
    """Write the report without printing it."""
    import json

    path.write_text(json.dumps(report, indent=1) + "\n")


def _notes(options: argparse.Namespace) -> list[str]:
    return [
        f"{name}: {note}"
        for name in options.models
        for note in read_stage(options.state, name, "profile").get("notes", [])
    ]


def _gpu(options: argparse.Namespace) -> str | None:
    """Name of the GPU that was measured, as the profiles of this state folder say."""
    for name in options.models:
        found = read_stage(options.state, name, "profile").get("device", {}).get("name")
        if found:
            return str(found)
    return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(parser)
    parser.add_argument("--list", action="store_true", help="profile, and list the targets")
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--stage", nargs="*", default=list(STAGES), choices=STAGES)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for tiny models")
    parser.add_argument("--state", type=Path, help="folder of results, to go on with later")
    parser.add_argument("--time-limit", type=float, default=240.0, help="s for one stage")
    parser.add_argument("--total", type=float, default=530.0, help="s for this whole call")
    parser.add_argument("--jobs", type=int, default=1, help="models built and traced at once")
    options = parser.parse_args()
    options.deadline = time.monotonic() + options.total
    return options


def main() -> int:
    """Run the benchmark."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="kforge-models-") as scratch:
        options.state = options.state or Path(scratch)
        options.state.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        for stage in ("profile",) if options.list else options.stage:
            lines += _run(options, stage, partial(_write, options, lines, quiet=True))
        _write(options, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
