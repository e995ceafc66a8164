"""A kernel typed into a cell becomes a candidate: the launch plan is read off its signature.

The one ``extern "C"`` function says almost everything. Parameters called ``in0`` or ``out1`` are
the target's tensors, ``nthreads`` is the number of threads, and every other parameter is explained
by a comment line::

    // kforge: n = numel(in0)
    // kforge: scratch partial = float32[n] zero
    extern "C" void gelu(const float* in0, float* out0, int64_t n, int32_t nthreads) { … }
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch
from kforge_nb.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["candidate_from_cell", "cell_lines", "signature_of"]

_ENTRY = re.compile(r'extern\s+"C"\s+void\s+([A-Za-z_]\w*)\s*\(([^)]*)\)', re.ASCII)
_SYMBOL = re.compile(r"^\s*//\s*kforge:\s*([A-Za-z]\w*)\s*=\s*(.+?)\s*$", re.ASCII | re.MULTILINE)
_SCRATCH = re.compile(
    r"^\s*//\s*kforge:\s*scratch\s+([A-Za-z]\w*)\s*=\s*(\w+)\s*\[(.+)\]\s*(zero|none)?\s*$",
    re.ASCII | re.MULTILINE,
)
_TENSOR = re.compile(r"(?:in|out)(?:0|[1-9]\d*)", re.ASCII)
_LINE = re.compile(r"\bline (\d+)(?=: error)")
_SCALARS = {
    "int64_t": "i64", "long": "i64", "size_t": "i64", "int32_t": "i32", "int": "i32",
    "float": "f32", "double": "f64",
}  # fmt: skip
_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t",
    "bool": "uint8_t",
}  # fmt: skip


def candidate_from_cell(source: str, target: Target) -> Candidate:
    """The candidate that a cell's C++ source describes.

    Raises BadInput when there is no single entry function or a parameter is not explained; the
    message shows the signature that fits the target.
    """
    entries = _ENTRY.findall(source)
    if len(entries) != 1:
        found = "no" if not entries else f"{len(entries)}"
        raise BadInput(
            f'the cell has {found} extern "C" function; write one, for this target as\n'
            f"{signature_of(target)}"
        )
    name, parameters = entries[0]
    scratch = {
        found: Scratch(dtype, tuple(p.strip() for p in shape.split(",")), init or "none")
        for found, dtype, shape, init in _SCRATCH.findall(source)
    }
    symbols = dict(_SYMBOL.findall(source))
    args = tuple(_argument(p, symbols, scratch, target) for p in _split(parameters))
    plan = LaunchPlan((Kernel(name, args),), symbols, scratch)
    return Candidate("cpp", source, plan, title=name, origin={"proposer": "manual"})


def signature_of(target: Target) -> str:
    """A C++ signature that fits a target, with one scalar as an example."""
    tensors = [*_pointers("in", target.inputs, "const "), *_pointers("out", target.outputs, "")]
    return (
        "// kforge: n = numel(out0)\n"
        f'extern "C" void kernel({", ".join(tensors)}, int64_t n, int32_t nthreads) {{ ... }}'
    )


def cell_lines(text: str, first_line: int = 2) -> str:
    """Compiler messages with line numbers as the notebook counts them in the cell."""
    return _LINE.sub(lambda m: f"line {int(m[1]) + first_line - 1} of the cell", text)


def _pointers(prefix: str, specs: Sequence[TensorSpec], const: str) -> list[str]:
    return [
        f"{const}{_C_TYPES.get(spec.dtype, spec.dtype + '_t')}* {prefix}{i}"
        for i, spec in enumerate(specs)
    ]


def _split(parameters: str) -> list[str]:
    return [p.strip() for p in parameters.split(",") if p.strip() not in ("", "void")]


def _argument(
    parameter: str, symbols: dict[str, str], scratch: dict[str, Scratch], target: Target
) -> str:
    """The plan's argument for one C parameter."""
    words = re.findall(r"[A-Za-z_]\w*", parameter)
    name = words[-1] if words else ""
    if "*" in parameter:
        if name in scratch or _TENSOR.fullmatch(name):
            return name
        raise BadInput(
            f"the pointer {parameter!r} is neither an input (in0 …), an output (out0 …) nor a "
            f"scratch buffer; this target's signature is\n{signature_of(target)}"
        )
    if name == "nthreads":
        return "i32:nthreads"
    kind = next((_SCALARS[word] for word in words[:-1] if word in _SCALARS), None)
    if kind is None:
        raise BadInput(f"{parameter!r} has no known scalar type; use {', '.join(_SCALARS)}")
    if name not in symbols:
        raise BadInput(
            f"say what {name} is, in a comment line such as // kforge: {name} = numel(in0)"
        )
    return f"{kind}:{name}"
