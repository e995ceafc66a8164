"""Measures some cases of the GPU table in a process of its own, one line of JSON a case.

A wrong kernel can leave a GPU context unusable, or never end; so the table's process starts this
one, watches it, and goes on with the next case in a new one. Order of work for a case: the exact
result in float64; eager's error; the recipes' parameters, changed one at a time, each candidate
checked before it is timed; the best of them timed anew beside eager and torch.compile.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_op_cases import CASES, Case, make_target, moved_bytes
from benchmarks.gpu_timing import Flush, against, capture, quick_us, rounds
from kforge_nb.candidates.plan import validate
from kforge_nb.candidates.recipes.cuda import cuda_families
from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.compilers.cupy_raw import LoadedPlan, load_plan
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.targets.float64 import reference

__all__ = ["main"]

ROUNDS = 40
WANTED_US = 2500.0


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
        """The best of a few parameter sets: each parameter in turn, from the best so far."""
        wrong: list[str] = []
        best: Try | None = None
        count = 0
        for family in cuda_families():
            match = family.match(self.target)
            if match is None:
                continue
            start = default_params(family, match)
            best, count = self._climb(family, match, start, wrong)
            if best is not None:
                break
        return best, wrong, count

    def _climb(
        self, family: Any, match: Any, params: dict[str, Any], wrong: list[str]
    ) -> tuple[Try | None, int]:
        tried: dict[str, Try | str] = {}

        def one(chosen: dict[str, Any]) -> Try | str:
            key = family.emit(match, chosen).digest  # some parameters change nothing for some
            if key not in tried:
                tried[key] = self.attempt(family, match, chosen)
                if isinstance(tried[key], str):
                    wrong.append(f"{family.name} {chosen}: {tried[key]}")
            return tried[key]

        values = family.parameters(match)
        first = one(params)
        best = first if isinstance(first, Try) else None
        for name, choices in values.items():
            if len(tried) >= self.options.tries:
                break
            at = best.params if best else params
            changed = [{**at, name: value} for value in choices[1:] if value != at[name]]
            if at[name] != choices[0]:
                changed.append({**at, name: choices[0]})
            self._compile_ahead(family, match, changed)
            for chosen in changed[: max(0, self.options.tries - len(tried))]:
                found = one(chosen)
                if isinstance(found, Try) and (best is None or found.us < best.us):
                    best = found
        return best, len(tried)

    def _compile_ahead(self, family: Any, match: Any, sets: list[dict[str, Any]]) -> None:
        """Fill the cache with all of them at once; the processes run side by side."""
        candidates = [family.emit(match, params) for params in sets]
        with ThreadPoolExecutor(8) as pool:
            for candidate in candidates:
                names = tuple(kernel.name for kernel in candidate.plan.kernels)
                pool.submit(build_cuda, candidate.source, names, cache=self.options.cache)

    def measure(self, best: Try) -> dict[str, Any]:
        """The chosen kernel beside eager and torch.compile, on fresh samples."""
        calls: dict[str, Callable[[], object]] = {
            "ours": best.launch,
            "eager": lambda: self.case.fn(*self.inputs),
        }
        note = ""
        if self.options.compile:
            try:
                calls["compile"] = self._compiled()
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

    def _compiled(self) -> Callable[[], object]:
        torch._dynamo.reset()
        compiled = torch.compile(
            self.case.fn, mode="max-autotune-no-cudagraphs", dynamic=False, fullgraph=True
        )
        for _ in range(3):
            compiled(*self.inputs)
        torch.cuda.synchronize()
        return lambda: compiled(*self.inputs)


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
    best, wrong, tried = bench.search()
    found: dict[str, Any] = {
        "case": case.name,
        "bytes": moved_bytes(bench.target),
        "eager_error": bench.eager_error,
        "tried": tried,
        "wrong": wrong[:5],
    }
    if best is None:
        return {**found, "failed": wrong[0] if wrong else "no recipe knows it"}
    found |= {"family": best.family, "params": best.params, "error": best.error}
    found |= {"registers": best.registers, "spills": best.spills}
    found |= bench.measure(best)
    return {**found, "seconds": time.perf_counter() - start}


def main() -> int:
    """``python -m benchmarks.gpu_ops_worker REQUEST.json``: writes lines to the file it names."""
    request = json.loads(Path(sys.argv[1]).read_text())
    options = Options(
        Path(request["cache"]), request["compile"], request["tries"], request["rounds"]
    )
    known = {case.name: case for case in CASES}
    torch.manual_seed(0)
    with Path(request["out"]).open("a", buffering=1) as out, torch.inference_mode():
        flush = Flush(options.cache)
        for name in request["cases"]:
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
