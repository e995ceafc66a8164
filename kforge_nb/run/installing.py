"""What ``run.apply`` and ``run.compile`` install: a rest's kernels, and what to say of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput
from kforge_nb.run.by_rest import decided_for, installs_any, rests_with_kernels, unmeasured
from kforge_nb.store.records import ACTIVE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.run.handle import Run

__all__ = ["Choice", "choose"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Kernels, the rest to install them with, and, if nobody measured that, what to say of it."""

    kernels: list[Accepted]
    rest: str
    told: str = ""

    def known(self, run: Run) -> dict[str, Any]:
        """What an installation is to know of the run; warns where its rest was not measured."""
        from kforge_nb.run.guarding import places_of

        if self.told:
            warnings.warn(f"run {run.name}: {self.told}", RuntimeWarning, stacklevel=3)
        return {
            "calls": run.workload.calls if run.workload else (),
            "others": places_of(run.record),
            "notes": [self.told] if self.told else [],
        }


def choose(run: Run, rest: str) -> Choice:
    """What to install with a rest, ``auto`` for the recommended one.

    Raises:
        BadInput: nothing is decided yet, no kernel won with this rest or with any, or the guard
            recommends to leave the model alone and no rest is named.
    """
    from kforge_nb.guard.policy import RESTS
    from kforge_nb.run.guarding import installed_kernels

    record = run.record
    decisions, advice = record.store.decisions(record.id), record.run["recommendation"]
    if not decisions:
        if run.state == "done":
            raise BadInput(f"run {run.name} had no target to search, so it installs no kernel")
        raise BadInput(f"nothing is decided yet: {run.status()}; {_how_to_decide(run)}")
    if not any(map(installs_any, decisions)):
        raise BadInput(f"run {run.name} installs no kernel; {_instead(advice)}")
    chosen = _rest(advice, rest)
    if chosen not in RESTS:  # whoever installs says which there are
        return Choice([], chosen)
    kernels = installed_kernels(record, chosen)
    if not kernels:
        raise BadInput(_none_with(run.name, decisions, chosen))
    return Choice(kernels, chosen, unmeasured(decisions, advice, chosen))


def _rest(advice: Mapping[str, Any] | None, rest: str) -> str:
    if rest != "auto":
        return rest
    if advice and advice["rest"] == "none":
        raise BadInput(
            f"the guard recommends to leave the model alone ({advice['reason']}); name a rest, "
            "such as rest='eager', to install the kernels all the same"
        )
    return str(advice["rest"]) if advice else "eager"


def _none_with(name: str, decisions: Sequence[Mapping[str, Any]], rest: str) -> str:
    """Why a rest has no kernels although others of the run have some."""
    from kforge_nb.guard.policy import ALONE

    measured = decided_for(decisions, None, rest)
    others = ", ".join(f"rest={other!r}" for other in rests_with_kernels(decisions))
    return (
        f"run {name} installs no kernel with rest={rest!r}: with rest={measured!r} the model is "
        f"not faster with any; without them that rest is {ALONE[rest]}. Kernels were decided for "
        f"{others} (run.guard says more)"
    )


def _instead(advice: Mapping[str, Any] | None) -> str:
    """What to do where no kernel won: compile the model, where that alone is faster."""
    from kforge_nb.guard.policy import ALONE

    rest = advice["rest"] if advice else "none"
    if rest not in ALONE:
        return "the model stays as it is, and run.guard says why"
    return (
        f"the guard recommends rest={rest!r} without any, and that is {ALONE[rest]} (run.guard "
        "says more)"
    )


def _how_to_decide(run: Run) -> str:
    """What to do so that the guard decides: wait for a run at work, go on with an ended one."""
    if run.state in ACTIVE:
        return "wait for its end, by run.wait() or %kforge wait"
    return (
        f"its kernels were not measured in the model; kforge_nb.resume({run.name!r}, fn), or "
        f"`%%kforge resume {run.name}` over the cell, goes on to that"
    )
