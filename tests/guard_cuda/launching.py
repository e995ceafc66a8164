"""Small CUDA candidates and shared checks for the launch op's tests on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import fx

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.guard import launch
from kforge_nb.targets.target import TensorSpec

__all__ = ["SPEC", "add_relu", "build", "call", "graph", "reading_late", "register", "two_steps"]

SPEC = TensorSpec((8, 64), (64, 1), "float32", "cuda:0")

ADD_RELU = r"""
extern "C" __global__ void add_relu(const float4* a, const float4* b, float4* o, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i * 4 >= n) return;
  const float4 x = a[i], y = b[i];
  o[i] = make_float4(fmaxf(x.x + y.x, 0), fmaxf(x.y + y.y, 0), fmaxf(x.z + y.z, 0),
                     fmaxf(x.w + y.w, 0));
}
"""

TWO_STEPS = r"""
extern "C" __global__ void gather(const float* x, float* sums, int* seen, long long n) {
  for (long long i = threadIdx.x + blockIdx.x * (long long)blockDim.x; i < n;
       i += (long long)blockDim.x * gridDim.x) {
    atomicAdd(sums, x[i]);
    atomicAdd(seen, 1);
  }
}
extern "C" __global__ void spread(const float* x, const float* sums, const int* seen, float* o,
                                  float scale, double shift, int n) {
  extern __shared__ float room[];
  const int i = threadIdx.x + blockIdx.x * blockDim.x;
  room[threadIdx.x] = *sums / *seen;
  __syncthreads();
  if (i < n) o[i] = scale * (x[i] - room[threadIdx.x]) + (float)shift;
}
"""


def add_relu(source: str = ADD_RELU, block: str = "64") -> Candidate:
    """relu(in0 + in1) over contiguous float32, by 16-byte accesses."""
    args = ("in0", "in1", "out0", "i64:numel(in0)")
    grid = ("ceil_div(numel(in0), 4 * 64)", "1", "1")
    return Candidate(
        "cuda", source, LaunchPlan((Kernel("add_relu", args, grid, (block, "1", "1")),))
    )


def two_steps(shared: int = 256 * 4) -> Candidate:
    """2.5 * (x - mean) + 0.25 in two kernels over zeroed scratch, with dynamic shared memory."""
    first = Kernel(
        "gather", ("in0", "sums", "seen", "i64:N"), ("4", "1", "1"), ("128", "1", "1")
    )  # fmt: skip
    second = Kernel(
        "spread",
        ("in0", "sums", "seen", "out0", "f32:2.5", "f64:0.25", "i32:N"),
        ("ceil_div(N, 256)", "1", "1"),
        ("256", "1", "1"),
        str(shared),
    )
    scratch = {"sums": Scratch("float32", ("1",), "zero"), "seen": Scratch("int32", ("1",), "zero")}
    return Candidate("cuda", TWO_STEPS, LaunchPlan((first, second), {"N": "numel(in0)"}, scratch))


def reading_late() -> Candidate:
    """add_relu that first spins for about a millisecond, so that order between streams shows."""
    spin = "{\n  const long long start = clock64();\n  while (clock64() - start < 2000000) {}\n"
    return add_relu(ADD_RELU.replace("{\n", spin, 1))


def graph(function: Any) -> fx.GraphModule:
    """The original that a kernel stands for; the function returns a tuple."""
    return fx.symbolic_trace(function)


def build(candidate: Candidate, cache: Path) -> Path:
    """The candidate's cubin for this device."""
    names = tuple(dict.fromkeys(kernel.name for kernel in candidate.plan.kernels))
    built = build_cuda(candidate.source, names, cache=cache)
    assert isinstance(built, CudaBuilt), built.distilled
    return built.cubin


def register(
    candidate: Candidate,
    cache: Path,
    original: Any = None,
    inputs: int = 2,
    shadow: int = 0,
    spec: TensorSpec = SPEC,
) -> int:
    """A fresh handle of a candidate at 8x64."""
    original = graph(original or (lambda a, b: (torch.relu(a + b),)))
    cubin = build(candidate, cache)
    return launch.register(candidate, cubin, original, [spec] * inputs, [spec], shadow=shadow)


def call(handle: int, *inputs: torch.Tensor) -> torch.Tensor:
    """One launch with one output."""
    return torch.ops.kforge.launch.default(list(inputs), handle)[0]
