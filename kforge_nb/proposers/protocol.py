"""The one protocol of all proposers: a request in, a candidate or a refusal out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.targets.target import Target

__all__ = ["Action", "Attempt", "Proposer", "Refusal", "Request"]

Action = Literal["draft", "repair", "optimise", "restart"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A candidate that was judged, with its evaluation."""

    candidate: Candidate
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Request:
    """Everything a proposer may know.

    ``parent`` is None for a draft. ``siblings`` are the parent's other children, or for a draft the
    roots tried so far. ``tried`` holds the digests of all candidates judged for this target,
    wherever they stand in the tree; one of them again would be refused. ``device`` holds plain
    facts (name, threads, isa, bandwidth_gbs). ``seed`` makes a proposer deterministic.
    """

    target: Target
    action: Action
    parent: Attempt | None = None
    siblings: tuple[Attempt, ...] = ()
    device: dict[str, Any] = field(default_factory=dict)
    roofline_us: float | None = None
    seed: int = 0
    tried: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The proposer has nothing (more) to offer here, and why. ``exhausted`` ends that node."""

    reason: str
    exhausted: bool = True


class Proposer(Protocol):
    """Writes candidates."""

    name: str

    def supports(self, target: Target) -> str | None:
        """None if it can propose for this target, else the reason in words."""

    def propose(self, request: Request) -> Candidate | Refusal:
        """One candidate for the request, or a refusal. Never raises for a bad target."""
