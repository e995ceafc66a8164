"""Seconds of each stage for clearly faster candidates, by family and by the size of the inputs."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from benchmarks.report import measure_row
from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.judge.bench import Bench
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.judge import Judge
from kforge_nb.settings import Settings
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.target import Occurrence, Target, TensorSpec

__all__ = ["BAR_SECONDS", "late", "stage_rows"]

BAR_SECONDS = 3.0
"""Judging one clearly faster candidate may take so long, where inputs are under 64 MB."""
_COLUMNS = 768
_ROWS = {"0.2 MB": 64, "16 MB": 5120, "60 MB": 19200}
_TURNS = 3
_SOURCE = """
#include <cmath>
#include <cstdint>
extern "C" void kernel(const float* __restrict x, float* __restrict y, int64_t rows, int64_t c,
                       int32_t nthreads) {
#pragma omp parallel for num_threads(nthreads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = x + r * c;
    BODY
  }
}
"""


@dataclass(frozen=True, slots=True)
class _Family:
    """What eager computes in several passes, and one row of the kernel that needs one."""

    family: str
    function: Callable[[Any], Any]
    body: str


_FAMILIES = {
    "element-wise chain": _Family(
        "activation",
        lambda x: torch.relu(x * 1.5 + 0.5) * x + x,
        """for (int64_t i = 0; i < c; ++i) {
      const float t = a[i] * 1.5f + 0.5f;
      y[r * c + i] = (t > 0.0f ? t : 0.0f) * a[i] + a[i];
    }""",
    ),
    "RMS norm": _Family(
        "rms_norm",
        lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6),
        """float q = 0.0f;
#pragma omp simd reduction(+ : q)
    for (int64_t i = 0; i < c; ++i) q += a[i] * a[i];
    const float k = 1.0f / std::sqrt(q / c + 1e-6f);
    for (int64_t i = 0; i < c; ++i) y[r * c + i] = a[i] * k;""",
    ),
    "row sum": _Family(
        "reduction",
        lambda x: (x * x + 1.0).sqrt().sum(-1),
        """float q = 0.0f;
#pragma omp simd reduction(+ : q)
    for (int64_t i = 0; i < c; ++i) q += std::sqrt(a[i] * a[i] + 1.0f);
    y[r] = q;""",
    ),
}


def _target(family: _Family, rows: int) -> Target:
    graph = fx.Graph()
    proxy = fx.Proxy(graph.placeholder("in0"), fx.proxy.GraphAppendingTracer(graph))
    graph.output((family.function(proxy).node,))
    values = torch.randn(rows, _COLUMNS)
    captured = CapturedInputs()
    captured.add([values])
    captured.finish()
    return Target(
        fingerprint=f"stages-{family.family}-{rows}",
        name=family.family,
        family=family.family,
        granularity="region",
        graph=fx.GraphModule(torch.nn.Module(), graph),
        inputs=(TensorSpec.of(values),),
        outputs=(TensorSpec.of(family.function(values)),),
        occurrences=[Occurrence(0, "stages", ("row",))],
        captured=captured,
    )


def _candidate(family: _Family) -> Candidate:
    plan = LaunchPlan(
        (Kernel("kernel", ("in0", "out0", "i64:ROWS", "i64:C", "i32:nthreads")),),
        {"C": "in0.shape[1]", "ROWS": "in0.shape[0]"},
    )
    return Candidate("cpp", _SOURCE.replace("BODY", family.body), plan, family.family)


def _rows_of(name: str, bench: Bench, candidate: Candidate) -> list[dict[str, Any]]:
    """``judged`` leaves out the compiler and the wait for others, as the judge counts them."""
    found = [bench.evaluate(candidate) for _ in range(_TURNS)]
    stages: dict[str, list[float]] = {"judged": []}
    for evaluation in found:
        seconds = dict(evaluation.seconds)
        apart = seconds.pop("compile", 0.0) + seconds.pop("wait", 0.0)
        stages["judged"].append(seconds.pop("total") - apart)
        for stage, took in seconds.items():
            stages.setdefault(stage, []).append(took)
    said = {
        "verdict": ", ".join(str(evaluation.verdict) for evaluation in found),
        "reason": found[-1].reason,
    }
    return [
        measure_row(
            f"stages: {name}, {stage}", statistics.median(took), "s", low=min(took),
            high=max(took), n=len(took), **(said if stage == "judged" else {}),
        )
        for stage, took in stages.items()
    ]  # fmt: skip


def stage_rows() -> list[dict[str, Any]]:
    """Rows for each family and size: the median of a few evaluations with the least and most."""
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="kforge-bench-") as folder,
        Judge(Settings(), Path(folder)) as judge,
    ):
        for title, family in _FAMILIES.items():
            for size, count in _ROWS.items():
                bench = judge.open(_target(family, count))
                rows += _rows_of(f"{title} of {size} in", bench, _candidate(family))
                bench.close()
    return rows


def late(rows: Iterable[dict[str, Any]]) -> list[str]:
    """What took longer than the bar allows, or was not accepted after all, in words."""
    judged = [row for row in rows if row["name"].endswith(", judged")]
    return [
        *(
            f"{row['name']}: at most {BAR_SECONDS:g} s, and it is {row['value']:.2f} s"
            for row in judged
            if row["value"] > BAR_SECONDS
        ),
        *(
            f"{row['name']}: clearly faster, and yet {row['verdict']}: {row['reason']}"
            for row in judged
            if set(row["verdict"].split(", ")) != {str(Verdict.ACCEPTED)}
        ),
    ]
