"""Candidates that a person writes: source with or without a plan.

Without a plan, one is read off the source (:mod:`kforge_nb.proposers.derive`). A torch extension
defines ``forward`` and has no other plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Candidate, Language, LaunchPlan
from kforge_nb.candidates.extension import extension_candidate
from kforge_nb.candidates.plan import plan_from_document, validate
from kforge_nb.errors import ContractBreach
from kforge_nb.proposers.derive import derive_cuda_plan, derive_plan
from kforge_nb.proposers.protocol import Refusal, Request

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["CellProposer", "ManualProposer", "derive_plan", "manual_candidate"]

_TENSORS = r"(?:std\s*::\s*)?vector\s*<\s*(?:at|torch)\s*::\s*Tensor\s*>"
_FORWARD = re.compile(rf"{_TENSORS}\s+forward\s*\(\s*{_TENSORS}\s*\w*\s*\)\s*\{{", re.ASCII)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


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


class CellProposer:
    """Proposes nothing: all kernels of its run come from ``%%kforge kernel`` cells."""

    name = "manual"

    def supports(self, target: Target) -> str | None:  # noqa: ARG002  any will do
        """Any target may get a kernel by hand."""
        return None

    def propose(self, request: Request) -> Candidate | Refusal:
        """Always a refusal that says where kernels come from."""
        return Refusal(
            "kernels of this run are written by hand: "
            f"%%kforge kernel --target {request.index} over a cell with one"
        )


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
    """A candidate from source and plan; without a plan, one is read off it.

    Args:
        source: C++, or CUDA C++ for ``cuda`` and, on a GPU, ``cuda_extension``.
        plan: how it is launched; ``cuda_extension`` has only one.
        target: what it computes.
        language: what the source is.

    Raises:
        ContractBreach: no plan can be derived, or the plan does not fit the target.
    """
    origin = {"proposer": "manual"}
    if language == "cuda_extension" and plan is None:
        _check_forward(source)
        return extension_candidate(source, target.inputs, target.outputs, origin)
    if plan is None:
        derived = derive_cuda_plan if language == "cuda" else derive_plan
        plan = derived(source, target)
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
