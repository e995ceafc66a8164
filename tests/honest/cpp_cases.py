"""Honest C++ kernels of odd styles: right, whatever they look like."""

from __future__ import annotations

from kforge_nb.candidates.candidate import Kernel, LaunchPlan, Scratch
from tests.judge.kernels import EXP, HEAD, NORM, SILU, SOFTMAX, rows_kernel

SUM = "for (int64_t i = 0; i < c; ++i) q += a[i] * a[i];"
ROOT = "float k = 1.0f / std::sqrt(q / c + 1e-6f);"
OUT = "for (int64_t i = 0; i < c; ++i) o[i] = a[i] * k;"
ENTRY = (
    'extern "C" void kernel(const float* x, float* y, int64_t rows, int64_t c, int32_t nthreads)'
)


def norm(sums: str = f"float q = 0.0f; {SUM}", before: str = "", out: str = OUT) -> str:
    """A row's sum of squares, its root, its output."""
    return rows_kernel(f"{sums}\n    {ROOT}\n    {out}", before)


def whole(body: str, before: str = "") -> str:
    """An entry of its own making."""
    return f"{HEAD}{before}\n{ENTRY} {{\n  (void)nthreads;\n{body}\n}}\n"


AVX = """
#include <immintrin.h>
__attribute__((target("avx2,fma"))) static float squares(const float* a, int64_t c) {
  __m256 s = _mm256_setzero_ps(), t = s;
  int64_t i = 0;
  for (; i + 16 <= c; i += 16) {
    __m256 u = _mm256_loadu_ps(a + i), v = _mm256_loadu_ps(a + i + 8);
    s = _mm256_fmadd_ps(u, u, s);
    t = _mm256_fmadd_ps(v, v, t);
  }
  float lanes[8], q = 0.0f;
  _mm256_storeu_ps(lanes, _mm256_add_ps(s, t));
  for (float lane : lanes) q += lane;
  for (; i < c; ++i) q += a[i] * a[i];
  return q;
}
"""
KAHAN = """float q = 0.0f, e = 0.0f;
    for (int64_t i = 0; i < c; ++i) {
      float v = a[i] * a[i] - e, t = q + v;
      e = (t - q) - v; q = t;
    }
    if (!(q == q) || q > 3e38f) { q = 0.0f; for (int64_t i = 0; i < c; ++i) q += a[i] * a[i]; }"""
DUFF = """float q = 0.0f; int64_t i = 0;
    switch (c & 3) {
      case 3: q += a[i] * a[i]; ++i; [[fallthrough]];
      case 2: q += a[i] * a[i]; ++i; [[fallthrough]];
      case 1: q += a[i] * a[i]; ++i;
    }
    next: if (i < c) { for (int j = 0; j < 4; ++j, ++i) q += a[i] * a[i]; goto next; }"""
TREE = """static float squares(const float* a, int64_t n) {
  if (n <= 16) { float q = 0.0f; for (int64_t i = 0; i < n; ++i) q += a[i] * a[i]; return q; }
  return squares(a, n / 2) + squares(a + n / 2, n - n / 2);
}
"""
CLASS = """namespace deep::er {
struct Reducer { virtual ~Reducer() = default; virtual float of(const float*, int64_t) const = 0; };
struct Squares final : Reducer {
  float of(const float* a, int64_t c) const override {
    float q = 0.0f; for (int64_t i = 0; i < c; ++i) q += a[i] * a[i]; return q;
  }
};
}
"""
TEMPLATE = """template <int N> struct Sum {
  static inline float of(const float* a) { return a[0] * a[0] + Sum<N - 1>::of(a + 1); }
};
template <> struct Sum<0> { static inline float of(const float*) { return 0.0f; } };
"""
TABLE = """static constexpr int W = 8;
static constexpr float weights[W] = {1, 1, 1, 1, 1, 1, 1, 1};
"""
MADE = """struct Powers { float at[16]; };
static constexpr Powers powers() {
  Powers p{}; float v = 1.0f; for (int i = 0; i < 16; ++i) { p.at[i] = v; v *= 0.5f; } return p;
}
static constexpr Powers halves = powers();
"""
WORDS = """// system("rm -rf /"); fork(); asm volatile("syscall"); static int calls = 0;
static float read_row(const float* a, int64_t at) { return a[at]; }
static void write_out(float* o, int64_t at, float v) { o[at] = v; }
struct clock_skew { float time_step; };
static const char* const note = "dlopen, ptrace and printf(\\"%d\\")";
"""
FUNCTIONS = """static float square(float v) { return v * v; }
static float same(float v) { return v; }
static float (*const functions[2])(float) = {square, same};
"""
FUSED = LaunchPlan(
    (Kernel("kernel", ("in0", "out0", "s", "t", "i64:ROWS", "i64:C", "i32:nthreads")),),
    {"C": "in0.shape[1]", "ROWS": "in0.shape[0]"},
    {"s": Scratch("float32", ("ROWS",), "none"), "t": Scratch("float64", ("ROWS",), "zero")},
)

NORMS: dict[str, str] = {
    "plain": norm(),
    "vectorised by OpenMP": norm().replace("float q", "float q", 1).replace(
        "for (int64_t i = 0; i < c; ++i) q", "\n#pragma omp simd reduction(+ : q)\n"
        "    for (int64_t i = 0; i < c; ++i) q", 1),
    "double accumulator": norm("double q = 0.0; for (int64_t i = 0; i < c; ++i) "
                               "q += (double)a[i] * a[i];"),
    "long double accumulator": norm("long double w = 0; for (int64_t i = 0; i < c; ++i) "
                                    "w += (long double)a[i] * a[i]; float q = (float)w;"),
    "compensated sum": norm(KAHAN),
    "sixteen accumulators": norm(
        "float acc[16] = {}; for (int64_t i = 0; i < c; ++i) acc[i & 15] += a[i] * a[i];\n"
        "    float q = 0.0f; for (float v : acc) q += v;"),
    "intrinsics for another target": norm("float q = squares(a, c);", AVX),
    "target by a pragma": norm(before='#pragma GCC push_options\n#pragma GCC target("avx2")\n'
                               "static float id(float v) { return v; }\n"
                               "#pragma GCC pop_options\n"),
    "optimised by an attribute": norm(
        "float q = squares(a, c);", '__attribute__((optimize("O3", "unroll-loops"))) static float '
        "squares(const float* a, int64_t c) { float q = 0; for (int64_t i = 0; i < c; ++i) "
        "q += a[i] * a[i]; return q; }\n"),
    "contracted": norm("float q = 0.0f; for (int64_t i = 0; i < c; ++i) "
                       "q = std::fma(a[i], a[i], q);"),
    "backwards": norm("float q = 0.0f; for (int64_t i = c; i-- > 0;) q += a[i] * a[i];"),
    "jumps into a loop": norm(DUFF),
    "recursive halves": norm("float q = squares(a, c);", TREE),
    "classes with virtual functions": norm(
        "deep::er::Squares s; const deep::er::Reducer& r2 = s; float q = r2.of(a, c);", CLASS),
    "templates that recurse": norm(
        "float q = 0.0f; int64_t i = 0; for (; i + 8 <= c; i += 8) q += Sum<8>::of(a + i); "
        "for (; i < c; ++i) q += a[i] * a[i];", TEMPLATE),
    "a table": norm("float q = 0.0f; for (int64_t i = 0; i < c; ++i) "
                    "q += a[i] * a[i] * weights[i % W];", TABLE),
    "a table that the compiler makes": norm(before=MADE).replace("* k;", "* k * halves.at[0];"),
    "a table in a function": norm(
        "static const float ones[4] = {1, 1, 1, 1}; float q = 0.0f; "
        "for (int64_t i = 0; i < c; ++i) q += a[i] * a[i] * ones[i & 3];"),
    "functions by a table": norm("float q = 0.0f; for (int64_t i = 0; i < c; ++i) "
                                 "q += functions[i & 0](a[i]);", FUNCTIONS),
    "names that look bad": norm(before=WORDS, out="for (int64_t i = 0; i < c; ++i) "
                                "write_out(o, i, read_row(a, i) * k);"),
    "macros that paste": norm(before="#define CAT(a, b) a##b\n#define SQ(v) ((v) * (v))\n",
                              sums="float CAT(q, ) = 0.0f; for (int64_t i = 0; i < c; ++i) "
                              "CAT(q, ) += SQ(a[i]);"),
    "a lambda": norm("auto sq = [](float v) { return v * v; }; float q = 0.0f; "
                     "for (int64_t i = 0; i < c; ++i) q += sq(a[i]);"),
    "algorithms of the library": norm(
        "float q = std::inner_product(a, a + c, a, 0.0f);", "#include <numeric>\n",
        "std::transform(a, a + c, o, [k](float v) { return v * k; });").replace(
            "#include <numeric>", "#include <algorithm>\n#include <numeric>"),
    "a vector for each row": norm(
        "std::vector<float> sq(c); for (int64_t i = 0; i < c; ++i) sq[i] = a[i] * a[i]; "
        "float q = 0.0f; for (float v : sq) q += v;", "#include <vector>\n"),
    "memory of its own": norm(
        "float* t = (float*)std::malloc(c * 4); std::memcpy(t, a, c * 4); float q = 0.0f; "
        "for (int64_t i = 0; i < c; ++i) q += t[i] * t[i]; std::free(t);", "#include <cstdlib>\n"),
    "an array on the stack": norm(
        "alignas(64) float t[64]; float q = 0.0f; for (int64_t b = 0; b < c; b += 64) { "
        "int64_t n = c - b < 64 ? c - b : 64; std::memcpy(t, a + b, n * 4); "
        "for (int64_t i = 0; i < n; ++i) q += t[i] * t[i]; }"),
    "bits of numbers": norm(
        "float q = 0.0f; for (int64_t i = 0; i < c; ++i) { uint32_t u; std::memcpy(&u, a + i, 4); "
        "u &= 0x7fffffff; float v; std::memcpy(&v, &u, 4); q += v * v; }"),
    "unaligned loads": norm(
        "float q = 0.0f; int64_t i = 0; while (((uintptr_t)(a + i) & 31) && i < c) { q += a[i] * "
        "a[i]; ++i; } for (; i < c; ++i) q += a[i] * a[i];"),
    "fetches ahead": norm("float q = 0.0f; for (int64_t i = 0; i < c; ++i) { "
                          "__builtin_prefetch(a + i + 64); q += a[i] * a[i]; }"),
    "stores past the cache": norm(
        before="#include <immintrin.h>\n",
        out="int64_t i = 0; for (; i + 4 <= c; i += 4) _mm_stream_ps(o + i, _mm_mul_ps("
        "_mm_loadu_ps(a + i), _mm_set1_ps(k))); for (; i < c; ++i) o[i] = a[i] * k; _mm_sfence();"),
    "a volatile sum": norm("volatile float w = 0.0f; for (int64_t i = 0; i < c; ++i) "
                           "w = w + a[i] * a[i]; float q = w;"),
    "output in odd order": norm(out="for (int64_t s = 0; s < 7; ++s) for (int64_t i = s; i < c; "
                                "i += 7) o[i] = a[i] * k;"),
    "computed twice": norm(out=f"{OUT}\n    {OUT}"),
    "checked arguments": norm(before="#include <cassert>\n", sums="assert(c > 0); float q = 0.0f; "
                              "for (int64_t i = 0; i < c; ++i) q += a[i] * a[i];"),
    "restricted pointers": norm(
        "const float* __restrict p = (const float*)__builtin_assume_aligned(a, 4); float q = 0.0f; "
        "for (int64_t i = 0; i < c; ++i) q += __builtin_expect(c > 0, 1) ? p[i] * p[i] : 0.0f;"),
    "atomics": whole("""  for (int64_t r = 0; r < rows; ++r) {
    const float* a = x + r * c;
    float q = 0.0f;
#pragma omp parallel for num_threads(nthreads)
    for (int64_t i = 0; i < c; ++i) {
#pragma omp atomic
      q += a[i] * a[i];
    }
    const float k = 1.0f / std::sqrt(q / c + 1e-6f);
    for (int64_t i = 0; i < c; ++i) y[r * c + i] = a[i] * k;
  }"""),
    "tasks": whole("""#pragma omp parallel num_threads(nthreads)
#pragma omp single
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp task firstprivate(r)
    {
      const float* a = x + r * c;
      float q = 0.0f;
      for (int64_t i = 0; i < c; ++i) q += a[i] * a[i];
      const float k = 1.0f / std::sqrt(q / c + 1e-6f);
      for (int64_t i = 0; i < c; ++i) y[r * c + i] = a[i] * k;
    }
  }"""),
    "threads that share by number": whole("""#pragma omp parallel num_threads(nthreads)
  for (int64_t r = omp_get_thread_num(); r < rows; r += omp_get_num_threads()) {
    const float* a = x + r * c;
    float q = 0.0f;
    for (int64_t i = 0; i < c; ++i) q += a[i] * a[i];
    const float k = 1.0f / std::sqrt(q / c + 1e-6f);
    for (int64_t i = 0; i < c; ++i) y[r * c + i] = a[i] * k;
  }""", "#include <omp.h>\n"),
}  # fmt: skip

SPLIT = f"""{HEAD}
extern "C" void kernel(const float* x, float* y, float* s, double* t, int64_t rows, int64_t c,
                       int32_t nthreads) {{
  (void)nthreads;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < c; ++i) t[r] += (double)x[r * c + i] * x[r * c + i];
  for (int64_t r = 0; r < rows; ++r) s[r] = 1.0f / std::sqrt((float)t[r] / c + 1e-6f);
  for (int64_t i = 0; i < rows * c; ++i) y[i] = x[i] * s[i / c];
}}
"""
SIGMOIDS: dict[str, str] = {
    "an exponential of its own": rows_kernel(
        "for (int64_t i = 0; i < c; ++i) { float v = a[i], e = v != v ? v : v < -87.0f ? "
        "std::exp(-v) : fast_exp(v > 87.0f ? -87.0f : -v); o[i] = v / (1.0f + e); }",
        EXP,
    ),
    "by the hyperbolic tangent in double": rows_kernel(
        "for (int64_t i = 0; i < c; ++i) { double v = a[i]; "
        "o[i] = (float)(v / (1.0 + std::exp(-v))); }"
    ),
    "plain": SILU,
}
SOFTMAXES: dict[str, str] = {
    "three passes": SOFTMAX,
    "in one pass over a running maximum": rows_kernel(
        "float m = -INFINITY, s = 0.0f; for (int64_t i = 0; i < c; ++i) { float v = a[i]; "
        "if (v != v) { m = v; s = v; break; } "
        "if (v > m) { s = s * std::exp(m - v) + std::exp(v - v); m = v; } "
        "else if (m != -INFINITY) s += std::exp(v - m); }\n"
        "    for (int64_t i = 0; i < c; ++i) o[i] = std::exp(a[i] - m) / s;"
    ),
}
NORM_OF_ODD_ROWS = {"plain": rows_kernel(NORM), "halves": norm("float q = squares(a, c);", TREE)}
