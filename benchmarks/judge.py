"""How often the judge is wrong, how long it takes, and whether it leaves anything behind.

Three kinds of pairs go through the whole judge again and again (:mod:`benchmarks.judge_twins`): a
kernel against itself, against a twin that it is 3% slower than, and against one that it is 5%
faster than. Every pair is one line of the file given to ``--append``, so 200 pairs may be taken in
pieces, on another day, or be ended at any moment::

    python -m benchmarks.judge --append pairs.jsonl --seconds 600     # as often as wanted
    python -m benchmarks.judge --append pairs.jsonl --pairs 0 --json  # the rates so far

Without options a few pairs are judged, the stages of clearly faster candidates are timed, and 200
candidates in a row are looked at for what they leave. ``--pairs``, ``--append``, ``--stages``,
``--leaks`` and ``--refusals`` run the parts that they name and no others::

    python -m benchmarks.judge --pairs 0 --stages --json
    python -m benchmarks.judge --leaks 200 --device cuda --json       # and the device's memory
    python -m benchmarks.judge --refusals 20 --json                   # honest kernels called wrong

The exit status is 1 where the pairs there are miss one of ``BARS``, where a clearly faster
candidate takes longer than its bar, where an honest kernel is called wrong, and where anything is
left behind.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.judge_leaks import LEAKS, leak_rows, leaking
from benchmarks.judge_rates import BARS, missed, rate_rows
from benchmarks.judge_refusals import refusal_rows, refused
from benchmarks.judge_stages import BAR_SECONDS, late, stage_rows
from benchmarks.judge_twins import KERNELS, TWINS, Calibrated, TwinJudge, candidate, target
from benchmarks.report import add_json_option, commit, make_report, write_report
from kforge_nb.judge.bench import Bench
from kforge_nb.settings import Settings

__all__ = ["chosen", "main", "next_pairs", "read_pairs"]

_PAIRS = 12
_ORDER = tuple((kind, name, threads) for threads in (1, 2) for name in KERNELS for kind in TWINS)
Record = dict[str, Any]


def read_pairs(path: Path | None) -> list[Record]:
    """The pairs of a file of lines; none where it does not exist."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def next_pairs(done: list[Record]) -> Iterator[tuple[str, str, int]]:
    """What to judge next: whatever was judged least, again and again."""
    counts = dict.fromkeys(_ORDER, 0)
    for row in done:
        key = (row["kind"], row["kernel"], row["threads"])
        counts[key] = counts.get(key, 0) + 1
    while True:
        key = min(_ORDER, key=lambda entry: counts[entry])
        counts[key] += 1
        yield key


class _Benches:
    """Judges and benches by threads and kernel, made when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._judges: dict[int, TwinJudge] = {}
        self._open: dict[tuple[str, int], tuple[Bench, Calibrated]] = {}

    def get(self, name: str, threads: int) -> tuple[TwinJudge, Bench, Calibrated]:
        if threads not in self._judges:
            self._judges[threads] = TwinJudge(Settings(threads=threads), self._folder)
        judge = self._judges[threads]
        if (name, threads) not in self._open:
            made = target(KERNELS[name])
            bench = judge.open(made)
            found = judge.cpu.calibrate(made, KERNELS[name], bench._slots)
            self._open[name, threads] = (bench, found)
        return judge, *self._open[name, threads]

    def close(self) -> None:
        for judge in self._judges.values():
            judge.close()


def _judge_pair(benches: _Benches, kind: str, name: str, threads: int) -> Record:
    """One pair through ``Bench.confirm``."""
    judge, bench, calibrated = benches.get(name, threads)
    kernel, ratio = KERNELS[name], TWINS[kind]
    ours = candidate(kernel, calibrated.more(1 / ratio) if ratio < 1 else 0)
    twin = candidate(kernel, calibrated.more(ratio) if ratio > 1 else 0)
    judge.cpu.twin, judge.cpu.sessions = (bench.target, twin), []
    start = time.perf_counter()
    found = bench.confirm(ours)
    seconds = time.perf_counter() - start
    timing = found.against("eager")
    return {
        "kind": kind,
        "kernel": name,
        "threads": threads,
        "verdict": str(found.verdict),
        "ratio": timing and timing.ratio,
        "low": timing and timing.low,
        "high": timing and timing.high,
        "n": timing.n if timing else 0,
        "reason": found.reason,
        "seconds": round(seconds, 2),
        "timing_seconds": round(found.seconds.get("timing", 0.0), 2),
        "call_us": round(calibrated.seconds * 1e6, 1),
        "foreign": round(max((s.foreign for s in judge.cpu.sessions), default=0.0), 3),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "commit": commit(),
        "samples_us": [
            [
                [float(f"{1e6 * a:.6g}"), float(f"{1e6 * b:.6g}")]
                for a, b in zip(s.ours, s.against, strict=True)
            ]
            for s in judge.cpu.sessions
        ],
    }


def _judge_pairs(options: argparse.Namespace, done: list[Record]) -> None:
    """New pairs until there are enough of them, or time is up."""
    path = Path(options.append) if options.append else None
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="kforge-bench-") as folder:
        benches = _Benches(Path(folder))
        try:
            for _, (kind, name, threads) in zip(
                range(options.pairs), next_pairs(done), strict=False
            ):
                if time.monotonic() > deadline:
                    break
                row = _judge_pair(benches, kind, name, threads)
                done.append(row)
                if path is not None:
                    with path.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                words = f"{kind:7} {name:18} {threads} thread(s) {row['seconds']:5.1f} s"
                print(f"{words}  {row['verdict']}: {row['reason']}", file=sys.stderr, flush=True)
        finally:
            benches.close()


def chosen(options: argparse.Namespace) -> argparse.Namespace:
    """The options with the parts to run: those that were named, or all of them."""
    named = {"pairs", "append", "stages", "leaks", "refusals"}
    everything = all(getattr(options, part) in (None, False) for part in named)
    pairs = 0 if options.stages or options.leaks or options.refusals else _PAIRS
    if everything or options.append:
        pairs = _PAIRS
    options.pairs = pairs if options.pairs is None else options.pairs
    options.stages = options.stages or everything
    options.leaks = (LEAKS if everything else 0) if options.leaks is None else options.leaks
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    words = f"new pairs at most, default {_PAIRS} where pairs are judged"
    parser.add_argument("--pairs", type=int, help=words)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no pair after so long")
    parser.add_argument("--append", metavar="FILE", help="lines of pairs: read, and added to")
    parser.add_argument("--stages", action="store_true", help="seconds of each stage")
    words = f"what N candidates in a row leave, default {LEAKS} where nothing else is named"
    parser.add_argument("--leaks", type=int, metavar="N", help=words)
    words = "honest kernels on N draws of values each; only where it is named"
    parser.add_argument("--refusals", type=int, metavar="N", help=words)
    words = "where the leak check runs: on cuda it looks at the device's memory too"
    parser.add_argument("--device", default="cpu", metavar="cpu|cuda", help=words)
    add_json_option(parser)
    return parser


def main() -> int:
    """Run the parts, print what they found; the exit status says whether the bars are met."""
    options = chosen(_parser().parse_args())
    done = read_pairs(Path(options.append) if options.append else None)
    _judge_pairs(options, done)
    rows = rate_rows(done)
    if options.stages:
        rows += stage_rows()
    if options.leaks:
        rows += leak_rows(options.leaks, options.device)
    if options.refusals:
        rows += refusal_rows(options.refusals)
    failures = missed(rows) + late(rows) + leaking(rows) + refused(rows)
    notes = [f"bar: {bar.words}" for bar in BARS]
    notes.append(
        f"bar: one clearly faster candidate on inputs under 64 MB is judged in {BAR_SECONDS:g} s, "
        "compiling apart"
    )
    notes.append("bar: no process, file, memory or descriptor is left of candidates in a row")
    notes.append("bar: no honest kernel is called wrong on any draw of values")
    notes += [f"missed: {words}" for words in failures]
    write_report(make_report("judge", rows, notes=notes), options.json)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
