"""Memory that a candidate asks for in every call and never gives back.

In a notebook such a kernel takes a little more of the process with each call of the model, and what
is kept may as well be a table of results. A kernel that asks for memory once, or that fills the
allocator's own caches, does so in its first calls: the later half of the timed batches counts, and
nearly every one of them has to end with more than it began with, all of them with a good deal: what
the allocator keeps of blocks that were given back may grow for a while, too, by a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["leak"]

_LEAST_BATCHES = 3
_NEARLY_ALL = 0.75
_NOTABLE = 1 << 16  # bytes, of all later batches
_LEAST = 8.0  # bytes a call: the smallest block takes 32, so one call of four is seen


def leak(grown: Sequence[tuple[int, int]]) -> float:
    """Bytes that a call keeps; 0 where it does not.

    Args:
        grown: of each timed batch, in order, its calls and the bytes by which the heap grew.
    """
    later = grown[len(grown) // 2 :]
    calls, found = sum(n for n, _ in later), sum(more for _, more in later)
    growing = sum(1 for _, more in later if more > 0)
    if len(later) < _LEAST_BATCHES or growing < _NEARLY_ALL * len(later):
        return 0.0
    return found / calls if found >= max(_NOTABLE, _LEAST * calls) else 0.0
