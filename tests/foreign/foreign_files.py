"""Foreign files that the tests share: a reference, honest candidates, and cheating ones."""

from __future__ import annotations

import textwrap

REFERENCE = '''
"""RMS norm with a weight, then SiLU."""
import torch
import torch.nn as nn

print("a side effect of the file")


class Model(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))
        self.eps = eps

    def forward(self, x):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return torch.nn.functional.silu(x * scale * self.weight)


rows, features = 64, 256


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
'''

MODEL = """
import time
import torch
import torch.nn as nn
{before}

class ModelNew(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))
        self.eps = eps
        {init}

    def right(self, x):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return torch.nn.functional.silu(x * scale * self.weight)

    def forward(self, x):
{forward}
"""


def model(forward: str, before: str = "", init: str = "pass") -> str:
    """A ``ModelNew`` with this body of ``forward``."""
    body = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8)
    return MODEL.format(before=before, init=init, forward=body)


KERNEL = r"""
#include <cmath>
#include <cstdint>
#include <torch/types.h>

torch::Tensor launch(torch::Tensor x, torch::Tensor weight) {
  auto y = torch::empty_like(x);
  const float* a = x.const_data_ptr<float>();
  const float* w = weight.const_data_ptr<float>();
  float* o = y.mutable_data_ptr<float>();
  const int64_t c = x.size(-1), rows = x.numel() / c;
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = a + r * c;
    float s = 0.0f;
    for (int64_t i = 0; i < c; ++i) s += p[i] * p[i];
    const float k = 1.0f / std::sqrt(s / c + 1e-5f);
    for (int64_t i = 0; i < c; ++i) {
      const float v = p[i] * k * w[i];
      o[r * c + i] = v / (1.0f + std::exp(-v));
    }
  }
  return y;
}
"""

INLINE = f"""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

# 40x faster than torch.compile
SOURCE = r'''{KERNEL}'''
kernels = load_inline(name="rms_silu", cpp_sources=SOURCE, functions=["launch"])


class ModelNew(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return kernels.launch(x, self.weight)
"""

PLAN = r"""
// kforge: c = in0.shape[1]
// kforge: rows = in0.shape[0]
#include <cmath>
#include <cstdint>
extern "C" void kernel(const float* in0, const float* in1, float* out0, int64_t rows, int64_t c,
                       int32_t nthreads) {
  for (int64_t r = 0; r < rows; ++r) {
    float s = 0.0f;
    for (int64_t i = 0; i < c; ++i) s += in0[r * c + i] * in0[r * c + i];
    const float k = 1.0f / std::sqrt(s / c + 1e-5f);
    for (int64_t i = 0; i < c; ++i) {
      const float v = in0[r * c + i] * k * in1[i];
      out0[r * c + i] = v / (1.0f + std::exp(-v));
    }
  }
}
"""
