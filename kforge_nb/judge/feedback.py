"""An input set for whoever has to mend a wrong candidate: it shows where, and never decides.

What decides is drawn secretly and stays with the judge; what was captured is the user's own. A
proposer that shall learn from a failure gets wrong elements of a set like the one that failed, of
the same kind but drawn anew, from nothing but mean, spread and range of what was captured. Its
name begins with ``feedback``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from kforge_nb.judge.cases import Case
from kforge_nb.judge.draws import HARD_SETS, lay_out
from kforge_nb.judge.sides import Sides
from kforge_nb.targets.target import TensorSpec

__all__ = ["NAME", "feedback_case", "like"]

NAME = "feedback"
_SAMPLE = 1 << 16


def feedback_case(
    graph: fx.GraphModule,
    failed: str,
    seen: Sequence[torch.Tensor],
    generator: torch.Generator,
    make: Callable[[fx.GraphModule, str, Sequence[torch.Tensor]], Case],
) -> Case | None:
    """A case like the one called ``failed``; None where eager does not define its values.

    Args:
        graph: the target's.
        failed: name of the input set on which the candidate is wrong.
        seen: captured inputs; only their looks are used.
        generator: on their device.
        make: makes a case of a graph, a name and inputs.
    """
    tensors = [like(tensor, generator) for tensor in seen]
    sides = Sides(graph, seen)
    if failed in HARD_SETS or sides.knows(failed):
        if failed in HARD_SETS:
            HARD_SETS[failed](tensors, generator)
        else:
            sides.fill(failed, tensors, generator)
        name = f"{NAME}: {failed}"
    else:
        name = f"{NAME}: ordinary values"
    try:
        return make(graph, name, tensors)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None  # it is a help, and the verdict stands without it


def like(seen: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Values of the mean, spread, sign and range of ``seen``; none of its own, but for constants.

    Integers are drawn from the range that was seen, so that indices stay valid.
    """
    here: dict[str, Any] = {"generator": generator, "device": seen.device}
    count = max(seen.numel(), 1)
    if seen.dtype is torch.bool:
        flat = torch.rand(count, **here) < 0.5
    elif not seen.is_floating_point():
        low, high = (int(seen.min()), int(seen.max())) if seen.numel() else (0, 0)
        flat = torch.randint(low, high + 1, (count,), **here).to(seen.dtype)
    else:
        flat = _floats(seen, count, here).to(seen.dtype)
    return lay_out(flat, TensorSpec.of(seen))


def _floats(seen: torch.Tensor, count: int, here: dict[str, Any]) -> torch.Tensor:
    sample = seen.reshape(-1)[:_SAMPLE].to(torch.float64)
    finite = sample[torch.isfinite(sample)]
    if finite.numel() == 0:
        return torch.randn(count, **here)
    mean, spread = float(finite.mean()), float(finite.std(correction=0))
    drawn = torch.randn(count, **here) * spread + mean
    if bool((finite > 0).all()):
        return drawn.abs().clamp_min(float(finite.min()))
    if bool((finite < 0).all()):
        return -drawn.abs().clamp_min(float(-finite.max()))
    return drawn
