"""Which kernels go into the model under which rest: each measured rest has decided by itself.

A kernel that wins where the graph runs in eager may lose where Inductor would have fused or laid
out the same nodes in another way, so kernels are installed with the rest that they were decided
for. A rest that nobody measured gets the kernels of the nearest one, and that is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Decisions = Sequence[Mapping[str, Any]]

__all__ = ["decided_for", "installs_any", "rests_with_kernels", "targets_of", "unmeasured"]


def decided_for(decisions: Decisions, advice: Mapping[str, Any] | None, rest: str) -> str:
    """The rest whose decisions hold for ``rest``: itself where it was measured, else the nearest.

    Recordings of what another rest runs are nearest to that one; else it is the recommended rest,
    and where the recommendation is to leave the model alone, the one that came first.

    Args:
        decisions: as in the run document.
        advice: the run's recommendation.
        rest: one of the guard's rests.

    Returns:
        A rest; empty where the decisions do not say for which rest they were made (documents of
        older versions).
    """
    from kforge_nb.guard.policy import RECORDS

    measured = _measured(decisions)
    advised = str(advice["rest"]) if advice else "eager"
    wanted = (rest, str(RECORDS.get(rest, "")), advised, *measured)
    known = measured or [advised if advised != "none" else ""]
    return next((name for name in wanted if name in known), "")


def targets_of(decisions: Decisions, rest: str) -> set[int]:
    """Targets whose kernels a measured ``rest`` installs; those of older documents with any."""
    if not _measured(decisions):
        return {d["target"] for d in decisions if d["installed"]}
    return {
        d["target"]
        for d in decisions
        for entry in d.get("rests", ())
        if entry["rest"] == rest and entry["installed"]
    }


def rests_with_kernels(decisions: Decisions) -> list[str]:
    """The measured rests that install a kernel, in the order in which they were measured."""
    return [rest for rest in _measured(decisions) if targets_of(decisions, rest)]


def installs_any(decision: Mapping[str, Any]) -> bool:
    """Whether some rest installs the kernel of this decision."""
    return bool(decision["installed"]) or any(r["installed"] for r in decision.get("rests", ()))


def unmeasured(decisions: Decisions, advice: Mapping[str, Any] | None, rest: str) -> str:
    """What to tell a user who installs kernels with a rest that was not measured; else nothing."""
    home = decided_for(decisions, advice, rest)
    if home == rest:
        return ""
    where = f"with rest={home!r}" if home else "with a rest that the run does not name"
    return (
        f"the kernels were decided {where}; with rest={rest!r} nobody has measured the model, and "
        "they may make it slower there: optimize with that rest, or with rest='auto', to decide"
    )


def _measured(decisions: Decisions) -> list[str]:
    """The rests that were measured, in order."""
    return list(dict.fromkeys(r["rest"] for d in decisions for r in d.get("rests", ())))
