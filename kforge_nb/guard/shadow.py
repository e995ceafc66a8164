"""Is a kernel's output the same as the original's, up to rounding? Used on first live calls.

The comparison is coarse at first (a tolerance by dtype, which honest kernels meet). Where it fails,
float64 decides: the kernel may be off by a small multiple of the original's own error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

__all__ = ["difference", "relative_error"]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
MULTIPLE = 4.0
"""How many times the original's own float64 error a kernel may have."""


def difference(
    ours: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    reference: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
) -> str | None:
    """None if the outputs agree, else what differs, in words."""
    if len(ours) != len(expected):
        return f"{len(ours)} outputs instead of {len(expected)}"
    for index, (mine, theirs) in enumerate(zip(ours, expected, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"out{index} is {tuple(mine.shape)} {mine.dtype}, not {tuple(theirs.shape)}"
    doubtful = [
        i for i, (mine, theirs) in enumerate(zip(ours, expected, strict=True))
        if not _close(mine, theirs)
    ]  # fmt: skip
    return _judge(doubtful, ours, expected, reference, inputs) if doubtful else None


def _close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    if theirs.dtype not in TOLERANCE:
        return torch.equal(mine, theirs)
    if theirs.numel() == 0:
        return True
    tolerance = TOLERANCE[theirs.dtype]
    finite = theirs[torch.isfinite(theirs)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _judge(
    doubtful: list[int],
    ours: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    reference: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
) -> str | None:
    from kforge_nb.targets.float64 import reference as exactly

    exact = exactly(reference, list(inputs))
    for index in doubtful:
        if ours[index].dtype not in TOLERANCE:
            wrong = int((ours[index] != expected[index]).sum())
            return f"out{index} has {wrong} other values of {ours[index].numel()}"
        error = relative_error(ours[index], exact[index])
        budget = relative_error(expected[index], exact[index])
        if not error <= MULTIPLE * budget + torch.finfo(ours[index].dtype).eps:
            return f"out{index} has a relative error of {error:.3g}, the original {budget:.3g}"
    return None


def relative_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Norm of the error over the norm of the exact value, where that is finite.

    Infinite if the two do not agree on where values are finite.
    """
    value64, exact64 = value.detach().double(), exact.detach().double()
    fine = torch.isfinite(exact64)
    strange = ~fine
    if not torch.equal(
        torch.nan_to_num(value64[strange], nan=3.0, posinf=1.0, neginf=2.0),
        torch.nan_to_num(exact64[strange], nan=3.0, posinf=1.0, neginf=2.0),
    ):
        return float("inf")
    norm = float(torch.linalg.vector_norm(exact64[fine]))
    error = float(torch.linalg.vector_norm(value64[fine] - exact64[fine]))
    if error != error:  # a NaN where the exact value is finite
        return float("inf")
    return error / norm if norm > 0 else error
