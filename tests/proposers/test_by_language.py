"""Kernels by hand in every language: CUDA plans from comments, extensions from ``forward``."""

from __future__ import annotations

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.candidates.extension import extension_plan
from kforge_nb.candidates.plan import resolve, validate
from kforge_nb.errors import ContractBreach
from kforge_nb.proposers.derive import derive_cuda_plan
from kforge_nb.proposers.manual import manual_candidate
from tests.helpers import make_target

TARGET = make_target(lambda x, y: x + y, torch.randn(4, 8), torch.randn(4, 8))
PLUS = """// kforge: n = numel(out0)
// kforge: grid = ceil_div(n, 256), min(in0.shape[0], 2)
// kforge: block = 256
extern "C" __global__ void __launch_bounds__(256) plus(const float* a, const float* b, float* sum,
                                                       int64_t n) {
  int64_t i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) sum[i] = a[i] + b[i];
}
"""
TWO = """// kforge: n = numel(out0)
// kforge: scratch part = float32[n]
// kforge: grid = 1
// kforge: block = 32
// kforge: shared = 128
extern "C" __global__ void first(const float* in0, float* part, int64_t n) {}
/* kforge: block = 7 */
// kforge: grid = n
// kforge: block = 64, 2
extern "C" __global__ void second(const float* part, const float* in1, float* out0, int n) {}
"""
FORWARD = """#include <ATen/core/Tensor.h>
std::vector<torch::Tensor> forward(std::vector<at::Tensor> inputs) { return {}; }
"""


def test_a_cuda_plan_is_read_off_the_comments() -> None:
    """Grid and block are expressions; sizes inside parentheses stay together."""
    candidate = manual_candidate(PLUS, None, TARGET, "cuda")
    call = resolve(candidate.plan, TARGET.inputs, TARGET.outputs).calls[0]

    assert candidate.language == "cuda"
    assert candidate.plan.kernels[0].args == ("in0", "in1", "out0", "i64:n")
    assert (call.grid, call.block, call.shared) == ((1, 2, 1), (256, 1, 1), 0)


def test_each_kernel_has_the_comments_above_it() -> None:
    """Two kernels share symbols and scratch, and each has its own launch."""
    plan = derive_cuda_plan(TWO, TARGET)
    validate(plan, "cuda", TARGET.inputs, TARGET.outputs)
    first, second = plan.kernels

    assert (first.grid, first.block, first.shared) == (("1", "1", "1"), ("32", "1", "1"), "128")
    assert (second.grid, second.block, second.shared) == (("n", "1", "1"), ("64", "2", "1"), "0")
    assert second.args == ("part", "in1", "out0", "i32:n")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("void f() {}", "no extern"),
        (PLUS.replace("// kforge: block = 256\n", ""), "say the block of plus"),
        (PLUS.replace("block = 256", "block = 1, 2, 3, 4"), "say the block of plus"),
        (TWO.replace("in1", "other"), "cannot be matched"),
    ],
)
def test_what_cannot_be_launched_is_explained(source, words) -> None:
    """A CUDA source that leaves its launch open is refused with the comment that would say it."""
    with pytest.raises(ContractBreach, match=words):
        manual_candidate(source, None, TARGET, "cuda")


def test_an_extension_defines_forward() -> None:
    """A source with ``forward`` is a candidate whose plan says what goes in and out."""
    candidate = manual_candidate(FORWARD, None, TARGET, "cuda_extension")
    validate(candidate.plan, "cuda_extension", TARGET.inputs, TARGET.outputs)

    assert candidate.language == "cuda_extension"
    assert candidate.plan.kernels == (Kernel("forward", ("in0", "in1", "out0")),)


@pytest.mark.parametrize(
    "source",
    [
        "extern void forward();",
        "// " + FORWARD.replace("\n", " "),
        FORWARD.replace("std::vector<at::Tensor> inputs", "const std::vector<at::Tensor>& inputs"),
    ],
)
def test_a_source_without_forward_is_refused(source) -> None:
    """A missing, commented or otherwise typed ``forward`` is told before anything is compiled."""
    with pytest.raises(ContractBreach, match="defines std::vector<at::Tensor> forward"):
        manual_candidate(source, None, TARGET, "cuda_extension")


def test_an_extension_has_no_other_plan() -> None:
    """A grid, scratch or another kernel in an extension's plan is refused."""
    good = extension_plan(TARGET.inputs, TARGET.outputs)
    other = LaunchPlan(good.kernels, {"n": "numel(in0)"})
    with pytest.raises(ContractBreach, match="one kernel, called forward"):
        validate(other, "cuda_extension", TARGET.inputs, TARGET.outputs)
    assert (
        Candidate("cuda_extension", FORWARD, good).digest != Candidate("cuda", FORWARD, good).digest
    )
