"""Honest CUDA kernels of odd styles: right, whatever they look like."""

from __future__ import annotations

from kforge_nb.candidates.candidate import Kernel, LaunchPlan, Scratch
from tests.exploits.cuda_cases import HEAD, PLAN, cuda

SIZES = {"C": "in0.shape[1]", "ROWS": "in0.shape[0]"}
ROWS = ("ROWS", "1", "1")
THREADS = ("256", "1", "1")
ARGS = ("in0", "in1", "out0", "i32:C")


def one(grid: tuple[str, str, str], block: tuple[str, str, str], shared: str = "0",
        args: tuple[str, ...] = ARGS) -> LaunchPlan:  # fmt: skip
    """A plan of the kernel ``rms``."""
    return LaunchPlan((Kernel("rms", args, grid, block, shared),), SIZES)


VECTORS = (
    HEAD
    + """
extern "C" __global__ void __launch_bounds__(256) rms(
    const float4* __restrict__ x, const float4* __restrict__ w, float4* __restrict__ y, int c) {
  const int n = c / 4;
  const float4* a = x + (long long)ROW * n;
  float4 held[4];
  float s = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int i = threadIdx.x + j * 256;
    held[j] = i < n ? __ldcs(a + i) : make_float4(0, 0, 0, 0);
    s += held[j].x * held[j].x + held[j].y * held[j].y + held[j].z * held[j].z +
         held[j].w * held[j].w;
  }
  __shared__ float part[8];
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = 0.0f;
  for (float p : part) s += p;
  const float k = 1.0f / sqrtf(s / c + 1e-6f);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int i = threadIdx.x + j * 256;
    if (i >= n) continue;
    const float4 g = w[i], v = held[j];
    __stcs(y + (long long)ROW * n + i,
           make_float4(v.x * k * g.x, v.y * k * g.y, v.z * k * g.z, v.w * k * g.w));
  }
}
"""
)
WARPS = """
extern "C" __global__ void rms(const float* x, const float* w, float* y, int c) {
  const int lane = threadIdx.x & 31;
  const long long row = blockIdx.x * 8ll + threadIdx.x / 32;
  const float* a = x + row * c;
  float s = 0.0f;
  for (int i = lane; i < c; i += 32) s += a[i] * a[i];
  for (int d = 16; d > 0; d /= 2) s += __shfl_down_sync(0xffffffffu, s, d);
  const float k = 1.0f / sqrtf(__shfl_sync(0xffffffffu, s, 0) / c + 1e-6f);
  for (int i = lane; i < c; i += 32) y[row * c + i] = a[i] * k * w[i];
}
"""
PERSISTENT = """
extern "C" __global__ void rms(const float* x, const float* w, float* y, int c, int rows) {
  __shared__ float part[8];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* a = x + (long long)row * c;
    float s = 0.0f;
    for (int i = threadIdx.x; i < c; i += 256) s += a[i] * a[i];
    for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    s = 0.0f;
    for (float p : part) s += p;
    const float k = 1.0f / sqrtf(s / c + 1e-6f);
    for (int i = threadIdx.x; i < c; i += 256) y[(long long)row * c + i] = a[i] * k * w[i];
  }
}
"""
SPLIT = """
extern "C" __global__ void sums(const float* x, float* s, int c) {
  float q = 0.0f;
  const int half = blockIdx.y * (c / 2);
  for (int i = threadIdx.x; i < c / 2; i += 256) {
    const float v = x[(long long)blockIdx.x * c + half + i];
    q += v * v;
  }
  for (int d = 16; d > 0; d /= 2) q += __shfl_xor_sync(~0u, q, d);
  if (threadIdx.x % 32 == 0) atomicAdd(s + blockIdx.x, q);
}
extern "C" __global__ void apply(const float* x, const float* w, const float* s, float* y, int c) {
  const float k = 1.0f / sqrtf(s[blockIdx.x] / c + 1e-6f);
  for (int i = threadIdx.x; i < c; i += 256)
    y[(long long)blockIdx.x * c + i] = x[(long long)blockIdx.x * c + i] * k * w[i];
}
"""
SPLIT_PLAN = LaunchPlan(
    (
        Kernel("sums", ("in0", "s", "i32:C"), ("ROWS", "2", "1"), THREADS),
        Kernel("apply", ("in0", "in1", "s", "out0", "i32:C"), ROWS, THREADS),
    ),
    SIZES,
    {"s": Scratch("float32", ("ROWS",), "zero")},
)
DYNAMIC = (
    HEAD
    + """
extern "C" __global__ void rms(const float* x, const float* w, float* y, int c) {
  extern __shared__ float row[];
  __shared__ float total;
  if (threadIdx.x == 0) total = 0.0f;
  __syncthreads();
  float s = 0.0f;
  ALL(i) { const float v = x[(long long)ROW * c + i]; row[i] = v; s += v * v; }
  atomicAdd(&total, s);
  __syncthreads();
  const float k = 1.0f / sqrtf(total / c + 1e-6f);
  ALL(i) y[(long long)ROW * c + i] = row[i] * k * w[i];
}
"""
)
TEMPLATES = """
template <int N> struct Lanes {
  static __device__ __forceinline__ float sum(float v) {
    return Lanes<N / 2>::sum(v + __shfl_xor_sync(~0u, v, N / 2));
  }
};
template <> struct Lanes<1> { static __device__ __forceinline__ float sum(float v) { return v; } };
"""
ASYNC = (
    HEAD
    + """
extern "C" __global__ void rms(const float* x, const float* w, float* y, int c) {
  extern __shared__ __align__(16) float row[];
  __shared__ float part[8];
  const float* a = x + (long long)ROW * c;
  for (int i = threadIdx.x * 4; i < c; i += 1024) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(row + i);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(a + i));
  }
  asm volatile("cp.async.commit_group;\\ncp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  float s = 0.0f;
  ALL(i) s = __fmaf_rn(row[i], row[i], s);
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = 0.0f;
  for (float p : part) s += p;
  const float k = 1.0f / sqrtf(s / c + 1e-6f);
  ALL(i) y[(long long)ROW * c + i] = row[i] * k * w[i];
}
"""
)
DOUBLE = cuda(root="(float)(1.0 / sqrt((double)s / c + 1e-6))")
ONCE = ('[&] { float v; asm volatile("{ .reg .b64 %%p; createpolicy.fractional.L2::evict_first.b64 '
        '%%p, 1.0; ld.global.L2::cache_hint.f32 %0, [%1], %%p; }" : "=f"(v) : "l"(a + i)); '
        "return v; }() * k * w[i]")  # fmt: skip

CASES: dict[str, tuple[str, LaunchPlan]] = {
    "plain": (cuda(), PLAN),
    "vectors held in registers": (VECTORS, one(ROWS, THREADS)),
    "a warp a row": (WARPS, one(("ROWS // 8", "1", "1"), THREADS)),
    "a persistent grid": (PERSISTENT, one(("min(ROWS, 264)", "1", "1"), THREADS, "0",
                                          (*ARGS, "i32:ROWS"))),
    "split sums by atomics, two kernels": (SPLIT, SPLIT_PLAN),
    "a row in shared memory, summed by atomics": (DYNAMIC, one(ROWS, THREADS, "C * 4")),
    "copies without waiting": (ASYNC, one(ROWS, THREADS, "C * 4")),
    "templates": (cuda(TEMPLATES, out="a[i] * (k + 0.0f * Lanes<1>::sum(k)) * w[i]"), PLAN),
    "a table of constants": (cuda("__constant__ float one[4] = {1, 1, 1, 1};\n",
                                  out="a[i] * k * w[i] * one[i & 3]"), PLAN),
    "a table that the compiler makes": (cuda(
        "struct T { float at[4]; };\nconstexpr T made() { T t{}; for (int i = 0; i < 4; ++i) "
        "t.at[i] = 1.0f; return t; }\n__constant__ const T table = made();\n",
        out="a[i] * k * w[i] * table.at[i & 3]"), PLAN),
    "a root by the fast unit, made better": (cuda(
        root="[&] { const float m = s / c + 1e-6f; float r = rsqrtf(m); "
             "return m < 1e30f ? r * (1.5f - 0.5f * m * r * r) : r; }()"), PLAN),
    "double precision for one number": (DOUBLE, PLAN),
    "inputs that are read once": (cuda(out=ONCE), PLAN),
    "output written twice": (cuda(last="ALL(i) o[i] = a[i] * k * w[i];"), PLAN),
    "names that look bad": (cuda(
        "// printf(\"%d\", clock64()); asm(\"trap;\"); static int calls;\n"
        "struct clock_skew { float exit_value; };\n"), PLAN),
    "macros that paste": (cuda("#define CAT(a, b) a##b\n", out="CAT(a, )[i] * CAT(k, ) * w[i]"),
                          PLAN),
}  # fmt: skip
