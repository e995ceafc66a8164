"""Rows of memory: which elements of each tensor belong to row ``r``, and where they start.

All tensors of a fused kernel are read and written over one shape. Its trailing axes form the row,
the leading ones are counted by one index ``r``; neighbouring axes that every tensor walks through
in one stride are merged, so that most targets end as plain rows of contiguous floats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

__all__ = ["Domain", "Walk", "make_domain"]


@dataclass(frozen=True, slots=True)
class Walk:
    """How one tensor follows the rows: strides (elements) of the outer axes and inside the row."""

    outer: tuple[int, ...]
    inner: int
    offset: int = 0


@dataclass(slots=True)
class Domain:
    """``rows`` rows of ``length`` elements; ``sizes`` are the merged outer axes."""

    sizes: tuple[int, ...]
    length: int
    walks: list[Walk] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return prod(self.sizes)


def _merge(
    sizes: list[int], strides: list[list[int]], stop: int
) -> tuple[list[int], list[list[int]]]:
    """Merge neighbours among the first ``stop`` axes where every tensor allows it."""
    out_sizes: list[int] = []
    out: list[list[int]] = [[] for _ in strides]
    for axis in range(stop):
        size = sizes[axis]
        if size == 1:
            continue
        joins = bool(out_sizes) and all(
            o[-1] == s[axis] * size for o, s in zip(out, strides, strict=True)
        )
        if joins:
            out_sizes[-1] *= size
        else:
            out_sizes.append(size)
        for o, s in zip(out, strides, strict=True):
            if joins:
                o[-1] = s[axis]
            else:
                o.append(s[axis])
    return out_sizes, out


def make_domain(
    shape: tuple[int, ...],
    strides: list[tuple[int, ...]],
    offsets: list[int],
    row_axes: int | None,
) -> Domain | None:
    """Rows over ``shape`` for tensors with these strides (0 where a tensor is broadcast).

    ``row_axes`` trailing axes form the row; None lets it grow over every axis that merges, after
    sorting the axes by the strides of the last tensor (the first output). None is returned where a
    row is not walked with stride 1 or 0 by every tensor.
    """
    order = list(range(len(shape)))
    if row_axes is None:
        order.sort(key=lambda a: (strides[-1][a], -a if shape[a] != 1 else 0), reverse=True)
    sizes = [shape[a] for a in order]
    sorted_strides = [[s[a] for a in order] for s in strides]
    rank = len(sizes)
    if row_axes is None:
        merged, walks = _merge(sizes, sorted_strides, rank)
        inner_size = merged.pop() if merged else 1
        inners = [w.pop() if w else 1 for w in walks]
    else:
        split = rank - row_axes
        tail, tails = _merge(sizes[split:], [s[split:] for s in sorted_strides], row_axes)
        if len(tail) > 1:
            return None
        inner_size = tail[0] if tail else 1
        inners = [t[0] if t else 1 for t in tails]
        merged, walks = _merge(sizes, sorted_strides, split)
    if any(i not in (0, 1) for i in inners):
        return None
    domain = Domain(tuple(merged), inner_size)
    domain.walks = [Walk(tuple(w), i, o) for w, i, o in zip(walks, inners, offsets, strict=True)]
    return domain
