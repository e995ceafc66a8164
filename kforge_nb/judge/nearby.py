"""Eager's error where an element stands alone: taken again on inputs a few percent beside.

A budget is eager's own error, and one rounding says little of it: half way to nothing, a sum such
as ``1 + erf(x)`` is wrong by anything between zero and a unit of 1. In an ordinary tensor thousands
of elements together show how large that error gets. One value among zeros shows it once, and if
eager is lucky there, a kernel that computes the very same thing in another order would be called
wrong. So eager is asked again at values a few percent away, where roundings fall differently and
the function is still much the same; the largest of those errors is what eager's error is.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import fx

from kforge_nb.targets.float64 import reference

__all__ = ["NEARBY", "nearby_errors", "secret_generator"]

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
    graph: fx.GraphModule, inputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """For each output eager's largest error beside these inputs; None where it is not needed.

    Args:
        graph: the target.
        inputs: of one case, on one device.
        eager: what eager computed from them.
    """
    main = max(_floats(inputs), key=torch.Tensor.numel, default=None)
    if main is None or not _alone(main):
        return [None] * len(eager)
    times = max(1, min(_TIMES, _ELEMENTS // main.numel()))
    generator = secret_generator(str(main.device))
    worst: list[torch.Tensor | None] = [None] * len(eager)
    try:
        for _ in range(times):
            for i, error in enumerate(_errors(graph, [_beside(t, generator) for t in inputs])):
                before = worst[i]
                worst[i] = error if before is None or error is None else before.maximum(error)
    except torch.OutOfMemoryError:  # what was found so far is a good deal better than nothing
        torch.cuda.empty_cache()
    return worst


def _errors(graph: fx.GraphModule, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Eager's error in every element of every output that is floating-point."""
    with torch.no_grad():
        result = graph(*inputs)
        low = [result] if isinstance(result, torch.Tensor) else list(result)
        high = reference(graph, inputs)
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
    if main.dim() == 0 or main.shape[-1] < _SHORT:
        return True
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
