"""Honest kernels of odd styles must neither be refused nor called suspicious nor wrong."""

from __future__ import annotations

import pytest
import torch

from kforge_nb.candidates.candidate import LaunchPlan
from kforge_nb.judge import bench as benches
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.timing import Plan
from kforge_nb.settings import Settings
from tests.honest import cpp_cases
from tests.judge.kernels import ROWS_PLAN, candidate, rms_norm, silu, softmax, target_of

Case = tuple[str, str, LaunchPlan]
CASES: dict[str, Case] = {
    **{f"norm: {n}": ("norm", s, ROWS_PLAN) for n, s in cpp_cases.NORMS.items()},
    "norm: scratch, one kept and one of zeros": ("norm", cpp_cases.SPLIT, cpp_cases.FUSED),
    **{f"silu: {n}": ("silu", s, ROWS_PLAN) for n, s in cpp_cases.SIGMOIDS.items()},
    **{f"softmax: {n}": ("softmax", s, ROWS_PLAN) for n, s in cpp_cases.SOFTMAXES.items()},
    **{f"odd: {n}": ("odd", s, ROWS_PLAN) for n, s in cpp_cases.NORM_OF_ODD_ROWS.items()},
}
TARGETS = {
    "norm": (rms_norm, (64, 512), "rms_norm"),
    "silu": (silu, (64, 512), "activation"),
    "softmax": (softmax, (64, 512), "softmax"),
    "odd": (rms_norm, (33, 1023), "rms_norm"),
}


@pytest.fixture(scope="module")
def open_bench(tmp_path_factory):
    benches_by_name = {}
    with Judge(Settings(threads=1), tmp_path_factory.mktemp("honest")) as judge:

        def opened(name: str):
            if name not in benches_by_name:
                function, shape, family = TARGETS[name]
                torch.manual_seed(4)
                benches_by_name[name] = judge.open(
                    target_of(function, torch.randn(*shape), family=family)
                )
            return benches_by_name[name]

        yield opened


@pytest.mark.parametrize("name", CASES)
def test_an_honest_kernel_is_right(name, open_bench, monkeypatch):
    """Right in every input set, nothing found against it, and only its speed is judged."""
    task, source, plan = CASES[name]
    monkeypatch.setattr(benches, "EVALUATE", Plan(seconds=0.3, narrow=0.5, pairs=10))
    found = open_bench(task).evaluate(candidate(source, plan))
    assert found.correct, f"{found.verdict}: {found.reason} {found.log[:400]}"


def test_there_are_enough_of_them():
    """Forty and more, each of another style."""
    assert len(CASES) >= 40
    assert len({source for _, source, _ in CASES.values()}) >= 40
