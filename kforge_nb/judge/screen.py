"""A quick look at many outputs of timed calls, to find the few that are worth a close one.

Working out what an output must be, and by how much it may be off, takes float64 and many passes.
Eager alone is quick, and a call that was left out, or that gave an earlier call's result, is as far
from eager as numbers of that size can be. So outputs of many timed calls are kept, eager computes
each, and those that are furthest off are checked as all others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["distance"]

_FAR = 10.0  # times the size of an output: more is no worse


def distance(
    outputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], budgets: Sequence[float]
) -> float:
    """How far a call's outputs are from eager's: 0 where they are inside the budget of each.

    Otherwise the mean over the elements of an output of what they are off, over its root mean
    square; of the output where that is most.

    Args:
        outputs: of the candidate.
        eager: eager's on the same inputs, with the same shapes and dtypes.
        budgets: what each output may be off, over its root mean square; integers must be equal.
    """
    return max(map(_apart, outputs, eager, budgets), default=0.0)


def _apart(got: torch.Tensor, eager: torch.Tensor, budget: float) -> float:
    if got.numel() == 0:
        return 0.0
    if not eager.is_floating_point():
        return float((got != eager).to(torch.float32).mean())
    size = float(eager.to(torch.float32).square().mean().sqrt())
    apart = torch.sub(got.to(torch.float32), eager.to(torch.float32)).abs_()
    if bool((apart <= budget * size).all()):  # a NaN on either side is not
        return 0.0
    same = got.isnan() & eager.isnan() | (got == eager)
    apart = torch.where(same, 0.0, torch.nan_to_num(apart / size, nan=_FAR)).clamp_(max=_FAR)
    return float(apart.mean())
