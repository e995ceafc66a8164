"""The one protocol of all proposers: a request in; a candidate, a refusal or a failure out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate, Language
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.targets.target import Target

__all__ = ["Action", "Attempt", "Failure", "Proposer", "Refusal", "Request"]

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
    facts (name, threads, isa, bandwidth_gbs). ``seed`` makes a proposer deterministic. ``index`` is
    the target's number in the run, and ``node`` the id that the node will have: what a proposal
    costs is booked under both. ``baseline_us`` is what eager takes for one call, where it is known.
    """

    target: Target
    action: Action
    parent: Attempt | None = None
    siblings: tuple[Attempt, ...] = ()
    device: dict[str, Any] = field(default_factory=dict)
    roofline_us: float | None = None
    seed: int = 0
    tried: frozenset[str] = frozenset()
    index: int = 0
    node: str = ""
    baseline_us: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The proposer has nothing (more) to offer here, and why.

    ``exhausted`` closes the node that was to grow. ``ends`` says what the reason is an end of:
    only this node, the target (its share of the money is used up), or the whole run (so is all the
    money). While other calls are under way, whose money may come back, the latter two only wait.
    """

    reason: str
    exhausted: bool = True
    ends: Literal["node", "target", "run"] = "node"


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer came that is no candidate: it becomes a failed node, with its reason.

    ``text`` is what was answered (shown as the node's source), ``origin`` as in a candidate.
    """

    reason: str
    text: str = ""
    language: Language = "cpp"
    title: str = "no kernel"
    origin: dict[str, Any] = field(default_factory=dict)


class Proposer(Protocol):
    """Writes candidates."""

    name: str

    def supports(self, target: Target) -> str | None:
        """None if it can propose for this target, else the reason in words."""

    def propose(self, request: Request) -> Candidate | Refusal | Failure:
        """One candidate for the request, a refusal, or a failed answer.

        Never raises for a bad target. A KForgeError ends the run: what every further call would
        meet too, such as a refused key.
        """
