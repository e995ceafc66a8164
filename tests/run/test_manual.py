"""A kernel in a cell becomes a candidate by its signature."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kforge_nb.candidates.plan import validate
from kforge_nb.errors import BadInput
from kforge_nb.run.manual import candidate_from_cell, cell_lines
from kforge_nb.targets.target import TensorSpec

SPEC = TensorSpec((4, 8), (8, 1), "float32")
SOURCE = """
#include <cstdint>
// kforge: n = numel(in0)
// kforge: scratch part = float32[n, 2] zero
extern "C" void twice(const float* in0, float* out0, float* part, int64_t n, int32_t nthreads) {
  for (int64_t i = 0; i < n; ++i) out0[i] = 2 * in0[i];
}
"""


@dataclass
class Target:
    """A target, as far as its signature goes."""

    inputs: tuple = (SPEC,)
    outputs: tuple = (SPEC,)
    input_names: tuple = ("in0",)
    output_names: tuple = ("out0",)
    captured: list = field(default_factory=list)


def test_the_plan_is_read_off_the_signature():
    """Tensors by name, scalars and scratch by comment lines give a plan that passes the rules."""
    candidate = candidate_from_cell(SOURCE, Target())

    validate(candidate.plan, "cpp", (SPEC,), (SPEC,))
    kernel = candidate.plan.kernels[0]
    assert kernel.args == ("in0", "out0", "part", "i64:n", "i32:nthreads")
    assert candidate.plan.symbols == {"n": "numel(in0)"}
    assert candidate.origin["proposer"] == "manual"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("void f() {}", 'the source has 0 extern "C" void functions'),
        (SOURCE.replace("// kforge: n = numel(in0)", ""), "say what n is"),
        (SOURCE.replace("* in0,", "* x,"), "the pointers x, out0 cannot be matched to in0, out0"),
        (SOURCE.replace("int64_t n,", "half n,"), "has no known type"),
    ],
)
def test_what_cannot_be_read_is_explained(source, words):
    """A signature that leaves a question open is refused with the line that would answer it."""
    with pytest.raises(BadInput) as caught:
        candidate_from_cell(source, Target())

    assert words in str(caught.value)
    assert 'extern "C" void kernel(const float* in0, float* out0' in str(caught.value)


def test_the_convention_is_that_of_a_proposer():
    """A cell may name its pointers freely, as candidates by hand may anywhere else."""
    free = SOURCE.replace("* in0,", "* x,").replace("* out0,", "* y,")

    assert candidate_from_cell(free, Target()).plan.kernels[0].args[:2] == ("in0", "out0")


def test_compiler_lines_are_counted_as_the_cell_shows_them():
    """The first line of a cell holds the magic, so line 3 of the source is line 4 of the cell."""
    assert cell_lines("line 3: error: x") == "line 4 of the cell: error: x"
    refused = cell_lines("line 1: #include <dlfcn.h> is not allowed")
    assert refused == "line 2 of the cell: #include <dlfcn.h> is not allowed"
