"""Recipe families for CUDA, in the order in which they are asked.

They recognise what the CPU families recognise (the matchers are theirs) and write device code with
a launch plan. ``cuda_families()`` ends with the generator, which takes whatever is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge_nb.candidates.recipes.family import Family

__all__ = ["cuda_families"]


def cuda_families() -> tuple[Family, ...]:
    """All CUDA families, the most specific first; imports torch."""
    from kforge_nb.candidates.recipes.cuda import (
        conv1d,
        cross_entropy,
        delta_rule,
        embedding,
        generated,
        group_norm,
        pointwise,
        pooling,
        rows,
    )

    modules = (
        delta_rule,
        cross_entropy,
        embedding,
        conv1d,
        pooling,
        group_norm,
        rows,
        pointwise,
        generated,
    )
    return tuple(family for module in modules for family in module.families())
