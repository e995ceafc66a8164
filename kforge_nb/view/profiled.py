"""What a profile may still say once the guard has measured the model.

Pure functions of the run document; the browser's twin is ``labextension/src/view/profiled.ts``.

A profile is taken once, at whatever moment a run begins. Beside other work it is wrong about how
long a run takes and how much of that computes, so shares, ceilings and the claim to be launch-bound
are wrong with it. The guard times the untouched model later, in turn with its kernels: that time is
the one to show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kforge_nb.profile.believing import LAUNCH_BOUND, is_crowded
from kforge_nb.view import claims, facts, words
from kforge_nb.view.entries import untouched_us

__all__ = ["beyond", "launch_bound", "remarks", "rough", "share_words"]

APART = 1.5
"""Times that differ by more than this factor are of different moments of the machine."""

Document = Mapping[str, Any]


def remarks(document: Document) -> list[str]:
    """All that is to be said of the profile beside the figures, in order."""
    told = (launch_bound(document), rough(document), beyond(document))
    return [text for text in told if text]


def rough(document: Document) -> str:
    """Why shares and ceilings are not to be taken as sure; empty where nothing speaks against it.

    Either other programs kept the machine busy during the profile, which its notes say, or the
    guard measured another time for the untouched model.
    """
    why = []
    if is_crowded(document["workload"]["notes"]):
        why.append("other programs kept the machine busy while the profile was taken")
    if _apart(document):
        why.append(
            f"the profile had {words.time(document['workload']['wall_us'])} for a run of the "
            f"untouched model, and the guard measured {words.time(untouched_us(document))}"
        )
    return f"Shares and ceilings are rough: {'; '.join(why)}." if why else ""


def share_words(document: Document) -> str:
    """The heading of a column of shares."""
    return "share (rough)" if rough(document) else "share"


def launch_bound(document: Document) -> str:
    """What being launch-bound means and what to do about it; empty where the run is not.

    Empty, too, where that rests on a profile of a busy moment, or on a time that the guard has
    found to be far too long.
    """
    workload = document["workload"]
    if workload["launch_bound"] is not True or is_crowded(workload["notes"]):
        return ""
    wall, busy = workload["wall_us"], workload["device_us"]
    if _apart(document):
        wall = untouched_us(document)
        if wall is None or busy is None or wall <= LAUNCH_BOUND * busy:
            return ""
    cpu = document["device"].get("kind") == "cpu"
    who = "its operators work" if cpu else "the device works"
    figures = ""
    if wall is not None and busy is not None:
        figures = f" One run takes {words.time(wall)}, and {who} for {words.time(busy)} of it."
    cure = (
        "a rest that fuses (--rest inductor), a larger batch, or fewer and larger operators"
        if cpu
        else "a rest with CUDA graphs (--rest auto measures them), a larger batch, or fewer and "
        "larger operators"
    )
    return (
        "Launch-bound: most of the time goes to Python and to launching, not to computing."
        f"{figures} Faster kernels alone change little here; what helps is {cure}."
    )


def beyond(document: Document) -> str:
    """Why kernels may have gained more than their ceilings allow; empty where they have not."""
    gain = facts.headline(document).over_empty
    most = _ceiling(document)
    if gain is None or most is None or claims.shown(gain) != "faster" or gain["low"] <= most:
        return ""
    return (
        "The kernels gained more than the ceilings of their targets together allow "
        f"({words.ratio(most)}): ceilings come from shares and limits that were measured at "
        "another moment, each target alone; what was measured in the model is what counts."
    )


def _ceiling(document: Document) -> float | None:
    """Speed-up of a run with all installed targets at their rooflines; None where one has none."""
    chosen = {d["target"] for d in document["decisions"] if d["installed"]}
    rows = [t for t in document["targets"] if t["index"] in chosen]
    if not rows or any(not t["ceiling"] for t in rows):
        return None
    left = 1.0 - sum(1.0 - 1.0 / t["ceiling"] for t in rows)
    return 1.0 / left if left > 0 else None


def _apart(document: Document) -> bool:
    """Whether the guard's time of the untouched model is another one than the profile's."""
    wall, found = document["workload"]["wall_us"], untouched_us(document)
    return bool(wall and found) and not 1 / APART <= wall / found <= APART
