"""The guard's test kernels in CUDA: what ``conftest`` has in C++, under the same titles.

One warp a row. Lines that tests change are spelled as in the C++ sources.
"""

from __future__ import annotations

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch

__all__ = ["add_relu", "both", "rms_norm", "softmax"]

ADD_RELU = r"""
extern "C" __global__ void add_relu(const float* a, const float* b, float* o, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = a[i] + b[i];
  o[i] = v > 0 || v != v ? v : 0;
}
"""

SOFTMAX = r"""
__device__ float all(float v, bool largest) {
  for (int s = 16; s; s >>= 1) {
    const float other = __shfl_xor_sync(~0u, v, s);
    v = largest ? fmaxf(v, other) : v + other;
  }
  return v;
}
extern "C" __global__ void softmax(const float* x, float* o, float* spare, long long rows,
                                   long long c) {
  const long long r = blockIdx.x;
  const float* in = x + r * c;
  float* out = o + r * c;
  float top = in[0], sum = 0;
  for (long long i = threadIdx.x; i < c; i += 32) top = fmaxf(top, in[i]);
  top = all(top, true);
  for (long long i = threadIdx.x; i < c; i += 32) sum += out[i] = expf(in[i] - top);
  sum = all(sum, false);
  spare[r] = sum;
  __syncwarp();
  for (long long i = threadIdx.x; i < c; i += 32) out[i] /= spare[r];
}
"""

RMS_NORM = r"""
extern "C" __global__ void rms_norm(const float* x, const float* w, float* o, long long rows,
                                    long long c, float eps) {
  const long long r = blockIdx.x;
  const float* in = x + r * c;
  double sum = 0;
  for (long long i = threadIdx.x; i < c; i += 32) sum += double(in[i]) * in[i];
  for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(~0u, sum, s);
  const float scale = 1 / sqrtf(float(sum / c) + eps);
  for (long long i = threadIdx.x; i < c; i += 32) o[r * c + i] = in[i] * scale * w[i];
}
"""

BOTH = r"""
extern "C" __global__ void both(const float* a, const float* b, float* sum, float* relu,
                                long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  sum[i] = a[i] + b[i];
  relu[i] = sum[i] > 0 || sum[i] != sum[i] ? sum[i] : 0;
}
"""

_FLAT = (("ceil_div(numel(in0), 256)", "1", "1"), ("256", "1", "1"))
_ROWS = (("R", "1", "1"), ("32", "1", "1"))


def add_relu(source: str = ADD_RELU) -> Candidate:
    """relu(in0 + in1) over contiguous float32."""
    args = ("in0", "in1", "out0", "i64:numel(in0)")
    return Candidate("cuda", source, LaunchPlan((Kernel("add_relu", args, *_FLAT),)), "add relu")


def softmax() -> Candidate:
    """Softmax over the last axis of contiguous float32, with a scratch buffer."""
    args = ("in0", "out0", "spare", "i64:R", "i64:C")
    symbols = {"C": "in0.shape[-1]", "R": "numel(in0) // C"}
    scratch = {"spare": Scratch("float32", ("R",))}
    plan = LaunchPlan((Kernel("softmax", args, *_ROWS),), symbols, scratch)
    return Candidate("cuda", SOFTMAX, plan, "softmax")


def rms_norm(x: str = "in0", weight: str = "in1", eps: float = 1e-6) -> Candidate:
    """RMS norm over the last axis of contiguous float32, with a weight."""
    args = (x, weight, "out0", "i64:R", "i64:C", f"f32:{eps}")
    symbols = {"C": f"{x}.shape[-1]", "R": f"numel({x}) // C"}
    plan = LaunchPlan((Kernel("rms_norm", args, *_ROWS),), symbols)
    return Candidate("cuda", RMS_NORM, plan, "rms norm")


def both() -> Candidate:
    """in0 + in1 and its relu, two outputs."""
    args = ("in0", "in1", "out0", "out1", "i64:numel(in0)")
    return Candidate("cuda", BOTH, LaunchPlan((Kernel("both", args, *_FLAT),)), "both")
