"""What a recipe family is: a way to write kernels for the targets that it recognises.

A family looks at a target, says whether it knows it (:class:`Match`), names its parameters with the
values that may be tried (the moves of the tree search), and emits a candidate for one choice of
values. Tuned families (softmax, layer norm, ...) stand before the generator, which is a family
too and takes whatever is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["Explains", "Family", "Match", "Params", "default_params", "origin_of"]

Params = dict[str, Any]
"""One value (int, float, str or bool: plain JSON) for each parameter."""


@dataclass(frozen=True, slots=True)
class Match:
    """A target that a family recognised.

    ``roles`` maps what the family calls its arguments to names of the plan (``"x": "in0"``);
    ``facts`` holds whatever the family needs to emit (sizes, epsilon, which activation follows).
    """

    family: str
    target: Target
    roles: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Family(Protocol):
    """Writes kernels for the targets it recognises. Stateless; every method is deterministic."""

    name: str

    def match(self, target: Target) -> Match | None:
        """The match, or None where the target is not this family's. Never raises."""

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Values to try for each parameter; the first is the best guess. Values are plain JSON."""

    def emit(self, match: Match, params: Params) -> Candidate:
        """Source and plan for one choice; ``origin`` must be :func:`origin_of`."""


@runtime_checkable
class Explains(Protocol):
    """A family that can say why it does not match."""

    def why_not(self, target: Target) -> str | None:
        """None where the family matches, else the reason in words."""


def default_params(family: Family, match: Match) -> Params:
    """The best guess: the first value of every parameter."""
    return {name: values[0] for name, values in family.parameters(match).items()}


def origin_of(match: Match, params: Params) -> dict[str, Any]:
    """The ``Candidate.origin`` of a recipe: proposer, recipe name and the parameters chosen."""
    return {"proposer": "recipes", "recipe": match.family, "params": dict(params)}
