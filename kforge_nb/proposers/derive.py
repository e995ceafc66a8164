"""Reading a launch plan off a source that a person wrote.

From C++ the only ``extern "C"`` function, from CUDA every ``extern "C" __global__`` one, in order:

- pointers called ``in0 …`` and ``out0 …`` are the target's tensors;
- where all pointers have other names, they are the inputs and then the outputs, in order (with
  several CUDA kernels only names do);
- in C++ a last ``int`` or ``int32_t`` is the number of threads;
- other scalars must say what they are, in a comment: ``// kforge: n = numel(in0)``;
- so must other pointers: ``// kforge: scratch tmp = float32[n, 2]`` (and ``zero`` if it must be);
- a CUDA kernel is launched as the comments above it say: ``// kforge: grid = ceil_div(n, 256)``,
  ``// kforge: block = 256``, ``// kforge: shared = 0``; grid and block take up to three sizes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kforge_nb.candidates.candidate import Kernel, LaunchPlan, Scratch
from kforge_nb.errors import ContractBreach

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["derive_cuda_plan", "derive_plan"]

# No pattern backtracks over a whole source: sources come from anywhere.
_ENTRY = re.compile(r'extern\s*"C"\s*void\s+([A-Za-z]\w*)\s*\(([^()]*)\)', re.ASCII)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_SYMBOL = re.compile(
    r"^[ \t]*//[ \t]*kforge:[ \t]*([A-Za-z]\w*)[ \t]*=[ \t]*(\S(?:[^\n]{0,400}\S)?)[ \t]*$",
    re.ASCII | re.MULTILINE,
)
_SCRATCH = re.compile(
    r"^[ \t]*//[ \t]*kforge:[ \t]*scratch[ \t]+([A-Za-z]\w*)[ \t]*=[ \t]*(\w+)[ \t]*"
    r"\[([^\n]{1,800})\][ \t]*(zero|none)?[ \t]*$",
    re.ASCII | re.MULTILINE,
)
_TENSOR = re.compile(r"(?:in|out)(?:0|[1-9]\d*)", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCALARS = {
    "int64_t": "i64", "long": "i64", "size_t": "i64", "int32_t": "i32", "int": "i32",
    "float": "f32", "double": "f64",
}  # fmt: skip
_KERNEL = re.compile(
    r'extern\s*"C"\s*__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?'
    r"([A-Za-z]\w*)\s*\(([^()]*)\)",
    re.ASCII,
)
_LAUNCH = ("grid", "block", "shared")


def derive_plan(source: str, target: Target) -> LaunchPlan:
    """The plan that the source's only ``extern "C"`` function asks for (see the module).

    Raises:
        ContractBreach: there is not exactly one such function, or a parameter is not explained.
    """
    entries = _ENTRY.findall(_COMMENT.sub(" ", source))
    if len(entries) != 1:
        raise ContractBreach(
            f'the source has {len(entries)} extern "C" void functions; write exactly one'
        )
    name, text = entries[0]
    parameters = [p.strip() for p in text.split(",") if p.strip() not in ("", "void")]
    symbols = dict(_SYMBOL.findall(source))
    scratch = {
        found: Scratch(dtype, tuple(size.strip() for size in shape.split(",")), init or "none")
        for found, dtype, shape, init in _SCRATCH.findall(source)
    }
    tensors = _tensor_names(parameters, scratch, target)
    args = [_argument(p, tensors, symbols, last=p is parameters[-1]) for p in parameters]
    return LaunchPlan((Kernel(name, tuple(args)),), symbols, scratch)


def _name(parameter: str) -> str:
    words = _WORD.findall(parameter)
    return words[-1] if words else ""


def _tensor_names(
    parameters: list[str],
    scratch: Mapping[str, Scratch],
    target: Target,
    *,
    alone: bool = True,
) -> dict[str, str]:
    """What each pointer stands for, by name or else by position."""
    pointers = [_name(p) for p in parameters if "*" in p]
    named = [p for p in pointers if p in scratch or _TENSOR.fullmatch(p)]
    if len(named) == len(pointers):
        return {name: name for name in named}
    free = [p for p in pointers if p not in scratch]
    given = [*target.input_names, *target.output_names]
    if not alone or any(_TENSOR.fullmatch(p) for p in free) or len(free) != len(given):
        raise ContractBreach(
            f"the pointers {', '.join(free)} cannot be matched to {', '.join(given)}; "
            "name them so, or declare scratch in a comment (// kforge: scratch tmp = float32[n])"
        )
    return dict(zip(free, given, strict=True)) | {p: p for p in pointers if p in scratch}


def _argument(
    parameter: str, tensors: Mapping[str, str], symbols: Mapping[str, str], *, last: bool
) -> str:
    name = _name(parameter)
    if "*" in parameter:
        return tensors[name]
    types = [_SCALARS[word] for word in _WORD.findall(parameter)[:-1] if word in _SCALARS]
    if name == "nthreads" or (last and types == ["i32"] and name not in symbols):
        return "i32:nthreads"
    if not types:
        known = ", ".join(_SCALARS)
        raise ContractBreach(f"the parameter {parameter!r:.80} has no known type ({known})")
    if name not in symbols:
        raise ContractBreach(
            f"say what {name} is in a comment, such as // kforge: {name} = numel(in0)"
        )
    return f"{types[-1]}:{name}"


def derive_cuda_plan(source: str, target: Target) -> LaunchPlan:
    """The plan that the comments of a CUDA source ask for (see the module).

    Raises:
        ContractBreach: there is no kernel, one has no grid or block, or a parameter is not
            explained.
    """
    found = [m for m in _KERNEL.finditer(_blanked(source)) if m[1]]
    if not found:
        raise ContractBreach('the source has no extern "C" __global__ void function')
    symbols = {k: v for k, v in _SYMBOL.findall(source) if k not in _LAUNCH}
    scratch = {
        name: Scratch(dtype, tuple(size.strip() for size in shape.split(",")), init or "none")
        for name, dtype, shape, init in _SCRATCH.findall(source)
    }
    kernels, start = [], 0
    for match in found:
        said = dict(_SYMBOL.findall(source[start : match.start()]))
        start = match.end()
        parameters = [p.strip() for p in match[2].split(",") if p.strip() not in ("", "void")]
        tensors = _tensor_names(parameters, scratch, target, alone=len(found) == 1)
        args = [_argument(p, tensors, symbols, last=False) for p in parameters]
        grid, block = (_three(match[1], what, said) for what in ("grid", "block"))
        kernels.append(Kernel(match[1], tuple(args), grid, block, said.get("shared", "0")))
    return LaunchPlan(tuple(kernels), symbols, scratch)


def _blanked(source: str) -> str:
    """The source with its comments as blanks, so that places stay what they were."""
    return _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)


def _three(kernel: str, what: str, said: Mapping[str, str]) -> tuple[str, str, str]:
    """Up to three sizes of a comment, the rest 1."""
    sizes = _apart(said.get(what, ""))
    if not 1 <= len(sizes) <= 3:
        raise ContractBreach(
            f"say the {what} of {kernel} in a comment above it, such as "
            f"// kforge: {what} = " + ("256" if what == "block" else "ceil_div(numel(out0), 256)")
        )
    x, y, z = [*sizes, "1", "1"][:3]
    return x, y, z


def _apart(text: str) -> list[str]:
    """``ceil_div(n, 256), C`` as its two expressions."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
