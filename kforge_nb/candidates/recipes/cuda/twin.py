"""A target as the CPU families' matchers want to see it: the same graph, said to be on the CPU.

What a recipe recognises does not depend on the device; only what it writes does. Matching is
therefore done by the matchers of :mod:`kforge_nb.candidates.recipes.families`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target

__all__ = ["cpu_twin"]


def cpu_twin(target: Target) -> Target | None:
    """The target with its tensors on the CPU; None where it is not on one CUDA device."""
    devices = {spec.device for spec in [*target.inputs, *target.outputs]}
    if len(devices) != 1 or not next(iter(devices)).startswith("cuda"):
        return None
    return replace(
        target,
        inputs=tuple(replace(spec, device="cpu") for spec in target.inputs),
        outputs=tuple(replace(spec, device="cpu") for spec in target.outputs),
    )
