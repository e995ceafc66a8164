"""How many candidates the judge takes a minute, and where the seconds go.

A fixed mix: half the candidates pass every stage, a quarter is wrong, a quarter does not compile.
No compile is found in a cache: every source is unique. C++ on the CPU, or CUDA on one GPU:
``python -m benchmarks.throughput --device cuda --json``
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import fx

from benchmarks.report import add_json_option, make_report, measure_row, write_report
from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.engines.local import LocalEngine
from kforge_nb.judge.evaluation import Evaluation
from kforge_nb.judge.judge import Judge
from kforge_nb.profile.device import facts
from kforge_nb.settings import Settings
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.target import Occurrence, Target, TensorSpec

SHAPE = (2048, 1024)
WANTED = {"cpu": 20, "cuda": 30}
"""Candidates a minute below which the exit status is 1."""

CPU_PLAN = LaunchPlan(
    (Kernel("rms_norm", ("in0", "in1", "out0", "i64:ROWS", "i64:C", "i32:nthreads")),),
    {"C": "in0.shape[1]", "ROWS": "in0.shape[0]"},
)
CPU_SOURCE = """
// UNIQUE
#include <cmath>
#include <cstdint>
extern "C" void rms_norm(const float* x, const float* w, float* y, int64_t rows, int64_t c,
                         int32_t nthreads) {
#pragma omp parallel for num_threads(nthreads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = x + r * c;
    float* o = y + r * c;
    float s = 0.0f;
#pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < c; ++i) s += a[i] * a[i];
    const float k = 1.0f / std::sqrt(s / c + EPSILON);
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) o[i] = a[i] * k * w[i];
  }
}
"""
CUDA_PLAN = LaunchPlan(
    (Kernel("rms_norm", ("in0", "in1", "out0", "i64:C"), ("ROWS", "1", "1"), ("256", "1", "1")),),
    {"C": "in0.shape[1]", "ROWS": "in0.shape[0]"},
)
CUDA_SOURCE = """
// UNIQUE
extern "C" __global__ void rms_norm(const float* x, const float* w, float* y, long long c) {
  __shared__ float part[8];
  const float* a = x + blockIdx.x * c;
  float* o = y + blockIdx.x * c;
  float s = 0.0f;
  for (int i = threadIdx.x; i < c; i += 256) s += a[i] * a[i];
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = 0.0f;
  for (int i = 0; i < 8; ++i) s += part[i];
  const float k = 1.0f / sqrtf(s / c + EPSILON);
  for (int i = threadIdx.x; i < c; i += 256) o[i] = a[i] * k * w[i];
}
"""
KINDS = {
    "passes": (("EPSILON", "1e-6f"),),
    "wrong": (("EPSILON", "1e-6f"), ("k * w[i]", "k")),
    "does not compile": (("EPSILON", "epsilon"),),
}
MIX = ("passes", "wrong", "passes", "does not compile")


def _target(device: str) -> Target:
    """RMS norm with a weight, as models compose it; 8 MB of input."""
    graph = fx.Graph()
    x, w = graph.placeholder("in0"), graph.placeholder("in1")
    square = graph.call_function(torch.pow, (x, 2))
    mean = graph.call_method("mean", (square, -1), {"keepdim": True})
    scale = graph.call_function(torch.rsqrt, (graph.call_function(torch.add, (mean, 1e-6)),))
    normed = graph.call_function(torch.mul, (x, scale))
    graph.output((graph.call_function(torch.mul, (normed, w)),))
    inputs = [torch.randn(SHAPE).to(device), (1.0 + 0.1 * torch.randn(SHAPE[1])).to(device)]
    specs = tuple(TensorSpec.of(t) for t in inputs)
    captured = CapturedInputs()
    captured.add(inputs)
    captured.finish()
    return Target(
        fingerprint="throughput",
        name="rms_norm",
        family="rms_norm",
        granularity="region",
        graph=fx.GraphModule(torch.nn.Module(), graph),
        inputs=specs,
        outputs=(specs[0],),
        occurrences=[Occurrence(0, "norm", ("mul",))],
        captured=captured,
    )


def _candidates(count: int, device: str) -> Iterator[tuple[str, Candidate]]:
    cuda = device.startswith("cuda")
    for i in range(count):
        kind = MIX[i % len(MIX)]
        source = CUDA_SOURCE if cuda else CPU_SOURCE
        for old, new in (*KINDS[kind], ("UNIQUE", uuid.uuid4().hex)):
            source = source.replace(old, new)
        yield (
            kind,
            (
                Candidate("cuda", source, CUDA_PLAN, kind)
                if cuda
                else Candidate("cpp", source, CPU_PLAN, kind)
            ),
        )


def main() -> int:
    """Judge the mix; the exit status says whether it was fast enough and rightly judged."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--candidates", type=int, default=32, help="how many, default 32")
    parser.add_argument("--workers", type=int, help="evaluations at a time, default 2 (GPU: 4)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    add_json_option(parser)
    options = parser.parse_args()
    device = "cuda:0" if options.device == "cuda" else options.device
    kind = device.partition(":")[0]
    workers = options.workers or (2 if kind == "cpu" else 4)
    mix = list(_candidates(options.candidates, device))
    with tempfile.TemporaryDirectory(prefix="kforge-bench-") as name:
        start = time.perf_counter()
        with Judge(Settings(), Path(name)) as judge, LocalEngine(workers) as engine:
            bench = judge.open(_target(device))
            opened = time.perf_counter() - start
            start = time.perf_counter()
            found = list(engine.map(bench, [candidate for _, candidate in mix]))
            seconds = time.perf_counter() - start
    kinds = [kind for kind, _ in mix]
    minute = 60 * len(mix) / seconds
    rows = [measure_row("candidates judged a minute", minute, "1/min", n=len(mix))]
    rows.append(measure_row("open a target", opened, "s"))
    rows += _stages(kinds, found)
    strange = [f"{k}: {e.verdict}: {e.reason}" for k, e in zip(kinds, found, strict=True)
               if not _expected(k, e)]  # fmt: skip
    here = {"device": facts(device)} if kind == "cuda" else {}
    report = make_report("throughput", rows, notes=strange, workers=workers, **here)
    write_report(report, options.json)
    return 0 if minute >= WANTED[kind] and not strange else 1


def _expected(kind: str, found: Evaluation) -> bool:
    if kind == "passes":
        return found.correct
    return str(found.verdict) == {"wrong": "wrong", "does not compile": "compile_failed"}[kind]


def _stages(kinds: list[str], found: list[Evaluation]) -> Iterator[dict]:
    for kind in KINDS:
        mine = [e for k, e in zip(kinds, found, strict=True) if k == kind]
        for stage in sorted({stage for e in mine for stage in e.seconds}):
            values = [e.seconds[stage] for e in mine if stage in e.seconds]
            yield measure_row(
                f"{kind}: {stage}",
                statistics.median(values),
                "s",
                low=min(values),
                high=max(values),
                n=len(values),
            )


if __name__ == "__main__":
    sys.exit(main())
