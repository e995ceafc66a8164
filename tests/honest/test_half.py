"""Honest kernels on half-precision targets must not be refused for how they round."""

from __future__ import annotations

import platform

import pytest
import torch

from kforge_nb.judge import bench as benches
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.timing import Plan
from kforge_nb.settings import Settings
from tests.honest.half_cases import CHAIN_PLAN, CHAINS, NORM_PLAN, NORMS
from tests.judge.kernels import candidate, target_of

CASES = {
    **{name: ("norm", *case, NORM_PLAN) for name, case in NORMS.items()},
    **{name: ("chain", *case, CHAIN_PLAN) for name, case in CHAINS.items()},
}
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="some are written for SSE")


def norm(x, w):
    """As models compose it: in float32, rounded before the weight."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.type_as(x)


def chain(a, b):
    """Three operators, each of which eager rounds."""
    return (a * b + a) * 0.5


def target(task: str, dtype: str):
    """A small target of a task in a dtype."""
    torch.manual_seed(4)
    kind = getattr(torch, dtype)
    second = torch.rand(256) + 0.5 if task == "norm" else torch.randn(64, 256)
    function = norm if task == "norm" else chain
    return target_of(function, torch.randn(64, 256).to(kind), second.to(kind), name=task)


@pytest.fixture(scope="module")
def open_bench(tmp_path_factory):
    opened = {}
    with Judge(Settings(threads=1), tmp_path_factory.mktemp("half")) as judge:

        def open_one(task: str, dtype: str):
            if (task, dtype) not in opened:
                opened[task, dtype] = judge.open(target(task, dtype))
            return opened[task, dtype]

        yield open_one


@pytest.mark.parametrize("name", CASES)
def test_an_honest_kernel_in_half_precision_is_right(name, open_bench, monkeypatch):
    """Right in every input set, and only its speed is judged."""
    task, dtype, source, plan = CASES[name]
    monkeypatch.setattr(benches, "EVALUATE", Plan(seconds=0.2, narrow=0.5, pairs=10))
    found = open_bench(task, dtype).evaluate(candidate(source, plan, name))
    assert found.correct, f"{found.verdict}: {found.reason} {found.log[:400]}"
