"""Every CUDA recipe against eager and torch.compile on the operators of four real models.

``python -m benchmarks.gpu_ops [--quick] [--only TEXT] [--no-compile] [--json FILE]`` takes under
nine minutes on one GPU and needs torch, CuPy and NVRTC, nothing built. Each row says how many times
faster the best of a few parameter sets is, and what share of a plain copy's bandwidth it reaches
with the least bytes possible. Ratios are of device time with a cold cache (see ``gpu_timing``). A
row for each bar says whether it is reached; the exit status is 0 only if all that were asked for
are.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_op_added import ALL
from benchmarks.gpu_op_bars import bar_rows, bar_text, missed
from benchmarks.gpu_op_cases import CASES
from benchmarks.gpu_ops_ahead import caches, compile_ahead
from benchmarks.report import (
    add_json_option,
    compare_row,
    make_report,
    measure_row,
    write_report,
)
from benchmarks.timing import Comparison

__all__ = ["main"]

TIME_LIMIT = 530.0
AHEAD_LIMIT = 170.0
SILENCE = 60.0
"""Seconds without news from the worker after which its case counts as hanging."""

QUICK = (
    "group norm silu 512x128x128",
    "group norm silu 512x256x256",
    "group norm silu 256x512x512",
    "group norm silu 128x1024x1024",
    "softmax 65536x4096",
    "softmax 8192x1024",
    "rms norm composed 8192x4096",
    "rms norm composed 1024x1536",
    "layer norm modulated 2x4096x1536",
    "batch norm add relu 32x256x56x56 float16",
    "gelu tanh x up 1024x6144",
    "rotary 1x8x1024x256",
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add_json_option(parser)
    parser.add_argument("--quick", action="store_true", help="12 cases, fewer candidates")
    parser.add_argument("--only", default="", help="cases whose name holds one of these (commas)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--tries", type=int, help="candidates a case (24; quick: 10)")
    parser.add_argument("--rounds", type=int, help="rounds of the final timing (40; quick: 25)")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT, help="seconds in all")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> list[str]:
    names = list(QUICK) if options.quick else [case.name for case in ALL]
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    if words:
        names = [case.name for case in ALL if any(word in case.name for word in words)]
    return names


class Supervisor:
    """Runs workers until every case has an answer, a failure, or the time is up."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.end = time.monotonic() + options.time_limit
        self.found: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.hung: set[str] = set()

    def run(self, names: list[str]) -> None:
        """All cases, compiled ahead, in as few processes as the kernels allow."""
        limit = min(AHEAD_LIMIT, 0.4 * self.options.time_limit)
        took = compile_ahead(names, self._request(names), self.folder, limit)
        sys.stderr.write(f"  compiled ahead for {len(names)} cases in {took:.0f} s\n")
        waiting = list(names)
        while waiting and time.monotonic() < self.end:
            self._worker(waiting)
            waiting = [name for name in waiting if name not in self.found]
        for name in waiting:
            self.notes.append(f"{name}: not reached within the time limit")

    def _worker(self, names: list[str]) -> None:
        out = self.folder / f"lines-{len(list(self.folder.glob('lines-*')))}.jsonl"
        out.touch()
        path = self.folder / "request.json"
        path.write_text(json.dumps({**self._request(names), "out": str(out)}))
        log = (self.folder / "worker.log").open("w+")
        command = [sys.executable, "-m", "benchmarks.gpu_ops_worker", str(path)]
        environment = {**os.environ, **caches(self.folder)}
        with log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as child:
            why = self._watch(child, out)
            if child.poll() is None:
                child.kill()
            child.wait()
            log.seek(0)
            tail = log.read()[-600:].strip()
        self._blame(out, names, why or f"the worker ended ({child.returncode}): {tail}")

    def _request(self, names: list[str]) -> dict[str, Any]:
        quick = self.options.quick
        return {
            "cases": names,
            "plain": sorted(self.hung),
            "cache": str(self.folder / "cubins"),
            "compile": not self.options.no_compile,
            "tries": self.options.tries or (10 if quick else 24),
            "rounds": self.options.rounds or (25 if quick else 40),
        }

    def _watch(self, child: subprocess.Popen[bytes], out: Path) -> str:
        """Wait for the worker's end; why it has to be stopped, in words, if it has to."""
        size, heard = 0, time.monotonic()
        while child.poll() is None:
            time.sleep(0.1)
            now = time.monotonic()
            if out.stat().st_size != size:
                size, heard = out.stat().st_size, now
                self._read(out)
            if now > self.end:
                return "time limit"
            if now - heard > SILENCE:
                return f"no answer for {SILENCE:g} s: a kernel hangs"
        self._read(out)
        return ""

    def _read(self, out: Path) -> str | None:
        """Take in the answers; returns the case that was begun and not answered."""
        begun = None
        for line in out.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                break  # the last line is still being written
            if "begin" in entry:
                begun = entry["begin"]
            else:
                if entry["case"] not in self.found:
                    left = self.end - time.monotonic()
                    sys.stderr.write(f"{_line(entry)}  [{left:.0f} s left]\n")
                    sys.stderr.flush()
                self.found[entry["case"]] = entry
                begun = None
        return begun

    def _blame(self, out: Path, names: list[str], why: str) -> None:
        """The case at which a worker stopped comes again with its best guess alone, once.

        None begun means that nothing can run.
        """
        begun = self._read(out)
        if why == "time limit" or all(name in self.found for name in names):
            return
        if begun is None:
            self.end = 0.0
            self.notes.append(f"no case could be run: {why}")
            return
        if begun in self.hung:
            self.found[begun] = {"case": begun, "failed": why}
            return
        self.hung.add(begun)
        self.notes.append(f"{begun}: tried again with its best guess alone, since {why[:300]}")


def _line(entry: dict[str, Any]) -> str:
    if "failed" in entry:
        return f"  {entry['case']:<44} FAILED {entry['failed'][:160]}"
    parts = [f"{n} {c['ratio']:.2f}x" for n, c in entry["compared"].items()]
    ours = next(iter(entry["compared"].values()))["ours_us"]
    speed = entry["bytes"] / ours / 1e6
    said = f"{ours:8.1f} us {speed:5.2f} TB/s  {', '.join(parts)}"
    return f"  {entry['case']:<44} {said}  {entry['params']}"


def _rows(
    found: dict[str, dict[str, Any]], copy: float, names: list[str], compiled: bool
) -> list[dict[str, Any]]:
    """Every comparison, the totals of the fixed list and of all, and the bars of the fixed list."""
    rows = [measure_row("copy bandwidth", copy, "GB/s")]
    for name, entry in found.items():
        if "failed" in entry:
            continue
        for other, figures in entry["compared"].items():
            against = Comparison(**figures)
            speed = entry["bytes"] / against.ours_us / 1e3
            more = {
                "gbs": speed,
                "copy_share": speed / copy if copy else None,
                **{k: entry[k] for k in ("family", "params", "error", "eager_error", "tried")},
                **{k: entry[k] for k in ("registers", "spills", "bytes", "wrong", "seconds")},
            }
            rows.append(compare_row(name, other, against, **more))
    fixed = {case.name for case in CASES}
    listed = [row for row in rows if row["name"] in fixed]
    totals = _totals(listed, "")
    if len(listed) < len(rows) - 1:
        totals += _totals(rows, ", with the rows added")
    asked = [name for name in names if name in fixed]
    sides = ("eager", "compile") if compiled else ("eager",)
    return [*rows, *totals, *bar_rows([*listed, *totals], asked, sides)]


def _totals(rows: list[dict[str, Any]], which: str) -> list[dict[str, Any]]:
    totals = []
    for other in ("eager", "compile"):
        ratios = [r["ratio"] for r in rows if r.get("against") == other]
        if ratios:
            count = len(ratios)
            mean = math.exp(sum(map(math.log, ratios)) / count)
            least = sum(r >= 1.0 for r in ratios) / count
            totals.append(measure_row(f"geometric mean over {other}{which}", mean, "x", n=count))
            name = f"share not slower than {other}{which}"
            totals.append(measure_row(name, least, "", n=count))
    return totals


def main() -> int:
    """Run the table; 0 only if every case has its figures and every bar asked for is reached."""
    import torch

    options = _options()
    if not torch.cuda.is_available():
        sys.stderr.write("this benchmark needs a CUDA device; torch.cuda sees none here\n")
        return 2
    from benchmarks.gpu_timing import copy_bandwidth

    names = _chosen(options)
    copy = copy_bandwidth()
    torch.cuda.empty_cache()
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        path for path in (root, os.environ.get("PYTHONPATH", "")) if path
    )
    with tempfile.TemporaryDirectory(prefix="kforge-gpu-ops-") as folder:
        supervisor = Supervisor(options, Path(folder))
        supervisor.run(names)
    found = {name: supervisor.found[name] for name in names if name in supervisor.found}
    failed = [f"{n}: {e['failed']}" for n, e in found.items() if "failed" in e]
    asides = [f"{n}: {e['note']}" for n, e in found.items() if e.get("note")]
    properties = torch.cuda.get_device_properties("cuda")
    device = {
        "name": properties.name,
        "kind": "cuda",
        "multiprocessors": properties.multi_processor_count,
        "memory_gb": round(properties.total_memory / 1e9, 1),
    }
    rows = _rows(found, copy, names, not options.no_compile)
    sys.stderr.write(f"{bar_text(rows)}\n")
    report = make_report(
        "gpu_ops", rows, notes=[*supervisor.notes, *failed, *asides], device=device
    )
    write_report(report, options.json)
    return _status(rows, failed, names, found)


def _status(
    rows: Sequence[Mapping[str, Any]],
    failed: Sequence[str],
    names: Sequence[str],
    found: Mapping[str, Any],
) -> int:
    """1 if a case failed or was not come to, or a bar that was asked for is missed; else 0."""
    complete = not failed and all(name in found for name in names)
    return 0 if complete and not missed(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
