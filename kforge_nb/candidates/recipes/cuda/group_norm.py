"""CUDA kernels for group norm in both layouts, with residual adds before and activations behind.

A group of a large image is millions of elements, so its statistics are gathered by many blocks.
What is in planes is written by :mod:`group_planes`, what is channels-last by :mod:`group_last`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.cuda import emit, turned
from kforge_nb.candidates.recipes.cuda.group_last import emit_last, last_parameters, last_widths
from kforge_nb.candidates.recipes.cuda.group_planes import (
    kept_type,
    plane_constants,
    plane_entries,
    plane_parameters,
    settled,
    source_text,
)
from kforge_nb.candidates.recipes.families.group_norm import GroupPlan, plan_group_norm
from kforge_nb.candidates.recipes.families.rowcode import CTYPES, literal
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["CudaGroupNorm", "families"]


def families() -> list[Any]:
    """The family of this module."""
    return [CudaGroupNorm()]


@dataclass(frozen=True, slots=True)
class CudaGroupNorm:
    """``F.group_norm`` in either layout, with element-wise operators around it."""

    name: str = "group_norm"

    def match(self, target: Target) -> Match | None:
        """The match where the CPU family knows the graph."""
        plan = _plan(target)
        if plan is None:
            return None
        if not plan.planes and not last_widths(plan, target):
            return None
        facts = {"shape": plan.shape, "groups": plan.groups, "planes": plan.planes}
        return Match(self.name, target, {}, facts)

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Those of the layout (see :mod:`group_planes` and :mod:`group_last`)."""
        plan = _known(match)
        if plan.planes:
            return plane_parameters(plan, match.target)
        return last_parameters(plan, match.target)

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernels for these parameters."""
        plan = _known(match)
        if plan.planes:
            return _emit_planes(match, plan, params)
        constants = _shared_constants(plan, match, params)
        return emit_last(match, plan, params, constants, _texts(plan, "group_last.cuh"))


def _plan(target: Target) -> GroupPlan | None:
    """The plan; of the target with its inputs in planes where only that is known."""
    plan = plan_group_norm(target, "cuda")
    if plan is None and turned.last_inputs(target):
        plan = plan_group_norm(turned.with_planes(target), "cuda")
        return plan if plan is not None and plan.planes else None
    return plan


def _known(match: Match) -> GroupPlan:
    plan = _plan(match.target)
    assert plan is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return plan


def _texts(plan: GroupPlan, kernel: str) -> list[str]:
    code = plan.code
    return [
        f"using Kept = {CTYPES[kept_type(plan)]};",
        emit.row_code_text(code),
        code.function("KF_INLINE vf before(const Row& p, int64_t i, L n)", "before", "x"),
        code.function("KF_INLINE void after(const Row& p, int64_t i, vf y, L n)", "after"),
        emit.kernel_text("moments.cuh"),
        emit.kernel_text(kernel),
    ]


def _shared_constants(plan: GroupPlan, match: Match, params: Params) -> dict[str, emit.Constant]:
    return {
        "V": ("int", params["vector"]),
        "FAST": ("bool", emit.short_answers(match.target)),
        "BLOCK": ("int", params["block"]),
        "U": ("int", params["unroll"]),
        "C": ("int", plan.code.domain.length),
        "EPS": ("float", literal(plan.eps)),
    }


def _emit_planes(match: Match, plan: GroupPlan, params: Params) -> Candidate:
    target, origin = match.target, params
    params = settled(plan, target, params)
    constants = {
        **_shared_constants(plan, match, params),
        **plane_constants(plan, target, params),
    }
    entries, scratch = plane_entries(plan, target, params, constants)
    texts = _texts(plan, "group.cuh")
    if params["way"] == "kept":
        texts += [source_text(plan), emit.kernel_text("group_kept.cuh")]
    names: dict[str, str] = {}
    if plan_group_norm(target, "cuda") is None:  # the inputs have to be turned first
        first, room, names = turned.turn_entries(target)
        entries, scratch = [*first, *entries], {**room, **scratch}
        texts.append(emit.kernel_text("turn.cuh"))
    text = emit.source(constants, texts, entries, target.name)
    return emit.candidate(match, origin, text, entries, scratch, names)
