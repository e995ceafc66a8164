"""Honest CUDA kernels: nothing is found against them, and on a GPU they are right."""

from __future__ import annotations

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import resolve, validate
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda, find_nvrtc
from kforge_nb.errors import MissingTool
from kforge_nb.judge import bench as benches
from kforge_nb.judge.cuda.cubin import inspect_cubin
from kforge_nb.judge.cuda.policy import scan_cuda
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.timing import Plan
from kforge_nb.settings import Settings
from kforge_nb.targets.target import TensorSpec
from tests.exploits.test_cuda import rms_norm
from tests.honest.cuda_cases import CASES
from tests.judge.kernels import target_of


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_found_against_an_honest_kernel(name, tmp_path):
    """Neither in the source nor in the compiled code."""
    source, plan = CASES[name]
    x, w = (TensorSpec(s, t, "float32", "cuda:0") for s, t in
            (((4096, 1024), (1024, 1)), ((1024,), (1,))))  # fmt: skip
    validate(plan, "cuda", (x, w), (x,))
    resolve(plan, (x, w), (x,))
    assert scan_cuda(source) == []
    try:
        find_nvrtc()
    except MissingTool as missing:
        pytest.skip(str(missing))
    names = tuple(kernel.name for kernel in plan.kernels)
    built = build_cuda(source, names, cache=tmp_path, arch="sm_90")
    assert isinstance(built, CudaBuilt), built.distilled
    assert inspect_cubin(built.cubin) == []


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with Judge(Settings(threads=4), tmp_path_factory.mktemp("honest")) as judge:
        torch.manual_seed(0)
        x, w = torch.randn(4096, 1024, device="cuda:0"), torch.rand(1024, device="cuda:0") + 0.5
        yield judge.open(target_of(rms_norm, x, w, family="rms_norm"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_an_honest_kernel_is_right_on_a_gpu(name, bench, monkeypatch):
    """Right in every input set and in timed calls."""
    monkeypatch.setattr(benches, "EVALUATE", Plan(seconds=0.6, narrow=0.3, pairs=10))
    source, plan = CASES[name]
    found = bench.evaluate(Candidate("cuda", source, plan, name))
    assert found.correct, f"{found.verdict}: {found.reason}"
