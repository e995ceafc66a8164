"""Candidates and targets that the judge's tests share: honest ones, slow ones, broken ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import torch

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.target import Target

ROWS_PLAN = LaunchPlan(
    (Kernel("kernel", ("in0", "out0", "i64:ROWS", "i64:C", "i32:nthreads")),),
    {"C": "in0.shape[1]", "ROWS": "in0.shape[0]"},
)

HEAD = """
#include <cmath>
#include <cstdint>
#include <cstring>
"""

EXP = """
static inline float fast_exp(float x) {  // a degree-6 polynomial, an ulp or two off
  float n = std::nearbyint(x * 1.44269504f);
  float f = std::fma(n, -0.693145752f, x);
  f = std::fma(n, -1.42860677e-6f, f);
  float p = 1.38888889e-3f;
  p = std::fma(p, f, 8.33333333e-3f);
  p = std::fma(p, f, 4.16666667e-2f);
  p = std::fma(p, f, 1.66666667e-1f);
  p = std::fma(p, f, 0.5f);
  p = std::fma(p, f, 1.0f);
  p = std::fma(p, f, 1.0f);
  int32_t bits = ((int32_t)n + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return x < -87.0f ? 0.0f : p * scale;
}
"""


def helpers() -> ModuleType:
    """tests/helpers.py, which importlib mode does not put on the path."""
    path = Path(__file__).parents[1] / "helpers.py"
    spec = importlib.util.spec_from_file_location("kforge_test_helpers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def target_of(function, *inputs: torch.Tensor, family: str = "other", name: str = "") -> Target:
    """A target with ``inputs`` as its one captured set."""
    made = helpers().make_target(function, *inputs, family=family, name=name or family)
    made.captured = CapturedInputs()
    made.captured.add(list(inputs))
    made.captured.finish()
    return made


def rows_kernel(body: str, before: str = "") -> str:
    """A C++ source whose ``body`` computes row ``r``: ``a`` to ``o``, ``c`` elements."""
    return (
        HEAD
        + before
        + """
extern "C" void kernel(const float* x, float* y, int64_t rows, int64_t c, int32_t nthreads) {
#pragma omp parallel for num_threads(nthreads)
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = x + r * c;
    float* o = y + r * c;
"""
        + body
        + "\n  }\n}\n"
    )


def candidate(source: str, plan: LaunchPlan = ROWS_PLAN, title: str = "") -> Candidate:
    """A C++ candidate, by default with one input and one output of rows."""
    return Candidate("cpp", source, plan, title)


SILU = rows_kernel("for (int64_t i = 0; i < c; ++i) o[i] = a[i] / (1.0f + std::exp(-a[i]));")
SOFTMAX = rows_kernel(
    """
    float m = -INFINITY, s = 0.0f;
    for (int64_t i = 0; i < c; ++i) m = a[i] > m ? a[i] : m;
    for (int64_t i = 0; i < c; ++i) { o[i] = std::exp(a[i] - m); s += o[i]; }
    for (int64_t i = 0; i < c; ++i) o[i] /= s;"""
)
NORM = """
    float q = 0.0f;
    for (int64_t i = 0; i < c; ++i) q += a[i] * a[i];
    float k = 1.0f / std::sqrt(q / c + 1e-6f);
    for (int64_t i = 0; i < c; ++i) o[i] = a[i] * k;"""
RMS_NORM = rows_kernel(NORM)
FAST_NORM = rows_kernel(NORM.replace("    for", "#pragma omp simd reduction(+ : q)\n    for", 1))
LAYER_NORM = rows_kernel(
    """
    float m = 0.0f, v = 0.0f;
    for (int64_t i = 0; i < c; ++i) m += a[i];
    m /= c;
    for (int64_t i = 0; i < c; ++i) v += (a[i] - m) * (a[i] - m);
    float k = 1.0f / std::sqrt(v / c + 1e-5f);
    for (int64_t i = 0; i < c; ++i) o[i] = (a[i] - m) * k;"""
)
GELU = rows_kernel(
    """
    for (int64_t i = 0; i < c; ++i) {
      float t = 0.7978845608f * (a[i] + 0.044715f * a[i] * a[i] * a[i]);
      o[i] = 0.5f * a[i] * (1.0f + std::tanh(t));
    }"""
)


def rms_norm(x):
    """RMS norm as models compose it: five passes in eager, one in a kernel."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def silu(x):
    return torch.nn.functional.silu(x)


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x):
    return torch.nn.functional.layer_norm(x, (768,))


def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")
