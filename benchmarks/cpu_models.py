"""Whole models on a CPU: raw eager, torch.compile, and each rest with and without kernels.

``python -m benchmarks.cpu_models [--json [FILE]] [--models NAME ...] [--seconds S] [--budget N]``

Each model gets two children. The first runs ``kforge_nb.optimize`` on it with the built-in recipes
and leaves the run in a store; the second opens that store in a fresh process, installs what the
guard decided, and times all sides in turn, in random order, under the default allocator, the way a
user's next call would run. *empty* is the same rest without any kernel. A compile that has not
finished after ``--compile-limit`` seconds is a row ``did_not_finish``; the other sides are then
measured without it.

Exit status 1: on a quiet machine a guarded model is below 0.98 of its empty rest, the best guarded
rest below 0.98 of raw eager, or fewer than three models gain more than 3% over their empty rest
with the interval above 1 and at least one kernel installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.models import MODELS, Case, build
from benchmarks.report import add_json_option, compare_row, make_report, measure_row, write_report
from benchmarks.timing import Watch, compare, interleave

if TYPE_CHECKING:
    from torch import nn

    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.workload.capture import Workload

__all__ = ["main"]

FLOOR = 0.98
GAIN = 1.03
WINNERS = 3
QUIET = 0.15
GUARD_SECONDS = 60.0
_MARK = "RESULT "
_PAIRS = (
    ("guarded-eager", "empty-eager"),
    ("guarded-eager", "raw eager"),
    ("guarded-inductor", "empty-inductor"),
    ("guarded-inductor", "raw eager"),
    ("guarded-eager", "torch.compile"),
    ("guarded-inductor", "torch.compile"),
    ("empty-eager", "raw eager"),
    ("torch.compile", "raw eager"),
)


def _workload(case: Case) -> Callable[[], Any]:
    import torch

    def run() -> Any:
        with torch.inference_mode():
            return case.run(case.model)

    return run


def search(name: str, folder: str, budget: int, threads: int) -> dict[str, Any]:
    """Optimize one model in this process; what the run says of itself."""
    import torch

    import kforge_nb

    torch.set_num_threads(threads)
    case = build(name)
    run = kforge_nb.optimize(
        _workload(case),
        name=name,
        store=folder,
        budget=budget,
        rest="eager",
        baseline="eager",
        guard_time=GUARD_SECONDS,
        wait=True,
    )
    if run.state != "done":
        raise RuntimeError(f"the run of {name} ended as {run.state}: {run.status()}")
    decisions = run.decisions
    return {"kernels": int(decisions["installed"].sum()), "targets": len(decisions)}


class Sides:
    """The ways in which the modules of a workload can run; each is switched on outside the clock.

    A side is what stands in ``module._compiled_call_impl``: nothing for raw eager, the user's own
    ``torch.compile``, or the guard's call.
    """

    def __init__(self, case: Case, workload: Workload, kernels: Sequence[Accepted]) -> None:
        self.run = _workload(case)
        self.workload = workload
        self.kernels = kernels
        self.kept: dict[str, Sequence[Accepted]] = {}
        self.calls: dict[str, list[tuple[nn.Module, Any]]] = {
            "raw eager": [(module, None) for module in workload.modules]
        }

    def add(self, rest: str) -> None:
        """Compile this rest with and without the kernels that the guard keeps under it."""
        from kforge_nb.guard.apply import apply

        kept = self.kept[rest] = self._kept(rest)
        for name, kernels in (("empty", ()), ("guarded", kept)):
            applied = apply(self.workload.modules, kernels, rest, calls=self.workload.calls)
            self.calls[f"{name}-{rest}"] = [(call.module, call) for call in applied.guarded]
            for call in applied.guarded:
                call.module._compiled_call_impl = None

    def _kept(self, rest: str) -> Sequence[Accepted]:
        """The run's decisions are for an eager rest; another rest is decided here, as auto does."""
        from kforge_nb.guard.decide import decide

        if rest == "eager" or not self.kernels:
            return self.kernels
        report = decide(self.workload, self.kernels, rest, time_limit=GUARD_SECONDS)
        return [k for k in self.kernels if k.target_fingerprint in report.installed]

    def add_compile(self) -> None:
        """What a user gets from ``model.compile()``."""
        import torch

        self.calls["torch.compile"] = [
            (module, torch.compile(module._call_impl, dynamic=False))
            for module in self.workload.modules
        ]

    def side(self, name: str) -> Callable[[], object]:
        """One run of the workload on this side."""

        def call() -> object:
            for module, compiled in self.calls[name]:
                module._compiled_call_impl = compiled
            return self.run()

        return call


def measure(
    name: str, folder: str, seconds: float, threads: int, compilers: Sequence[str]
) -> dict[str, Any]:
    """Time every side of one model in this process; plain JSON."""
    import torch

    import kforge_nb
    from kforge_nb.run.guarding import installed_kernels
    from kforge_nb.workload.capture import watch

    torch.set_num_threads(threads)
    case = build(name)
    kernels = installed_kernels(kforge_nb.load_run(name, store=folder).record)
    sides = Sides(case, watch(_workload(case)), kernels)
    sides.add("eager")
    if "inductor" in compilers:
        sides.add("inductor")
        sides.add_compile()
    calls = {side: sides.side(side) for side in sides.calls}
    want = calls["raw eager"]()
    for side, call in calls.items():
        call()
        torch.testing.assert_close(call(), want, rtol=2e-2, atol=2e-2, msg=f"{name}: {side}")
    with Watch() as watched:
        samples = interleave(calls, seconds=seconds, batch_seconds=0.0, least=12, most=300)
    kept = {rest: len(found) for rest, found in sides.kept.items()}
    return {"samples": samples, "foreign": watched.foreign, "kernels": kept}


def _child(words: Sequence[str], limit: float | None) -> dict[str, Any] | None:
    """The result of one child, or None when it did not finish in time.

    It has a compiler cache of its own, for one that is stopped may leave half a file behind.
    """
    with tempfile.TemporaryDirectory(prefix="kforge-inductor-") as cache:
        return _answer(words, limit, {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache})


def _answer(
    words: Sequence[str], limit: float | None, environment: dict[str, str]
) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "benchmarks.cpu_models", *words]
    root = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return None
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return dict(json.loads(line.removeprefix(_MARK)))
    raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-3000:]}")


def _rows(name: str, searched: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    samples = found["samples"]
    more = {
        "model": name,
        "quiet": found["foreign"] <= QUIET,
        "foreign_cpus": round(found["foreign"], 3),
    }
    rows: list[dict[str, Any]] = [
        measure_row(f"{name}: kernels installed", searched["kernels"], "kernels", model=name)
    ]
    for ours, against in _PAIRS:
        if ours in samples and against in samples:
            result = compare(samples[ours], samples[against])
            kernels = found["kernels"].get(ours.partition("-")[2], 0) if "guarded" in ours else 0
            row = compare_row(f"{name}: {ours}", against, result, side=ours, **more)
            rows.append({**row, "kernels": kernels})
    return rows


def _one(name: str, options: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    common = [name, "--threads", str(options.threads), "--folder", folder]
    searched = _child(["--search", *common, "--budget", str(options.budget)], None)
    if searched is None:
        raise RuntimeError(f"the search of {name} gave nothing")
    timing = ["--measure", *common, "--seconds", str(options.seconds)]
    limit = options.compile_limit + 10 * options.seconds
    found = _child([*timing, "--compilers", "inductor"], limit)
    rows = []
    if found is None:
        rows.append(
            measure_row(
                f"{name}: torch.compile did_not_finish", options.compile_limit, "s", model=name
            )
        )
        found = _child([*timing, "--compilers"], None)
    if found is None:
        raise RuntimeError(f"nothing was measured of {name}")
    return rows + _rows(name, searched, found)


def verdict(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What falls short of the bars, in words; rows of a busy machine do not decide."""
    pairs = [r for r in rows if "ratio" in r and r["quiet"]]
    short = []
    for row in pairs:
        rest = row["side"].removeprefix("guarded-")
        paired = row["side"].startswith("guarded") and row["against"] == f"empty-{rest}"
        if paired and row["ratio"] < FLOOR:
            short.append(f"{row['name']} is {row['ratio']:.3f} of {row['against']}")
    for model in dict.fromkeys(r["model"] for r in pairs):
        raw = [
            r["ratio"]
            for r in pairs
            if r["model"] == model
            and r["side"].startswith("guarded")
            and r["against"] == "raw eager"
        ]
        if raw and max(raw) < FLOOR:
            short.append(f"{model}: the best guarded rest is {max(raw):.3f} of raw eager")
    winners = {
        r["model"]
        for r in pairs
        if r["against"].startswith("empty-")
        and r["side"].startswith("guarded")
        and r["ratio"] > GAIN
        and r["low"] > 1.0
        and r["kernels"] > 0
    }
    if len(winners) < WINNERS:
        short.append(f"only {len(winners)} models gain over {GAIN}: {', '.join(sorted(winners))}")
    return short


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add_json_option(parser)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seconds", type=float, default=60.0, help="timing of one model")
    parser.add_argument("--budget", type=int, default=60, help="candidates judged for one model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile-limit", type=float, default=240.0)
    parser.add_argument("--search", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--compilers", nargs="*", default=[], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run the benchmark or, as a child, one step of it."""
    options = _options()
    if options.search:
        result = search(options.search, options.folder, options.budget, options.threads)
        print(_MARK + json.dumps(result))
        return 0
    if options.measure:
        result = measure(
            options.measure, options.folder, options.seconds, options.threads, options.compilers
        )
        print(_MARK + json.dumps(result))
        return 0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            rows += _one(name, options, folder)
            print(f"{name} done", file=sys.stderr, flush=True)
    short = verdict(rows)
    write_report(make_report("cpu_models", rows, notes=short), options.json)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
