"""The plan of a torch extension: there is nothing to launch but ``forward``, with everything.

A candidate whose language is ``cuda_extension`` defines ``forward`` (see
:mod:`kforge_nb.compilers.cuda_extension`), which launches whatever it wants. Its plan only says
what goes in and what comes out, so that the record of a run shows it like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.errors import ContractBreach

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FORWARD", "check_extension_plan", "extension_candidate", "extension_plan"]

FORWARD = "forward"


def extension_plan(inputs: Sequence[Any], outputs: Sequence[Any]) -> LaunchPlan:
    """The one plan that an extension of a target with these inputs and outputs can have."""
    names = [f"in{i}" for i in range(len(inputs))] + [f"out{i}" for i in range(len(outputs))]
    return LaunchPlan((Kernel(FORWARD, tuple(names)),))


def check_extension_plan(plan: LaunchPlan, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raises ContractBreach for any other plan."""
    wanted = extension_plan(inputs, outputs)
    if plan != wanted:
        arguments = ", ".join(wanted.kernels[0].args)
        raise ContractBreach(
            "a torch extension has one kernel, called forward, with the arguments "
            f"{arguments}; it has no grid, scratch or symbols, as its host code launches"
        )


def extension_candidate(
    source: str, inputs: Sequence[Any], outputs: Sequence[Any], origin: dict[str, Any]
) -> Candidate:
    """A ``cuda_extension`` candidate from its source."""
    plan = extension_plan(inputs, outputs)
    title = f"{FORWARD} (host code)"
    return Candidate("cuda_extension", source, plan, title=title, origin=origin)
