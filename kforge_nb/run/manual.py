"""A kernel typed into a cell becomes a candidate, by the convention of :mod:`proposers.manual`.

This module adds what a cell needs: the signature that would fit, and line numbers of the cell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kforge_nb.errors import BadInput, ContractBreach
from kforge_nb.proposers.manual import manual_candidate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.candidates.candidate import Candidate, Language
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["candidate_from_cell", "cell_lines", "signature_of"]

_LINE = re.compile(r"\bline (\d+)(?=: )")
_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t",
    "bool": "uint8_t",
}  # fmt: skip


def candidate_from_cell(source: str, target: Target, language: Language = "cpp") -> Candidate:
    """The candidate that a cell's source describes.

    Raises BadInput when no plan can be read off the source or the plan does not fit the target; the
    message shows the signature that does.
    """
    try:
        return manual_candidate(source, None, target, language)
    except ContractBreach as error:
        raise BadInput(
            f"the kernel breaks the contract: {error}. A signature that fits this target:\n"
            f"{signature_of(target, language)}"
        ) from None


def signature_of(target: Target, language: Language = "cpp") -> str:
    """A signature that fits a target, with one scalar as an example."""
    if language == "cuda_extension":
        return "std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs) { ... }"
    tensors = [*_pointers("in", target.inputs, "const "), *_pointers("out", target.outputs, "")]
    if language == "cuda":
        return (
            "// kforge: n = numel(out0)\n// kforge: grid = ceil_div(n, 256)\n"
            "// kforge: block = 256\n"
            f'extern "C" __global__ void kernel({", ".join(tensors)}, int64_t n) {{ ... }}'
        )
    return (
        "// kforge: n = numel(out0)\n"
        f'extern "C" void kernel({", ".join(tensors)}, int64_t n, int32_t nthreads) {{ ... }}'
    )


def cell_lines(text: str, first_line: int = 2) -> str:
    """What compiler and policy say, with line numbers as the notebook counts them in the cell."""
    return _LINE.sub(lambda m: f"line {int(m[1]) + first_line - 1} of the cell", text)


def _pointers(prefix: str, specs: Sequence[TensorSpec], const: str) -> list[str]:
    return [
        f"{const}{_C_TYPES.get(spec.dtype, spec.dtype + '_t')}* {prefix}{i}"
        for i, spec in enumerate(specs)
    ]
