"""Answers that held no kernel, as candidates, so that trees, stores and recordings hold them.

Such a candidate has the answer as its source and a plan that launches nothing; it is never judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan

if TYPE_CHECKING:
    from kforge_nb.proposers.protocol import Failure

__all__ = ["NO_KERNEL", "failed_candidate", "is_failed"]

NO_KERNEL = LaunchPlan((Kernel("none", ("out0",)),))
"""The plan of an answer that held no kernel. A real kernel has more than one argument."""


def failed_candidate(failure: Failure) -> Candidate:
    """The failure as a candidate."""
    return Candidate(failure.language, failure.text, NO_KERNEL, failure.title, dict(failure.origin))


def is_failed(candidate: Candidate) -> bool:
    """Whether a candidate stands for an answer without a kernel."""
    return candidate.plan == NO_KERNEL
