"""What tests of the CUDA runner share: the fake driver, code for it, a target, a starter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.candidate import LaunchPlan
from kforge_nb.judge.cases import make_case
from kforge_nb.judge.cuda.session import CudaCandidate
from tests.judge.kernels import target_of
from tests.judge_cuda.fakes import CODE, build_fake, on_device, start, timed_of

N = 1000


@pytest.fixture(scope="session")
def fake(tmp_path_factory) -> str:
    return str(build_fake(tmp_path_factory.mktemp("fake")))


@pytest.fixture(scope="session")
def cubin(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("code") / "kernel.cubin"
    path.write_text(CODE)
    return path


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(1)
    return on_device(target_of(lambda x: x * 2.0, torch.randn(N)))


@pytest.fixture(scope="module")
def seen():
    return [torch.randn(N)]


@pytest.fixture(scope="module")
def timed(target, seen):
    inputs = timed_of(target, seen)
    yield inputs
    inputs.close()


@pytest.fixture(scope="module")
def case(target, seen):
    return make_case(target.graph, "captured 0", seen)


@pytest.fixture
def run(target, timed, fake, cubin):
    """Starts a candidate; it is ended with the test."""
    opened: list[CudaCandidate] = []

    def starter(plan: LaunchPlan, of=None, slots=None, code: Path = cubin, **limits):
        made = start(of or target, slots or timed, plan, code, fake, **limits)
        opened.append(made)
        return made

    yield starter
    for made in opened:
        made.__exit__(None, None, None)
