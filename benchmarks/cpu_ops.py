"""Recipes against eager and torch.compile, operator by operator, held to the head-room table.

``python -m benchmarks.cpu_ops [--json [FILE]] [--ops WORD ...] [--threads 1 2] [--seconds S]
[--processes N] [--tries N]``

Each operator and thread count runs in children of its own, one after the other, with allocator
settings under which freed blocks are kept: all sides allocate their output in every call. Where a
process happens to lie in memory changes its times, eager's up to twofold, so the rounds of several
processes are taken together. Ours is the operator's recipe, called through ctypes, with parameters
that a process before these picked among a few (see ``cpu_op_tuning``), as a run's search does;
eager and torch.compile are called from Python. Rounds are interleaved in random order. A copy of as
many bytes as the operator reads and writes is timed against ours as well: what moves its bytes as
fast has nothing left to win. Its rounds come after the others, since its buffers would push theirs
out of the last-level cache. A child counts what other processes took of the machine meanwhile;
where that is more than a tenth of a CPU, the row says so and does not decide. Exit status 1: on a
quiet machine an operator stays below 0.9 of the table, or below eager.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cpu_op_cases import CASES, Case, make_target
from benchmarks.cpu_op_tuning import emit, pick
from benchmarks.report import (
    add_json_option,
    compare_row,
    make_report,
    measure_row,
    write_report,
)
from benchmarks.timing import Comparison, Watch, allocator_environment, compare, interleave

if TYPE_CHECKING:
    import torch

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["main"]

WANTED = 0.9
QUIET = 0.1
_MARK = "RESULT "


def launcher(
    candidate: Candidate, target: Target, threads: int, cache: Path
) -> Callable[..., torch.Tensor]:
    """A function of the target's inputs that allocates the output and calls the built kernel.

    Raises:
        RuntimeError: the candidate does not compile.
    """
    import torch

    from kforge_nb.compilers import cpp

    kernel = candidate.plan.kernels[0]
    built = cpp.build(candidate.source, kernel.name, cache=cache)
    if isinstance(built, cpp.CompileFailed):
        raise RuntimeError(f"{target.name} does not compile:\n{built.log}")  # noqa: TRY004
    function = getattr(ctypes.CDLL(str(built.library)), kernel.name)
    function.restype = None
    function.argtypes = [*[ctypes.c_void_p] * (len(kernel.args) - 1), ctypes.c_int32]
    spec = target.outputs[0]
    dtype = getattr(torch, spec.dtype)
    scratch = {
        name: ([int(n) for n in item.shape], getattr(torch, item.dtype))
        for name, item in candidate.plan.scratch.items()
    }
    positions = {f"in{i}": i for i in range(len(target.inputs))}

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        out = torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
        buffers = {name: torch.empty(size, dtype=kind) for name, (size, kind) in scratch.items()}
        buffers["out0"] = out
        pointers = [
            (buffers[name] if name in buffers else inputs[positions[name]]).data_ptr()
            for name in kernel.args[:-1]
        ]
        function(*pointers, threads)
        return out

    return call


def tune_case(case: Case, threads: int, seconds: float, tries: int) -> dict[str, Any]:
    """The recipe's parameters for one operator, picked in this process; plain JSON."""
    import torch

    fn, inputs = _begin(case, threads)
    target = make_target(fn, inputs, case.name)
    want = fn(*inputs)

    def build(candidate: Candidate, folder: Path) -> Callable[[], Any]:
        ours = launcher(candidate, target, threads, folder)
        torch.testing.assert_close(ours(*inputs), want, rtol=2e-2, atol=2e-2)
        return _bound(ours, inputs)

    with torch.no_grad():
        return {"params": pick(target, build, tries, seconds)}


def _begin(case: Case, threads: int) -> tuple[Callable[..., Any], list[Any]]:
    """The operator and its inputs, the same in every process."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    return case.build()


def run_case(
    case: Case, threads: int, seconds: float, against: list[str], params: dict[str, Any]
) -> dict[str, Any]:
    """Time one operator in this process; plain JSON."""
    import torch

    fn, inputs = _begin(case, threads)
    target = make_target(fn, inputs, case.name)
    candidate = emit(target, params)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        ours = launcher(candidate, target, threads, Path(folder))
        sides: dict[str, Callable[..., Any]] = {"ours": ours, "eager": fn}
        if "compile" in against:
            sides["compile"] = torch.compile(fn, dynamic=False)
        want = fn(*inputs)
        for name, side in sides.items():
            torch.testing.assert_close(
                side(*inputs), want, rtol=2e-2, atol=2e-2, msg=f"{case.name}: {name} is wrong"
            )
        calls = {name: _bound(side, inputs) for name, side in sides.items()}
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        with Watch() as watch:
            samples = interleave(calls, seconds=seconds, least=15)
            copied = torch.zeros(_moved(inputs, want) // 2, dtype=torch.uint8)
            beside = {"ours beside copy": calls["ours"], "copy": copied.clone}
            samples |= interleave(beside, seconds=seconds / 4, least=7)
        switched = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches
    return {
        "samples": samples,
        "foreign": watch.foreign,
        "switched": switched,
        **_origin(candidate),
    }


def _moved(inputs: list[Any], output: torch.Tensor) -> int:
    """Bytes that must be read and written at least."""
    return sum(t.nbytes for t in (*inputs, output) if hasattr(t, "nbytes"))


def _bound(side: Callable[..., Any], inputs: list[Any]) -> Callable[[], Any]:
    return lambda: side(*inputs)


def _origin(candidate: Candidate) -> dict[str, Any]:
    return {"recipe": candidate.origin.get("recipe"), "params": candidate.origin.get("params")}


def _child(case: Case, threads: int, **request: Any) -> dict[str, Any]:
    """Do one request (``tries`` or ``params``) in a fresh process with the allocator settings."""
    command = [sys.executable, "-m", "benchmarks.cpu_ops", "--child"]
    command.append(json.dumps({"case": case.name, "threads": threads, **request}))
    done = subprocess.run(
        command,
        env=allocator_environment(threads),
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return dict(json.loads(line.removeprefix(_MARK)))
    raise RuntimeError(f"{case.name} with {threads} threads failed:\n{done.stderr[-2000:]}")


def _answer(text: str) -> dict[str, Any]:
    """What a child was asked for."""
    request = json.loads(text)
    name = request.pop("case")
    case = next(c for c in CASES if c.name == name)
    return tune_case(case, **request) if "tries" in request else run_case(case, **request)


def _children(
    case: Case, threads: int, seconds: float, against: list[str], processes: int, tries: int
) -> dict[str, Any]:
    """The rounds of several processes together, and the busiest moment of any."""
    picked = _child(case, threads, seconds=seconds / 4, tries=tries)["params"]
    request = {"seconds": seconds / processes, "against": against, "params": picked}
    found = [_child(case, threads, **request) for _ in range(processes)]
    names = found[0]["samples"]
    return {
        **found[0],
        "samples": {name: [s for one in found for s in one["samples"][name]] for name in names},
        "foreign": max(one["foreign"] for one in found),
        "switched": sum(one["switched"] for one in found),
    }


def _rows(case: Case, threads: int, found: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Rows of one operator and whether it is good enough (or the machine was too busy to say)."""
    name = f"{case.name}, {threads} thread{'s' if threads > 1 else ''}"
    quiet, samples = found["foreign"] <= QUIET, found["samples"]
    more = {
        "quiet": quiet,
        "foreign_cpus": round(found["foreign"], 3),
        "involuntary_switches": found["switched"],
        "recipe": found["recipe"],
        "params": found["params"],
    }
    rows: list[dict[str, Any]] = []
    good = True
    for against in ("eager", "compile"):
        if against not in samples:
            continue
        result: Comparison = compare(samples["ours"], samples[against])
        rows.append(compare_row(name, against, result, **more))
        if against == "eager":
            room = case.headroom[threads]
            share = {k: getattr(result, k) / room for k in ("ratio", "low", "high")}
            rows.append(
                measure_row(
                    f"{name}: share of head-room {room:.2f}",
                    share["ratio"],
                    "share",
                    low=share["low"],
                    high=share["high"],
                    n=result.n,
                    quiet=quiet,
                )
            )
            good = not quiet or (share["ratio"] >= WANTED and result.ratio >= 1.0)
    rows.append(
        compare_row(name, "copy", compare(samples["ours beside copy"], samples["copy"]), **more)
    )
    return rows, good


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add_json_option(parser)
    parser.add_argument("--ops", nargs="*", default=[], help="only operators with these words")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2], choices=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0, help="timing of one operator")
    parser.add_argument("--processes", type=int, default=3, help="that share this time")
    parser.add_argument("--tries", type=int, default=16, help="parameter sets of a recipe")
    parser.add_argument("--against", nargs="*", default=["eager", "compile"])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run the benchmark; the exit status says whether the table is reached."""
    options = _options()
    if options.child:
        sys.stdout.write(f"{_MARK}{json.dumps(_answer(options.child))}\n")
        return 0
    rows: list[dict[str, Any]] = []
    short: list[str] = []
    busy: list[str] = []
    for case in CASES:
        if options.ops and not any(word in case.name for word in options.ops):
            continue
        for threads in options.threads:
            found = _children(
                case,
                threads,
                options.seconds,
                options.against,
                options.processes,
                options.tries,
            )
            new, good = _rows(case, threads, found)
            rows += new
            if not good:
                short.append(f"{new[0]['name']} is below {WANTED} of the table, or below eager")
            if not new[0]["quiet"]:
                busy.append(f"{new[0]['name']}: others used {found['foreign']:.2f} CPUs meanwhile")
    report = make_report("cpu_ops", rows, notes=[*short, *busy])
    write_report(report, options.json)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
