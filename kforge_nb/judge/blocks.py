"""Large tensors a block at a time, so that nothing that is made on the way is as large as they are.

Comparing 60 MB of results with float64 makes a dozen tensors of 120 MB, and the system hands that
memory out page by page: it takes several times as long as the arithmetic. Blocks of a few hundred
kilobytes stay in the near caches and in memory that the process has already. On a GPU, where
memory is kept and every operator is a launch, a block is the whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

__all__ = ["all_finite", "largest_size", "spans", "tiles"]

_BLOCK = 1 << 16  # elements


def spans(tensor: torch.Tensor) -> Iterator[slice]:
    """Ranges of the elements of a tensor in row-major order."""
    step = _step(tensor)
    for start in range(0, tensor.numel(), step):
        yield slice(start, start + step)


def tiles(matrix: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Ranges of rows and columns of a matrix; a row is cut only where it is too long alone."""
    rows, columns = matrix.shape
    step = _step(matrix)
    down, across = max(1, step // max(1, columns)), max(1, min(columns, step))
    for top in range(0, rows, down):
        for left in range(0, columns, across):
            yield slice(top, top + down), slice(left, left + across)


def _step(tensor: torch.Tensor) -> int:
    return _BLOCK if tensor.device.type == "cpu" else max(1, tensor.numel())


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite; floating-point."""
    if tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)  # NaN where there is one anywhere
    return math.isfinite(low) and math.isfinite(high)


def largest_size(tensor: torch.Tensor) -> float:
    """The largest finite absolute value; 0 where there is none. Floating-point."""
    if tensor.numel() == 0:
        return 0.0
    low, high = (float(value) for value in torch.aminmax(tensor))
    if math.isfinite(low) and math.isfinite(high):
        return max(abs(low), abs(high))
    flat = tensor.reshape(-1)
    found = (flat[at].abs().nan_to_num(0.0, 0.0, 0.0).max() for at in spans(flat))
    return max(float(value) for value in found)
