"""What the pure rules of the search need to know of a target at work, and how a request is made."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from kforge_nb.judge.evaluation import Verdict
from kforge_nb.profile.believing import believed
from kforge_nb.proposers.protocol import Request
from kforge_nb.run.choice import UNKNOWN_HEADROOM
from kforge_nb.search import allocate, stopping

if TYPE_CHECKING:
    from kforge_nb.run.work import Work
    from kforge_nb.search.mcts import Choice

__all__ = ["believe", "learn_from", "request_for", "rng_for", "rules_of", "state_of"]

STEP = 1.25
"""Where no roofline is known, the best so far is taken to have this much above it."""

BEYOND = 1.15
"""A candidate at more than this share of the roofline shows that the roofline does not bind."""


def state_of(work: Work) -> allocate.TargetState:
    """A target when the next attempt is given away.

    A right kernel that is faster than the roofline shows that the calibration is too low, and one
    that was measured on a busy machine is too low anyway: then there is always something above.
    """
    reached = max(_accepted(work) or 1.0, 1.0)
    known = work.headroom if work.headroom and reached <= work.headroom * BEYOND else None
    if known is None or work.rough:
        known = max(known or 0.0, UNKNOWN_HEADROOM, reached * STEP)
    return allocate.TargetState(
        work.index,
        work.target.family,
        work.share,
        known,
        best=reached,
        attempts=len(work.tree),
        gains=stopping.gains(work.tree),
        dry=stopping.dry(work.tree),
        pending=work.tree.root.pending,
        open=work.open and not (work.closing or work.paused or work.ending),
        reached=stopping.reached(work.tree),
        climb=stopping.climb(work.tree),
        action="optimise" if len(work.tree) else "draft",
    )


def believe(work: Work) -> None:
    """Gives a target's roofline up when its best kernel is clearly faster: told, stored, not shown.

    The kernel is right, so it is the calibration that is too low here.
    """
    best = work.tree.best()
    found = best.evaluation if best else None
    if found is None or found.verdict is not Verdict.ACCEPTED or not work.roofline_us:
        return
    ours = next((t.ours_us for t in found.timings if t.against == "eager"), None)
    if believed(ours, work.roofline_us) is not None:
        return
    work.record.set_target(work.index, roofline_us=None, headroom=None, ceiling=None)
    work.record.add_note(
        f"target {work.index} ({work.target.name}): a right kernel is faster than the roofline "
        f"measured for this machine ({work.roofline_us:.3g} µs a call), which is too low for it; "
        "no roofline and no ceiling is shown for it any more"
    )
    work.roofline_us = work.headroom = None


def rules_of(work: Work, patience: int | None) -> stopping.TargetRules:
    """When a target has had enough; a roofline that does not bind ends no search."""
    share = stopping.best_share(work.tree) or 0.0
    if work.headroom is None or work.rough or share > BEYOND:
        return stopping.TargetRules(roofline=math.inf, patience=patience)
    return stopping.TargetRules(patience=patience)


def learn_from(work: Work, rates: allocate.Rates) -> None:
    """Success rates from what an earlier session has judged."""
    judged = [node for node in work.tree if not node.waiting]
    for node, gained in zip(judged, stopping.gain_flags(work.tree), strict=True):
        rates.observe(work.target.family, node.action, gained)


def rng_for(work: Work, seed: int) -> random.Random:
    """Choices that depend on the seed and on what was judged, not on when."""
    work.asked += 1
    place = f"{seed}/{work.index}/{len(work.tree)}/{work.asked}"
    return random.Random(place)  # noqa: S311  a search, not a secret


def request_for(
    work: Work,
    choice: Choice,
    device: dict[str, Any],
    seed: int,
    under_way: frozenset[str] = frozenset(),
) -> Request:
    """What a proposer is asked for a choice; ``under_way`` are digests that are being judged."""
    judged = {node.digest for node in work.tree if node.digest}
    return Request(
        target=work.target,
        action=choice.action,
        parent=None if choice.node is None else work.attempt(choice.node),
        siblings=work.children(choice.node),
        device=device,
        roofline_us=work.roofline_us,
        seed=rng_for(work, seed).randrange(2**31),
        tried=frozenset(judged | under_way),
        index=work.index,
        node=choice.ticket,
        baseline_us=work.mean_us,
    )


def _accepted(work: Work) -> float | None:
    best = work.tree.best()
    found = best.evaluation if best else None
    return found.speedup if found and found.verdict is Verdict.ACCEPTED else None
