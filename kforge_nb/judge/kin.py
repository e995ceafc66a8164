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
_LEVELS = 256  # of a row's size: 0 for rows of zeros, then its binary exponent
_MIDDLE = 128


def kin(inputs: Sequence[torch.Tensor], output: torch.Tensor) -> torch.Tensor | None:
    """A number for each row (along the last dimension), the same for rows of the same kind.

    Args:
        inputs: of the target; those with a value for each element or each row of the output are
            looked at, the first four.
        output: one output.

    Returns:
        int64, one a row; None where no input has the output's shape, or it has no rows.
    """
    floats = [t for t in inputs if t.is_floating_point()]
    if output.dim() < 2 or not output.numel() or all(t.shape != output.shape for t in floats):
        return None
    rows = output.shape[:-1]
    alike = [t for t in floats if t.dim() and t.shape[-1] in (1, output.shape[-1])]
    alike = [t for t in alike if t.dim() > 1 and t.numel() > t.shape[-1]]
    key = torch.zeros(rows, dtype=torch.int64, device=output.device)
    for tensor in [t for t in alike if _spreads(t.shape[:-1], rows)][:_MOST]:
        size = tensor.abs().amax(-1).to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
        level = torch.frexp(size).exponent.to(torch.int64) + _MIDDLE
        level = torch.where(size == 0, 0, level.clamp(1, _LEVELS - 1))
        key = key * _LEVELS + level.expand(rows)
    return torch.unique(key.view(-1), return_inverse=True)[1]


def _spreads(shape: torch.Size, rows: torch.Size) -> bool:
    """Whether values of this shape stand for rows as they are, or spread over them."""
    try:
        return torch.broadcast_shapes(shape, rows) == rows
    except RuntimeError:
        return False


def raised(sizes: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
    """Each row's size, or that of the largest of its kind; ``sizes`` of shape (rows, 1)."""
    flat = sizes.view(-1)
    top = flat.new_zeros(int(kind.max()) + 1)
    top.scatter_reduce_(0, kind.to(flat.device), flat, "amax")
    return top[kind.to(flat.device)].view_as(sizes)
