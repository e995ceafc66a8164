"""Small hand-written kernels for the guard's tests, compiled once a test session.

The C++ ones are here, those for a GPU in ``cuda_kernels``; ``device`` runs a test on both.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch
from kforge_nb.compilers import cpp
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.workload.capture import watch
from tests.guard import cuda_kernels

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))

ADD_RELU = r"""
#include <cstdint>
extern "C" void add_relu(const float* a, const float* b, float* o, int64_t n, int32_t nthreads) {
  #pragma omp parallel for num_threads(nthreads) if (n > 100000)
  for (int64_t i = 0; i < n; ++i) {
    float v = a[i] + b[i];
    o[i] = v > 0 || v != v ? v : 0;
  }
}
"""

SOFTMAX = r"""
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* o, float* spare, int64_t rows, int64_t c,
                        int32_t nthreads) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * c;
    float* out = o + r * c;
    float top = in[0], sum = 0;
    for (int64_t i = 1; i < c; ++i) top = std::fmax(top, in[i]);
    for (int64_t i = 0; i < c; ++i) sum += out[i] = std::exp(in[i] - top);
    spare[r] = sum;
    for (int64_t i = 0; i < c; ++i) out[i] /= spare[r];
  }
}
"""

RMS_NORM = r"""
#include <cmath>
#include <cstdint>
extern "C" void rms_norm(const float* x, const float* w, float* o, int64_t rows, int64_t c,
                         float eps, int32_t nthreads) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * c;
    double sum = 0;
    for (int64_t i = 0; i < c; ++i) sum += double(in[i]) * in[i];
    const float scale = 1 / std::sqrt(float(sum / c) + eps);
    for (int64_t i = 0; i < c; ++i) o[r * c + i] = in[i] * scale * w[i];
  }
}
"""


def add_relu(source: str = ADD_RELU) -> Candidate:
    """relu(in0 + in1) over contiguous float32."""
    args = ("in0", "in1", "out0", "i64:numel(in0)", "i32:nthreads")
    return Candidate("cpp", source, LaunchPlan((Kernel("add_relu", args),)), "add relu")


def softmax() -> Candidate:
    """Softmax over the last axis of contiguous float32, with a scratch buffer."""
    args = ("in0", "out0", "spare", "i64:R", "i64:C", "i32:nthreads")
    symbols = {"C": "in0.shape[-1]", "R": "numel(in0) // C"}
    plan = LaunchPlan((Kernel("softmax", args),), symbols, {"spare": Scratch("float32", ("R",))})
    return Candidate("cpp", SOFTMAX, plan, "softmax")


def rms_norm(x: str = "in0", weight: str = "in1", eps: float = 1e-6) -> Candidate:
    """RMS norm over the last axis of contiguous float32, with a weight."""
    args = (x, weight, "out0", "i64:R", "i64:C", f"f32:{eps}", "i32:nthreads")
    symbols = {"C": f"{x}.shape[-1]", "R": f"numel({x}) // C"}
    return Candidate("cpp", RMS_NORM, LaunchPlan((Kernel("rms_norm", args),), symbols), "rms norm")


BOTH = r"""
#include <cstdint>
extern "C" void both(const float* a, const float* b, float* sum, float* relu, int64_t n,
                     int32_t nthreads) {
  for (int64_t i = 0; i < n; ++i) {
    sum[i] = a[i] + b[i];
    relu[i] = sum[i] > 0 || sum[i] != sum[i] ? sum[i] : 0;
  }
}
"""


def both() -> Candidate:
    """in0 + in1 and its relu, two outputs."""
    args = ("in0", "in1", "out0", "out1", "i64:numel(in0)", "i32:nthreads")
    return Candidate("cpp", BOTH, LaunchPlan((Kernel("both", args),)), "both")


def compiled(candidate: Candidate, folder: Path) -> Path:
    """The candidate's library or cubin, built into ``folder``."""
    if candidate.language == "cuda":
        entries = tuple(kernel.name for kernel in candidate.plan.kernels)
        cubin = build_cuda(candidate.source, entries, cache=folder)
        assert isinstance(cubin, CudaBuilt), cubin
        return cubin.cubin
    built = cpp.build(candidate.source, candidate.plan.kernels[0].name, cache=folder)
    assert isinstance(built, cpp.Built), built
    return built.library


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Compile a candidate; the same source is compiled once a session."""
    folder = tmp_path_factory.mktemp("kernels")
    return lambda candidate: compiled(candidate, folder)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """The device of a test that holds for both; skips where there is no GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return request.param


def kernels_for(device):
    """The test kernels for a device, by name."""
    home = cuda_kernels if str(device).startswith("cuda") else None
    local = {"add_relu": add_relu, "softmax": softmax, "rms_norm": rms_norm, "both": both}
    return {name: getattr(home, name) if home else here for name, here in local.items()}


@pytest.fixture
def kernels(request):
    """The test kernels by name: for the test's ``device``, for the CPU where it has none."""
    asked = "device" in request.fixturenames
    return kernels_for(request.getfixturevalue("device") if asked else "cpu")


class RMSNorm(torch.nn.Module):
    """RMS norm as Llama-like models compose it."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class Block(torch.nn.Module):
    """Linear, RMS norm, linear, add and relu, softmax: three targets between vendor ops."""

    def __init__(self, size=64):
        super().__init__()
        self.first = torch.nn.Linear(size, size)
        self.norm = RMSNorm(size)
        self.second = torch.nn.Linear(size, size)
        self.last = torch.nn.Linear(size, size)

    def forward(self, x):
        h = self.second(self.norm(self.first(x)))
        return self.last(torch.relu(h + x)).softmax(-1)


def candidate_for(cut):
    """A kernel of this file for a cut, or None; inputs are told apart by their rank."""
    own = kernels_for(cut.input_specs[0].device)
    if cut.family == "softmax":
        return own["softmax"]()
    if cut.family == "rms_norm":
        ranks = [len(spec.shape) for spec in cut.input_specs]
        weight = ranks.index(1)
        return own["rms_norm"](f"in{1 - weight}", f"in{weight}")
    if {node.target for node in cut.nodes} >= {torch.relu} and len(cut.inputs) == 2:
        return own["add_relu"]()
    return None


def captured(module, *args):
    """(graph, example inputs) of each Dynamo graph of one call under no_grad."""
    found = []

    def record(gm, example_inputs):
        found.append((gm, list(example_inputs)))
        return gm.forward

    entry = torch.compile(lambda m, a: m(*a), backend=record, dynamic=False)
    with torch.no_grad():
        entry(module, args)
    return found


@pytest.fixture
def accept(build):
    """``accept(module, *args)``: accepted kernels for all its cuts that this file can compute."""

    def find(module, *args, granularity="region", choose=candidate_for):
        from kforge_nb.guard.accepted import Accepted
        from kforge_nb.targets import partition
        from kforge_nb.targets.build import target_of

        found = {}
        for gm, example_inputs in captured(module, *args):
            for cut in partition.cut(gm, example_inputs, granularity):
                candidate = choose(cut)
                if candidate is not None and cut.fingerprint not in found:
                    found[cut.fingerprint] = Accepted.of_target(
                        target_of(cut), candidate, build(candidate)
                    )
        return list(found.values())

    return find


@pytest.fixture
def make_block(request):
    """``make_block(seed)``: a Block in eval mode, on the test's ``device`` if it has one."""
    asked = "device" in request.fixturenames
    place = request.getfixturevalue("device") if asked else "cpu"

    def make(seed=0):
        torch.manual_seed(seed)
        return Block().eval().to(place)

    return make


@pytest.fixture
def block(make_block):
    """A seeded Block in eval mode."""
    return make_block()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """No compiled code of one test serves another."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def x():
    """The block's input."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def workload(block, x):
    """One recorded call under no_grad."""

    def cell():
        with torch.no_grad():
            return block(x)

    return watch(cell)
