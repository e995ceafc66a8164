"""Honest C++ kernels on bfloat16 and float16 targets: conversions, partial sums, estimates."""

from __future__ import annotations

from kforge_nb.candidates.candidate import Kernel, LaunchPlan

NORM_PLAN = LaunchPlan(
    (Kernel("kernel", ("in0", "in1", "out0", "i64:ROWS", "i64:C", "i32:nthreads")),),
    {"C": "in0.shape[1]", "ROWS": "in0.shape[0]"},
)
CHAIN_PLAN = LaunchPlan((Kernel("kernel", ("in0", "in1", "out0", "i64:N", "i32:nthreads")),),
                        {"N": "in0.shape[0] * in0.shape[1]"})  # fmt: skip

HEAD = """
#include <cmath>
#include <cstdint>
#include <cstring>
"""
BRAIN = """
typedef uint16_t half_t;
static inline float load(half_t v) {
  uint32_t u = (uint32_t)v << 16; float f; std::memcpy(&f, &u, 4); return f;
}
"""
TRICK = """
static inline half_t store(float f) {  // to nearest, ties to even, by integers
  uint32_t u; std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (half_t)((u >> 16) | 0x40u);
  return (half_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
"""
COMPARED = """
static inline half_t store(float f) {  // as above, by what is left over
  uint32_t u; std::memcpy(&u, &f, 4);
  const uint32_t rest = u & 0xffffu, top = u >> 16;
  if (f != f) return (half_t)(top | 1u | 0x40u);
  return (half_t)(top + (rest > 0x8000u || (rest == 0x8000u && (top & 1u))));
}
"""
SHORT = """
typedef _Float16 half_t;
static inline float load(half_t v) { return (float)v; }
static inline half_t store(float f) { return (half_t)f; }
"""
NORM = """
BEFORE
extern "C" void kernel(const half_t* x, const half_t* w, half_t* y, int64_t rows, int64_t c,
                       int32_t nthreads) {
  (void)nthreads;
  for (int64_t r = 0; r < rows; ++r) {
    const half_t* a = x + r * c;
    half_t* o = y + r * c;
    SUM
    ROOT
    OUT
  }
}
"""
SUM = "float q = 0.0f; for (int64_t i = 0; i < c; ++i) { float v = load(a[i]); q += v * v; }"
ROOT = "const float k = 1.0f / std::sqrt(q / c + 1e-6f);"
OUT = """for (int64_t i = 0; i < c; ++i)
      o[i] = store(load(store(load(a[i]) * k)) * load(w[i]));"""
ONCE = "for (int64_t i = 0; i < c; ++i) o[i] = store(load(a[i]) * k * load(w[i]));"
NEWTON = """float s = q / c + 1e-6f, k; uint32_t u; std::memcpy(&u, &s, 4);
    u = 0x5f3759dfu - (u >> 1); std::memcpy(&k, &u, 4);
    for (int n = 0; n < 4; ++n) k *= 1.5f - 0.5f * s * k * k;
    if (!(s < 1e37f)) k = 1.0f / std::sqrt(s);"""
ESTIMATE = """const float s = q / c + 1e-6f;
    float k = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(s)));
    k = s < 1e37f ? k * (1.5f - 0.5f * s * k * k) : 1.0f / std::sqrt(s);"""
BLOCKS = """float q = 0.0f;
    for (int64_t b = 0; b < c; b += 32) {
      float part = 0.0f;
      for (int64_t i = b; i < b + 32 && i < c; ++i) { float v = load(a[i]); part += v * v; }
      q += part;
    }"""
HALVES = """float q = 0.0f;
    for (int64_t i = 0; i < c; ++i) {
      const float v = load(a[i]), s = std::fabs(v);
      q += s > 0.25f && s < 16.0f ? (float)(_Float16)(v * v) : v * v;
    }"""
FAST = """__attribute__((optimize("fast-math"))) static float squares(const half_t* a, int64_t c) {
  float q = 0.0f;
  for (int64_t i = 0; i < c; ++i) { float v = load(a[i]); q += v * v; }
  return q;
}"""


def norm(kind: str, sums: str = SUM, root: str = ROOT, out: str = OUT, before: str = "") -> str:
    """An RMS norm with a weight on values of half precision."""
    made = NORM.replace("BEFORE", before).replace("SUM", sums).replace("ROOT", root)
    return HEAD + kind + made.replace("OUT", out)


def chain(body: str, kind: str = SHORT) -> str:
    """An entry over all elements: ``a`` and ``b`` to ``o[i]``."""
    return f"""{HEAD}{kind}
extern "C" void kernel(const half_t* a, const half_t* b, half_t* o, int64_t n, int32_t nthreads) {{
#pragma omp parallel for num_threads(nthreads)
  for (int64_t i = 0; i < n; ++i) {{ {body} }}
}}
"""


BF16 = BRAIN + TRICK
NORMS: dict[str, tuple[str, str]] = {
    "bf16, packed by integers": ("bfloat16", norm(BF16)),
    "bf16, rounded by the rest": ("bfloat16", norm(BRAIN + COMPARED)),
    "bf16, rounded once": ("bfloat16", norm(BF16, out=ONCE)),
    "bf16, four steps of Newton": ("bfloat16", norm(BF16, root=NEWTON)),
    "bf16, an estimate and a step": (
        "bfloat16", norm(BF16, root=ESTIMATE, before="#include <immintrin.h>")),
    "bf16, partial sums": ("bfloat16", norm(BF16, sums=BLOCKS)),
    "bf16, fast maths in a helper": (
        "bfloat16", norm(BF16, sums="const float q = squares(a, c);", before=FAST)),
    "fp16, the compiler's conversions": ("float16", norm(SHORT)),
    "fp16, rounded once": ("float16", norm(SHORT, out=ONCE)),
    "fp16, an estimate and a step": (
        "float16", norm(SHORT, root=ESTIMATE, before="#include <immintrin.h>")),
    "fp16, fast maths in a helper": (
        "float16", norm(SHORT, sums="const float q = squares(a, c);", before=FAST)),
    "fp16, products in half precision where they fit": ("float16", norm(SHORT, sums=HALVES)),
    "fp16, products in double": ("float16", norm(SHORT, sums=SUM.replace("float", "double"),
                                                 root=ROOT.replace("q / c", "(float)(q / c)"))),
}  # fmt: skip
"""Dtype and source of each."""

CHAINS: dict[str, tuple[str, str]] = {
    "fp16, a chain in half precision": (
        "float16", chain("half_t t = a[i] * b[i]; t = t + a[i]; o[i] = t * (half_t)0.5f;")),
    "fp16, a chain in single precision": (
        "float16", chain("o[i] = store((load(a[i]) * load(b[i]) + load(a[i])) * 0.5f);")),
    "bf16, a chain rounded at each step": (
        "bfloat16", chain("float t = load(store(load(a[i]) * load(b[i]))); "
                          "t = load(store(t + load(a[i]))); o[i] = store(t * 0.5f);", BF16)),
    "bf16, a chain rounded once": (
        "bfloat16", chain("o[i] = store(std::fma(load(a[i]), load(b[i]), load(a[i])) * 0.5f);",
                          BF16)),
}  # fmt: skip
