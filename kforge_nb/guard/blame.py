"""Which kernels to give up when the model's output is too far from float64 with all of them.

First those that spoil it alone. Where each alone is right and only all together are not, roundings
add up, and one kernel less is often enough: the one with the largest error of its own goes first,
then the output is checked again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kforge_nb.guard.fidelity import LIMIT, Fidelity

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Left", "give_up"]

ALONE_INPUTS = 3
"""A kernel alone is tried on so many inputs at least, all that are kept together on more."""
TOGETHER_INPUTS = 8


@dataclass(slots=True)
class Left:
    """What may stay: ``fidelity`` is that of ``kept``, None where nothing is kept."""

    kept: frozenset[str]
    fidelity: Fidelity | None
    reasons: dict[str, str] = field(default_factory=dict)


def give_up(
    kept: frozenset[str],
    together: Fidelity,
    check: Callable[[frozenset[str], int], Fidelity],
    *,
    gain: Callable[[str], float],
    hurry: Callable[[], bool],
) -> Left:
    """Drop kernels until the output is as good as eager's.

    Args:
        kept: fingerprints of the kernels.
        together: what was found with all of them; it is not good.
        check: fidelity of the model with some of them, on at least so many inputs.
        gain: what a kernel wins at its place; of equal errors the least gain goes first.
        hurry: asked before each drop: whether to drop half of them instead of one.

    Returns:
        What stays, and the reason of each kernel that was dropped.
    """
    alone = {f: check(frozenset({f}), ALONE_INPUTS) for f in sorted(kept)}
    reasons = {f: _spoils(found) for f, found in alone.items() if not found.good}
    left = Left(kept.difference(reasons), together, reasons)
    if reasons and left.kept:
        left.fidelity = check(left.kept, TOGETHER_INPUTS)
    while left.kept and left.fidelity is not None and not left.fidelity.good:
        order = sorted(left.kept, key=lambda f: (-(alone[f].ratio or 0.0), gain(f), f))
        dropped = order[: (len(order) + 1) // 2 if hurry() else 1]
        for fingerprint in dropped:
            reasons[fingerprint] = _too_much(alone[fingerprint], left.fidelity, len(order))
        left.kept -= frozenset(dropped)
        left.fidelity = check(left.kept, TOGETHER_INPUTS) if left.kept else None
    if not left.kept:
        left.fidelity = None
    return left


def _spoils(alone: Fidelity) -> str:
    return (
        f"the model's output is further from float64 with it alone: {alone.figure} ({alone.note})"
    )


def _too_much(alone: Fidelity, together: Fidelity, count: int) -> str:
    if count == 1:
        return (
            f"the model's output is further from float64 with it: {together.figure} when checked "
            f"on more inputs, {alone.figure} at first ({together.note})"
        )
    return (
        f"right alone, with {alone.figure}, but the model's output is further from float64 with "
        f"all {count} kernels together: {together.figure}, and at most {LIMIT}× is allowed; those "
        f"with the largest errors of their own go first ({together.note})"
    )
