"""What the installed torch makes of values at the edge, where a recipe must do the same."""

from __future__ import annotations

from functools import lru_cache

import torch

__all__ = ["gelu_loses_infinity"]


def gelu_loses_infinity(source: torch.Tensor) -> bool:
    """Whether eager's exact gelu of a tensor laid out as ``source`` turns +infinity into NaN.

    On most x86 CPUs it does so where the tensor is contiguous and holds several 32 or 16-bit
    floats: those go to another library than the rest.

    Args:
        source: any shape, strides and dtype; may be a meta or fake tensor, only its facts are read.
    """
    if source.device.type not in ("cpu", "meta") or source.dtype is torch.float64:
        return False
    return source.numel() > 1 and source.is_contiguous() and _contiguous_gelu_is_nan()


@lru_cache(maxsize=1)
def _contiguous_gelu_is_nan() -> bool:
    probe = torch.full((64,), float("inf"))
    return bool(torch.nn.functional.gelu(probe).isnan().all())
