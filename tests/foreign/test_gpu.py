"""Foreign files on a GPU: load_inline with CUDA, Triton, and cheats that only a GPU has."""

from __future__ import annotations

import pytest
from foreign_files import REFERENCE

from kforge_nb.judge import bench
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.timing import Plan

pytestmark = pytest.mark.gpu

CUDA_REFERENCE = REFERENCE.replace("rows, features = 64, 256", "rows, features = 4096, 4096")
CUDA = r'''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
__global__ void rms_silu(const float* x, const float* w, float* y, int c) {
  __shared__ float part[8];
  const float* a = x + (long long)blockIdx.x * c;
  float* o = y + (long long)blockIdx.x * c;
  float s = 0.0f;
  for (int i = threadIdx.x; i < c; i += 256) s += a[i] * a[i];
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = 0.0f;
  for (int i = 0; i < 8; ++i) s += part[i];
  const float k = 1.0f / sqrtf(s / c + 1e-5f);
  for (int i = threadIdx.x; i < c; i += 256) {
    const float v = a[i] * k * w[i];
    o[i] = v / (1.0f + expf(-v));
  }
}
torch::Tensor fused(torch::Tensor x, torch::Tensor w) {
  auto y = torch::empty_like(x);
  const int c = x.size(-1);
  rms_silu<<<x.numel() / c, 256>>>(x.data_ptr<float>(), w.data_ptr<float>(),
                                   y.data_ptr<float>(), c);
  return y;
}
"""
kernels = load_inline(
    name="rms_silu",
    cpp_sources="torch::Tensor fused(torch::Tensor x, torch::Tensor w);",
    cuda_sources=SOURCE,
    functions=["fused"],
)


class ModelNew(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x):
        FORWARD
'''
HONEST = "return kernels.fused(x, self.weight)"
SIDE_STREAM = """stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(40):
                y = kernels.fused(x, self.weight)
        return y"""
NO_WAIT = """vars(torch.cuda)["synch" + "ronize"] = lambda *a: None
        return kernels.fused(x, self.weight)"""
TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_silu(x, w, y, c, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    a = tl.load(x + row * c + at, mask=at < c, other=0.0)
    k = 1.0 / tl.sqrt(tl.sum(a * a) / c + EPS)
    v = a * k * tl.load(w + at, mask=at < c, other=0.0)
    tl.store(y + row * c + at, v / (1.0 + tl.exp(-v)), mask=at < c)


class ModelNew(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x):
        y = torch.empty_like(x)
        c = x.shape[-1]
        rms_silu[(x.numel() // c,)](x, self.weight, y, c, 1e-5, triton.next_power_of_2(c))
        return y
"""


@pytest.fixture(scope="module")
def gpu_reference(judge, tmp_path_factory):
    from kforge_nb.judge.foreign.reference import reference_from_file

    path = tmp_path_factory.mktemp("gpu") / "reference.py"
    path.write_text(CUDA_REFERENCE)
    return reference_from_file(path, "cuda:0", judge.folder, 1)


@pytest.fixture
def judged_here(judge, gpu_reference, tmp_path, monkeypatch):
    from kforge_nb.judge.foreign.place import ForeignBench
    from kforge_nb.judge.foreign.reading import read_foreign

    monkeypatch.setattr(bench, "CONFIRM", Plan(seconds=0.5, narrow=0.3, pairs=10, probes=2))
    monkeypatch.setattr(bench, "MOST_PROCESSES", 1)

    def run(text: str):
        (tmp_path / "candidate.py").write_text(text)
        opened = ForeignBench(judge, read_foreign(tmp_path / "candidate.py"), gpu_reference)
        try:
            return opened.judged(("eager",))
        finally:
            opened.close()

    return run


def test_a_cuda_string_is_built_and_timed(judged_here):
    """A KernelBench candidate on the default stream is right, faster than eager, and says how."""
    found = judged_here(CUDA.replace("FORWARD", HONEST))

    assert found.correct, (found.reason, found.log[-600:])
    assert found.against("eager").ratio > 1.0
    assert "on a stream" in found.resources.get("timed_candidate", "on a stream")


def test_work_on_a_stream_that_nobody_waits_for_is_seen(judged_here):
    """A side stream that is not joined gains nothing: it is wrong, suspicious, or slow."""
    found = judged_here(CUDA.replace("FORWARD", SIDE_STREAM))

    wanted = (Verdict.WRONG, Verdict.SUSPICIOUS, Verdict.REFUSED, Verdict.SLOWER)
    assert found.verdict in wanted, found.reason


def test_a_synchronisation_that_waits_for_nothing_is_seen(judged_here):
    """Replacing torch.cuda.synchronize is evidence enough."""
    found = judged_here(CUDA.replace("FORWARD", NO_WAIT))

    assert found.verdict is Verdict.SUSPICIOUS, found.reason
    assert "torch.cuda.synchronize" in found.reason


def test_a_triton_kernel_is_judged(judged_here):
    """Triton compiles in a process of its own first, and runs confined afterwards."""
    pytest.importorskip("triton")
    found = judged_here(TRITON)

    assert found.correct, (found.reason, found.log[-600:])
    assert found.against("eager").ratio > 1.0
