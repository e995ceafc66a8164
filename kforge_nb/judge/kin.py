"""Which rows of an output come from inputs of about the same size: they say what eager's error is.

Where every row of the inputs has a scale of its own, a row that cancels or that an activation cuts
down to little is still made of its inputs' size, and so is its rounding. Other rows of the plane
say nothing of it; rows whose inputs are as large, within a factor of two each, do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["kin", "raised"]

_MOST = 4  # inputs that a row is known by
_LEVELS = 256  # binary exponents, 0 for rows of zeros


def kin(inputs: Sequence[torch.Tensor], output: torch.Tensor) -> torch.Tensor | None:
    """A number for each row (along the last dimension), the same for rows of the same kind.

    Args:
        inputs: of the target; those of the output's shape are looked at, the first four.
        output: one output.

    Returns:
        int64, one a row; None where no input has the output's shape, or it has no rows.
    """
    alike = [t for t in inputs if t.is_floating_point() and t.shape == output.shape][:_MOST]
    if not alike or output.dim() < 2 or output.numel() == 0:
        return None
    key = torch.zeros(output.shape[:-1], dtype=torch.int64, device=output.device)
    for tensor in alike:
        size = tensor.abs().amax(-1).to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
        exponent = torch.frexp(size).exponent.to(torch.int64).clamp(-_LEVELS // 2, _LEVELS // 2 - 1)
        key = key * _LEVELS + exponent + _LEVELS // 2
    return torch.unique(key.view(-1), return_inverse=True)[1]


def raised(sizes: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
    """Each row's size, or that of the largest of its kind; ``sizes`` of shape (rows, 1)."""
    flat = sizes.view(-1)
    top = flat.new_zeros(int(kind.max()) + 1)
    top.scatter_reduce_(0, kind.to(flat.device), flat, "amax")
    return top[kind.to(flat.device)].view_as(sizes)
