"""Candidates that a person writes: source with or without a plan.

Without a plan, one is read off the only ``extern "C"`` function:

- pointers called ``in0 …`` and ``out0 …`` are the target's tensors;
- where all pointers have other names, they are the inputs and then the outputs, in order;
- a last ``int`` or ``int32_t`` is the number of threads;
- other scalars must say what they are, in a comment: ``// kforge: n = numel(in0)``;
- so must other pointers: ``// kforge: scratch tmp = float32[n, 2]`` (and ``zero`` if it must be).

A torch extension (``backend="cuda_extension"``) defines ``forward`` and has no other plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Candidate, Kernel, Language, LaunchPlan, Scratch
from kforge_nb.candidates.extension import extension_candidate
from kforge_nb.candidates.plan import plan_from_document, validate
from kforge_nb.errors import ContractBreach
from kforge_nb.proposers.protocol import Refusal, Request

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["ManualProposer", "derive_plan", "manual_candidate"]

_ENTRY = re.compile(r'extern\s*"C"\s*void\s+([A-Za-z]\w*)\s*\(([^)]*)\)', re.ASCII)
_TENSORS = r"(?:std\s*::\s*)?vector\s*<\s*(?:at|torch)\s*::\s*Tensor\s*>"
_FORWARD = re.compile(rf"{_TENSORS}\s+forward\s*\(\s*{_TENSORS}\s*\w*\s*\)\s*\{{", re.ASCII)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SYMBOL = re.compile(r"^\s*//\s*kforge:\s*([A-Za-z]\w*)\s*=\s*(.+?)\s*$", re.ASCII | re.MULTILINE)
_SCRATCH = re.compile(
    r"^\s*//\s*kforge:\s*scratch\s+([A-Za-z]\w*)\s*=\s*(\w+)\s*\[(.+)\]\s*(zero|none)?\s*$",
    re.ASCII | re.MULTILINE,
)
_TENSOR = re.compile(r"(?:in|out)(?:0|[1-9]\d*)", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCALARS = {
    "int64_t": "i64", "long": "i64", "size_t": "i64", "int32_t": "i32", "int": "i32",
    "float": "f32", "double": "f64",
}  # fmt: skip


class ManualProposer:
    """Offers the given candidates as drafts, in order, and nothing else."""

    name = "manual"

    def __init__(self, candidates: list[Candidate]) -> None:
        self._candidates = list(candidates)

    def supports(self, target: Target) -> str | None:
        """None if a plan fits the target, else the first reason why none does."""
        reasons = [_breach(candidate, target) for candidate in self._candidates]
        if not reasons:
            return "no kernel was given"
        return None if None in reasons else reasons[0]

    def propose(self, request: Request) -> Candidate | Refusal:
        """The next given candidate that was not tried; only as a draft."""
        if request.parent is not None:
            return Refusal("kernels given by hand have no moves of their own")
        tried = {*request.tried, *(a.candidate.digest for a in request.siblings)}
        fitting = [c for c in self._candidates if _breach(c, request.target) is None]
        found = next((c for c in fitting if c.digest not in tried), None)
        return found or Refusal("every kernel that was given has been judged")


def _breach(candidate: Candidate, target: Target) -> str | None:
    try:
        validate(candidate.plan, candidate.language, target.inputs, target.outputs)
    except ContractBreach as problem:
        return str(problem)
    return None


def manual_candidate(
    source: str,
    plan: LaunchPlan | Mapping[str, Any] | None,
    target: Target,
    language: Language = "cpp",
) -> Candidate:
    """A candidate from source and plan; without a plan, :func:`derive_plan` reads one.

    Args:
        source: C++, or CUDA C++ for ``cuda`` and, on a GPU, ``cuda_extension``.
        plan: how it is launched; ``cuda`` needs one, ``cuda_extension`` has only one.
        target: what it computes.
        language: what the source is.

    Raises:
        ContractBreach: no plan can be derived, or the plan does not fit the target.
    """
    origin = {"proposer": "manual"}
    if language == "cuda_extension" and plan is None:
        _check_forward(source)
        return extension_candidate(source, target.inputs, target.outputs, origin)
    if plan is None and language == "cuda":
        raise ContractBreach("a CUDA kernel needs a plan, which says its grid and block")
    if plan is None:
        plan = derive_plan(source, target)
    elif not isinstance(plan, LaunchPlan):
        plan = plan_from_document(plan)
    validate(plan, language, target.inputs, target.outputs)
    return Candidate(language, source, plan, title=plan.kernels[0].name, origin=origin)


def _check_forward(source: str) -> None:
    if not _FORWARD.search(_COMMENT.sub(" ", source)):
        raise ContractBreach(
            "a torch extension defines "
            "std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs) { … }, and this "
            "source does not"
        )


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
    parameters: list[str], scratch: Mapping[str, Scratch], target: Target
) -> dict[str, str]:
    """What each pointer stands for, by name or else by position."""
    pointers = [_name(p) for p in parameters if "*" in p]
    named = [p for p in pointers if p in scratch or _TENSOR.fullmatch(p)]
    if len(named) == len(pointers):
        return {name: name for name in named}
    free = [p for p in pointers if p not in scratch]
    given = [*target.input_names, *target.output_names]
    if any(_TENSOR.fullmatch(p) for p in free) or len(free) != len(given):
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
