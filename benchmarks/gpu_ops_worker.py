"""Measures some cases of the GPU table in a process of its own, one line of JSON a case.

A wrong kernel can leave a GPU context unusable, or never end; so the table's process starts this
one, watches it, and goes on with the next case in a new one. Order of work for a case: the exact
result in float64; eager's error; the recipes' parameters, changed one at a time, each candidate
checked before it is timed; the best of them timed anew beside eager and torch.compile.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_op_added import ALL, least_bytes
from benchmarks.gpu_op_cases import Case, make_target
from benchmarks.gpu_ops_ahead import quiet_choice
from benchmarks.gpu_timing import Flush, against, capture, quick_us, rounds
from benchmarks.parameter_sets import mixtures, single_changes
from kforge_nb.candidates.plan import validate
from kforge_nb.candidates.recipes.cuda import cuda_families
from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.compilers.cupy_raw import LoadedPlan, load_plan
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.targets.float64 import reference

__all__ = ["Options", "compiled", "main", "prepare"]

WANTED_US = 2500.0
FINALISTS = 4
_POOL = ThreadPoolExecutor(8)


@dataclass(slots=True)
class Try:
    """One choice of parameters: how it was launched, its error and quick time."""

    family: str
    params: dict[str, Any]
    launch: Callable[[], None]
    error: float
    us: float
    registers: int
    spills: int


@dataclass(slots=True)
class Options:
    """What the table's process asks for."""

    cache: Path
    compile: bool
    tries: int
    rounds: int


class Bench:
    """One case: its inputs, exact outputs and eager's error."""

    def __init__(self, case: Case, flush: Flush, options: Options) -> None:
        self.case, self.flush, self.options = case, flush, options
        self.inputs = case.build("cuda")
        self.target = make_target(case.fn, self.inputs, case.name)
        self.exact = reference(self.target.graph, self.inputs)
        self.eager_error = self._error(self._flat(case.fn(*self.inputs)))
        self.seen: set[str] = set()
        self.repeats = 8
        empty = capture(None, flush, self.repeats)
        self.empty = min(rounds({"x": empty}, self.repeats, 7)["x"])
        self.eager_us = self._time(lambda: case.fn(*self.inputs))

    def _flat(self, found: Any) -> list[torch.Tensor]:
        return list(found) if isinstance(found, tuple) else [found]

    def _error(self, outputs: list[torch.Tensor]) -> float:
        """Largest relative distance to the exact outputs; infinite where a NaN is not theirs."""
        worst = 0.0
        for got, want in zip(outputs, self.exact, strict=True):
            off = torch.linalg.vector_norm(got.double() - want).item()
            size = max(torch.linalg.vector_norm(want).item(), 1e-30)
            worst = max(worst, off / size if off == off else float("inf"))
        return worst

    def _time(self, call: Callable[[], object]) -> float:
        graph = capture(call, self.flush, self.repeats)
        return quick_us(graph, self.repeats, self.empty)

    def attempt(self, family: Any, match: Any, params: dict[str, Any]) -> Try | str:
        """Build, check and time one candidate; the reason in words where it is no good."""
        candidate = family.emit(match, params)
        validate(candidate.plan, "cuda", self.target.inputs, self.target.outputs)
        names = tuple(kernel.name for kernel in candidate.plan.kernels)
        built = build_cuda(candidate.source, names, cache=self.options.cache)
        if not isinstance(built, CudaBuilt):
            return f"does not compile: {built.distilled[:300]}"
        loaded = load_plan(candidate, built.cubin, self.target.inputs, self.target.outputs)
        outputs = loaded.empty()
        _poison(outputs, loaded)
        launch = loaded.bind(self.inputs, outputs)
        launch()
        torch.cuda.synchronize()
        error = self._error(outputs)
        if not error <= 1.25 * self.eager_error + 5e-7:
            return f"error {error:.2e}, eager's is {self.eager_error:.2e}"
        used = built.resources.values()
        registers = max((r.registers for r in used), default=0)
        spills = max((r.spill_stores for r in used), default=0)
        us = self._time(launch)
        return Try(family.name, params, launch, error, us, registers, spills)

    def search(self) -> tuple[Try | None, list[str], int]:
        """The best of a few parameter sets: single changes of the best guess, mixtures, once more.

        Mixtures put together the changes that won by themselves, the largest gains first; then a
        few single changes of the best set so far. Of the families that come later only the best
        guess is tried.
        """
        known = matches(self.target)
        if not known:
            return None, [], 0
        family, match = known[0]
        sets = single_changes(family, match)[: self.options.tries]
        found = self._all(family, match, sets)
        good = [(t, p) for t, p in found if isinstance(t, Try)]
        start = good[0][0].us if good and good[0][1] == sets[0] else float("inf")
        more = mixtures(sets[0], [(t.us, p) for t, p in good], start)
        found += self._all(family, match, more)
        good = [(t, p) for t, p in found if isinstance(t, Try)]
        if good:
            best_set = min(good, key=lambda entry: entry[0].us)[1]
            more = single_changes(family, match, best_set)
            fresh = [p for p in more if family.emit(match, p).digest not in self.seen]
            found += self._all(family, match, fresh[: self.options.tries // 4])
        for other, matched in known[1:]:
            found += self._all(other, matched, [default_params(other, matched)])
        good = [(t, p) for t, p in found if isinstance(t, Try)]
        wrong = [f"{p}: {t}" for t, p in found if isinstance(t, str)]
        return self._final([t for t, _ in good]), wrong, len(found)

    def _final(self, good: list[Try]) -> Try | None:
        """The best of the few quickest, timed side by side: one quick figure may be luck."""
        quickest = sorted(good, key=lambda t: t.us)[:FINALISTS]
        if len(quickest) < 2:
            return quickest[0] if quickest else None
        graphs = {
            str(k): capture(t.launch, self.flush, self.repeats) for k, t in enumerate(quickest)
        }
        samples = rounds(graphs, self.repeats, 15, seed=2)
        return quickest[min(range(len(quickest)), key=lambda k: statistics.median(samples[str(k)]))]

    def _all(
        self, family: Any, match: Any, sets: list[dict[str, Any]]
    ) -> list[tuple[Try | str, dict[str, Any]]]:
        """Every set that makes a source of its own, built side by side, then tried in turn."""
        distinct: dict[str, dict[str, Any]] = {}
        for params in sets:
            digest = family.emit(match, params).digest
            if digest not in self.seen:
                distinct.setdefault(digest, params)
        self.seen |= set(distinct)
        build_ahead(family, match, list(distinct.values()), self.options.cache)
        return [(self._try(family, match, params), params) for params in distinct.values()]

    def _try(self, family: Any, match: Any, params: dict[str, Any]) -> Try | str:
        """An attempt whose failure to launch is a reason; a fault that stays ends the process."""
        try:
            return self.attempt(family, match, params)
        except Exception as problem:  # noqa: BLE001  (CuPy's errors have no common base to name)
            torch.cuda.synchronize()
            return f"{type(problem).__name__}: {str(problem)[:300]}"

    def measure(self, best: Try) -> dict[str, Any]:
        """The chosen kernel beside eager and torch.compile, on fresh samples."""
        calls: dict[str, Callable[[], object]] = {
            "ours": best.launch,
            "eager": lambda: self.case.fn(*self.inputs),
        }
        note = ""
        if self.options.compile:
            try:
                calls["compile"] = compiled(self.case, self.inputs)
            except Exception as problem:  # noqa: BLE001  (whatever torch.compile raises)
                note = f"torch.compile failed: {type(problem).__name__}: {str(problem)[:200]}"
        flush_us = self.empty * 1e6
        repeats = int(max(4, min(30, WANTED_US / (flush_us + self.eager_us))))
        graphs = {n: capture(call, self.flush, repeats) for n, call in calls.items()}
        graphs["empty"] = capture(None, self.flush, repeats)
        rounds(graphs, repeats, 3, seed=1)
        samples = rounds(graphs, repeats, self.options.rounds)
        found = {
            other: asdict(against(samples, "ours", other)) for other in calls if other != "ours"
        }
        return {"compared": found, "note": note}


def compiled(case: Case, inputs: list[torch.Tensor]) -> Callable[[], object]:
    """The case under torch.compile with every variant tried, compiled and warm."""
    torch._dynamo.reset()
    call = torch.compile(case.fn, mode="max-autotune-no-cudagraphs", dynamic=False, fullgraph=True)
    for _ in range(3):
        call(*inputs)
    torch.cuda.synchronize()
    return lambda: call(*inputs)


def matches(target: Any) -> list[tuple[Any, Any]]:
    """The CUDA families that take the target, in the order in which they are asked."""
    found = [(family, family.match(target)) for family in cuda_families()]
    return [(family, match) for family, match in found if match is not None]


def build_ahead(family: Any, match: Any, sets: list[dict[str, Any]], cache: Path) -> None:
    """Fill the cache of cubins; the compilers run side by side in processes of their own."""
    waiting = []
    for params in sets:
        candidate = family.emit(match, params)
        names = tuple(kernel.name for kernel in candidate.plan.kernels)
        waiting.append(_POOL.submit(build_cuda, candidate.source, names, cache=cache))
    for future in waiting:
        future.exception()  # a failure is met, and named, when the candidate is tried


def prepare(case: Case, options: Options) -> None:
    """Fill the cache of cubins with what a case tries first."""
    known = matches(make_target(case.fn, case.build("cuda"), case.name))
    for place, (family, match) in enumerate(known):
        sets = single_changes(family, match)[: options.tries if place == 0 else 1]
        build_ahead(family, match, sets, options.cache)


def _poison(outputs: list[torch.Tensor], loaded: LoadedPlan) -> None:
    """Fill outputs (and scratch, once it is there) with NaN or what looks like it."""
    for tensor in outputs:
        tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
    scratch = loaded.scratch(outputs[0].device)
    for name, tensor in scratch.items():
        if loaded.plan.scratch[name].init == "none":
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)


def run_case(case: Case, flush: Flush, options: Options) -> dict[str, Any]:
    """Everything about one case as plain JSON."""
    start = time.perf_counter()
    bench = Bench(case, flush, options)
    ready = time.perf_counter()
    best, wrong, tried = bench.search()
    searched = time.perf_counter()
    found: dict[str, Any] = {
        "case": case.name,
        "bytes": least_bytes(case, bench.target),
        "eager_error": bench.eager_error,
        "tried": tried,
        "wrong": wrong[:5],
    }
    if best is None:
        return {**found, "failed": wrong[0] if wrong else "no recipe knows it"}
    found |= {"family": best.family, "params": best.params, "error": best.error}
    found |= {"registers": best.registers, "spills": best.spills}
    found |= bench.measure(best)
    end = time.perf_counter()
    return {**found, "seconds": [ready - start, searched - ready, end - searched]}


def main() -> int:
    """``python -m benchmarks.gpu_ops_worker REQUEST.json``: writes lines to the file it names."""
    request = json.loads(Path(sys.argv[1]).read_text())
    options = Options(
        Path(request["cache"]), request["compile"], request["tries"], request["rounds"]
    )
    known = {case.name: case for case in ALL}
    torch.manual_seed(0)
    with Path(request["out"]).open("a", buffering=1) as out, torch.inference_mode():
        flush = Flush(options.cache)
        quiet_choice()
        for name in request["cases"]:
            tries = 1 if name in request["plain"] else request["tries"]
            options = replace(options, tries=tries)
            out.write(json.dumps({"begin": name}) + "\n")
            try:
                found = run_case(known[name], flush, options)
            except torch.AcceleratorError:
                raise  # the context is gone: the table's process starts another
            except Exception as problem:  # noqa: BLE001  (one case must not end the others)
                found = {"case": name, "failed": f"{type(problem).__name__}: {problem}"[:500]}
                torch.cuda.synchronize()
            out.write(json.dumps(found) + "\n")
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
