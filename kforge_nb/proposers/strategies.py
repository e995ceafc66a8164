"""Which move an ``optimise`` asks for: by what the judge measured and what was tried already."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kforge_nb.proposers.prompting import STRATEGIES, language_of

if TYPE_CHECKING:
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.proposers.protocol import Request

__all__ = ["next_strategy"]

_FAR, _NEAR = 0.35, 0.7
_MANY_REGISTERS = 128


def next_strategy(request: Request) -> str:
    """The move to ask for: one that was tried least from this parent, most promising first.

    What promises most goes by the parent's figures: far from a copy's bandwidth, arithmetic is in
    the way; near it, what counts is how the work and the passes are laid out; registers that spill
    or are many come first of all.
    """
    ranked = _ranked(request)
    tried = Counter(a.candidate.origin.get("strategy") for a in request.siblings)
    return min(ranked, key=lambda name: (tried[name], ranked.index(name)))


def _ranked(request: Request) -> list[str]:
    names = list(STRATEGIES[language_of(request)])
    found = request.parent.evaluation if request.parent else None
    first = _first(found) if found is not None else []
    return [*(n for n in first if n in names), *(n for n in names if n not in first)]


def _first(found: Evaluation) -> list[str]:
    kernels = [k for k in _kernels(found) if isinstance(k, dict)]
    if any(k.get("spill_stores") or k.get("spill_loads") for k in kernels):
        return ["cut registers"]
    if any(int(k.get("registers") or 0) >= _MANY_REGISTERS for k in kernels):
        return ["raise occupancy", "cut registers"]
    share = found.roofline_share
    if share is None or share < _FAR:
        return ["vectorise", "fuse passes", "change the mapping"]
    if share < _NEAR:
        return ["fuse passes", "tile", "change the mapping", "vectorise"]
    return ["change the mapping", "tile", "fuse passes"]


def _kernels(found: Evaluation) -> list[Any]:
    kernels = found.resources.get("kernels")
    return list(kernels.values()) if isinstance(kernels, dict) else []
