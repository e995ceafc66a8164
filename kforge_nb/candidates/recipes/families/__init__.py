"""Tuned recipe families for the CPU, in the order in which they are asked.

``tuned_families()`` is what the recipes proposer asks before it turns to the generator. A family
matches exactly or not at all: whatever it does not know in a graph is left to the generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge_nb.candidates.recipes.family import Family

__all__ = ["tuned_families"]


def tuned_families() -> tuple[Family, ...]:
    """All tuned families, the most specific first; imports torch."""
    from kforge_nb.candidates.recipes.families import (
        activation,
        batch_norm,
        cross_entropy,
        delta_rule,
        group_norm,
        pooling,
        rotary,
        rownorm,
    )

    modules = (
        delta_rule,
        cross_entropy,
        pooling,
        rotary,
        group_norm,
        batch_norm,
        rownorm,
        activation,
    )
    return tuple(family for module in modules for family in module.families())
