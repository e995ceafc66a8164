"""Eager's error where an element stands alone: taken again on inputs a few percent beside.

A budget is eager's own error, and one rounding says little of it: half way to nothing, a sum such
as ``1 + erf(x)`` is wrong by anything between zero and a unit of 1. In an ordinary tensor thousands
of elements together show how large that error gets. One value among zeros shows it once, and if
eager is lucky there, a kernel that computes the very same thing in another order would be called
wrong. So eager is asked again at values a few percent away, where roundings fall differently and
the function is still much the same; the largest of those errors is what eager's error is.

The same where infinities leave few numbers of a row finite: each of those shows eager's error once.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import fx

from kforge_nb.judge.blocks import all_finite
from kforge_nb.targets.float64 import reference
from kforge_nb.targets.onhost import OnHost

__all__ = ["NEARBY", "nearby_errors", "secret_generator", "short", "sparse"]

NEARBY = 0.05
"""How far the inputs are moved at most, in proportion to each element."""
_TIMES = 8
_ELEMENTS = 1 << 21
_SPARSE = 0.5
_SHORT = 16


def secret_generator(device: str = "cpu") -> torch.Generator:
    """A generator on a device whose seed nobody knows."""
    return torch.Generator(device).manual_seed(secrets.randbits(63))


def nearby_errors(
    graph: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    cut: bool = False,
    on_host: bool = False,
) -> list[torch.Tensor | None]:
    """For each output eager's largest error beside these inputs; None where it is not needed.

    Args:
        graph: the target.
        inputs: of one case, on one device.
        eager: what eager computed from them.
        cut: rows count by themselves, so those of which an activation left little need this too.
        on_host: the inputs were brought to the CPU, whatever devices the graph names.
    """
    main = _main(inputs)
    if main is None:
        return [None] * len(eager)
    lonely = [None if _alone(main) else _few(t, cut) for t in eager]
    if not _alone(main) and all(rows is None for rows in lonely):
        return [None] * len(eager)
    times = max(1, min(_TIMES, _ELEMENTS // main.numel()))
    generator = secret_generator(str(main.device))
    worst: list[torch.Tensor | None] = [None] * len(eager)
    try:
        for _ in range(times):
            moved = [_beside(t, generator) for t in inputs]
            for i, error in enumerate(_errors(graph, moved, on_host)):
                before = worst[i]
                worst[i] = error if before is None or error is None else before.maximum(error)
    except torch.OutOfMemoryError:  # what was found so far is a good deal better than nothing
        torch.cuda.empty_cache()
    if _alone(main):
        return worst
    return [None if error is None or rows is None else error * rows
            for error, rows in zip(worst, lonely, strict=True)]  # fmt: skip


def sparse(inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the numbers in the largest input stand alone among zeros."""
    main = _main(inputs)
    return main is not None and _mostly_zeros(main)


def short(inputs: Sequence[torch.Tensor]) -> bool:
    """Whether rows of the largest input hold too few numbers to say what eager's error is."""
    main = _main(inputs)
    return main is not None and _in_short_rows(main)


def _main(inputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
    return max(_floats(inputs), key=torch.Tensor.numel, default=None)


def _few(eager: torch.Tensor, cut: bool) -> torch.Tensor | None:
    """Rows with few finite numbers among others: booleans (…, 1); None where there are none.

    With ``cut`` rows with few numbers but zeros.
    """
    if not eager.is_floating_point() or eager.dim() == 0 or (all_finite(eager) and not cut):
        return None
    told = torch.isfinite(eager)
    if cut:
        told &= eager != 0
    finite = told.sum(-1, keepdim=True)
    found = (finite > 0) & (finite < min(_SHORT, eager.shape[-1]))
    return found if bool(found.any()) else None


def _errors(
    graph: fx.GraphModule, inputs: list[torch.Tensor], on_host: bool
) -> list[torch.Tensor | None]:
    """Eager's error in every element of every output that is floating-point."""
    with torch.no_grad():
        result = OnHost(graph).run(*inputs) if on_host else graph(*inputs)
        low = [result] if isinstance(result, torch.Tensor) else list(result)
        high = reference(graph, inputs, on_cpu=on_host)
    return [
        (a.to(torch.float64) - b.to(a.device)).abs().nan_to_num(0.0, 0.0, 0.0).contiguous()
        if a.is_floating_point()
        else None
        for a, b in zip(low, high, strict=True)
    ]


def _floats(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t for t in tensors if t.is_floating_point() and t.numel() > 0]


def _alone(main: torch.Tensor) -> bool:
    """Whether rows may hold too few numbers to speak for themselves."""
    return _in_short_rows(main) or _mostly_zeros(main)


def _in_short_rows(main: torch.Tensor) -> bool:
    return main.dim() == 0 or main.shape[-1] < _SHORT


def _mostly_zeros(main: torch.Tensor) -> bool:
    return main.numel() - int(torch.count_nonzero(main)) > _SPARSE * main.numel()


def _beside(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The tensor with each element a little larger or smaller, strides kept."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    noise = torch.rand(tensor.shape, generator=generator, device=tensor.device)
    values = (tensor.to(torch.float32) * (1.0 + NEARBY * (2.0 * noise - 1.0))).to(tensor.dtype)
    moved = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    if 0 in tensor.stride() and tensor.numel() > 1:
        index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
        moved[index].copy_(values[index])
        return moved
    return moved.copy_(values)
