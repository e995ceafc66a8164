"""A candidate: source code plus a launch plan that together claim to compute a target."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Candidate", "Kernel", "Language", "LaunchPlan", "Scratch"]

Language = Literal["cpp", "cuda", "cuda_extension"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: entry name, arguments in order and, for CUDA, grid, block and shared bytes.

    An argument is the name of an input (``in0``), an output (``out0``), a scratch buffer, or a
    typed scalar ``"i64:EXPR"``, ``"i32:EXPR"``, ``"f32:EXPR"``, ``"f64:EXPR"``. In a ``cpp`` plan
    ``"i32:nthreads"`` passes the number of threads. Expressions are strings evaluated by
    :mod:`kforge_nb.candidates.expressions`.
    """

    name: str
    args: tuple[str, ...]
    grid: tuple[str, str, str] = ("1", "1", "1")
    block: tuple[str, str, str] = ("1", "1", "1")
    shared: str = "0"


@dataclass(frozen=True, slots=True)
class Scratch:
    """A temporary buffer; ``init`` is ``none`` (poisoned when judged) or ``zero``."""

    dtype: str
    shape: tuple[str, ...]
    init: Literal["none", "zero"] = "none"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a candidate's kernels are launched: data, never code."""

    kernels: tuple[Kernel, ...]
    symbols: dict[str, str] = field(default_factory=dict)
    scratch: dict[str, Scratch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Source and plan, with where they came from.

    ``origin`` is plain JSON: ``{"proposer": "recipes", "recipe": "softmax", "params": {...}}`` or
    ``{"proposer": "manual"}``; it never takes part in ``digest``.
    """

    language: Language
    source: str
    plan: LaunchPlan
    title: str = ""
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Content address (sha256 hex) of language, source and plan."""
        from kforge_nb.candidates.plan import plan_to_document

        body = json.dumps([self.language, self.source, plan_to_document(self.plan)], sort_keys=True)
        return hashlib.sha256(body.encode()).hexdigest()
