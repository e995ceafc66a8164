"""Judging a trial's answers: CUDA without a GPU, the best recipe, and two kernels side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import prompt_judging
from benchmarks.prompt_judging import Bench, best_recipe, compile_only
from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.timing import Plan
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.settings import Settings
from tests.cuda.targets import on_cuda
from tests.helpers import make_target
from tests.proposers.talk import good

CUDA = 'extern "C" __global__ void f(const float* a, float* b, int n) {\n  BODY\n}'
PLAN = LaunchPlan(
    (Kernel("f", ("in0", "out0", "i32:n"), ("ceil_div(n, 64)", "1", "1"), ("64", "1", "1")),),
    {"n": "numel(in0)"},
)
TARGET = make_target(lambda x: x.exp(), torch.randn(64, 512), family="pointwise")


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("const int i = blockIdx.x * 64 + threadIdx.x; if (i < n) b[i] = expf(a[i]);", "undecided"),
        ("int64_t i = 0; b[i] = a[i];", "compile_failed"),
        ('printf("%d", n); b[0] = a[0];', "refused"),
    ],
)
def test_cuda_without_a_gpu_is_held_to_what_can_be_said(
    body: str, verdict: str, tmp_path: Path
) -> None:
    """Compiler and policy decide; what passes is not called right."""
    pytest.importorskip("nvidia.cu13")
    found = compile_only(
        Candidate("cuda", CUDA.replace("BODY", body), PLAN), on_cuda(TARGET), tmp_path
    )
    assert found.verdict == verdict, found.reason
    assert found.timings == ()
    if verdict == "undecided":
        assert found.resources["kernels"]["f"]["registers"] > 0


def test_a_plan_that_breaks_the_contract_is_refused(tmp_path: Path) -> None:
    """Before any compiler is asked."""
    plan = LaunchPlan((Kernel("f", ("in0",)),))
    found = compile_only(Candidate("cuda", CUDA, plan), on_cuda(TARGET), tmp_path)
    assert found.verdict is Verdict.REFUSED


class Scripted(Bench):
    """A bench whose speed-ups are told."""

    def evaluate(self, candidate: Candidate) -> Evaluation:
        self.seen.append(candidate.digest)  # type: ignore[attr-defined]
        ratio = float(len(self.seen) % 4)  # type: ignore[attr-defined]
        row = Comparison("eager", ratio, ratio, ratio, 5, 1.0, 1.0)
        verdict = Verdict.ACCEPTED if ratio else Verdict.WRONG
        return Evaluation(verdict, "", timings=(row,))


def test_the_best_recipe_is_the_fastest_that_is_right(tmp_path: Path) -> None:
    """Drafts and single changes are tried, never the same one twice, as many as allowed."""
    bench = Scripted(TARGET, None, tmp_path)
    bench.seen = []  # type: ignore[attr-defined]
    best = best_recipe(bench, 8)
    assert best is not None
    assert best.evaluation.speedup == 3.0
    assert len(bench.seen) == len(set(bench.seen)) <= 8  # type: ignore[attr-defined]
    assert len(bench.seen) > 4  # type: ignore[attr-defined]


def test_two_kernels_are_timed_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does the work forty times over is far slower than the one that does not."""
    monkeypatch.setattr(prompt_judging, "DUEL", Plan(seconds=0.5, narrow=0.5, pairs=4))
    work = "out0[i] = std::exp(in0[i]);"
    waste = f"for (volatile int w = 0; w < 40; w = w + 1) {work}"
    ours, theirs = (parse(good(body), TARGET, "cpp") for body in (work, waste))
    assert isinstance(ours, Answer)
    assert isinstance(theirs, Answer)
    with Judge(Settings(threads=1), tmp_path) as judge:
        bench = Bench(TARGET, judge.open(TARGET), tmp_path)
        found = bench.duel(ours.candidate, theirs.candidate)
    assert found.against == "recipe"
    assert found.ratio > 3
