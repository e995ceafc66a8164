"""Hard values for the inputs beside the largest: weights, biases, scales, gates, statistics.

A kernel that takes a weight's absolute value, or drops what is not finite from a bias, is right on
all values that were seen in training and wrong after the next step of it. The sets here change
those inputs and leave the largest as redrawn. Several inputs share a set: each has its own places
in it, so that one's values do not hide what becomes of another's. Where eager does not define the
values of all together, or nothing finite would be left to compare, each input has its own set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from kforge_nb.judge.draws import distinct, fill, redraw
from kforge_nb.judge.roles import Role, roles_of, steep

__all__ = ["ALWAYS", "NOT_FINITE", "SIGNS", "Sides"]

SIGNS, NOT_FINITE, HUGE, TINY = "other signs", "not finite beside", "huge beside", "tiny beside"
ALWAYS = (SIGNS, NOT_FINITE)
"""Sets that are kept however large the tensors are."""

_SPREAD = 16.0  # a common weight is redrawn between this part of its size and half as much as it
_LEAST = 8  # places that an input needs for each one that it shares a set with
_HUGE, _STEEP, _HALF = 1e8, 64.0, 100.0
_TINY, _TINY_HALF = 1e-8, 1e-4
_ROOT_HUGE = 1e4
_PLACES = 3

Tensors = list[torch.Tensor]
Maker = Callable[[torch.Tensor, Role, torch.Tensor | None, dict[str, Any]], None]


class Sides:
    """The hard sets of one target's other inputs, by name; none where it has no such inputs.

    Args:
        graph: the target's.
        seen: captured inputs; what is legitimate for each is read from both.
    """

    def __init__(self, graph: fx.GraphModule, seen: Sequence[torch.Tensor]) -> None:
        self._roles = roles_of(graph, seen)
        self._steep = steep(graph)

    @property
    def names(self) -> tuple[str, ...]:
        """The sets of all inputs together, most telling first."""
        if not self._roles:
            return ()
        return (SIGNS, NOT_FINITE, HUGE, TINY) if self._scalable else ALWAYS

    def alone(self, name: str, tensors: Sequence[torch.Tensor] | None = None) -> list[str]:
        """The sets of one input each that stand for ``name``.

        With ``tensors`` only those of inputs that are too small to share a set.
        """
        if name in (SIGNS, TINY) and tensors is not None:
            return []
        kept = self._roles if name in ALWAYS else self._scalable
        least = _LEAST * len(kept)
        small = {i for i in kept if tensors is None or distinct(tensors[i]).numel() < least}
        return [f"{name} in{i}" for i in sorted(small)] if tensors is None or len(kept) > 1 else []

    @property
    def _scalable(self) -> dict[int, Role]:
        return {i: role for i, role in self._roles.items() if role is not Role.KEPT}

    def knows(self, name: str) -> bool:
        """Whether a set of this name can be made."""
        return name in self.names or any(name in self.alone(n) for n in self.names)

    def draw(self, name: str, seen: Sequence[torch.Tensor], generator: torch.Generator) -> Tensors:
        """The set called ``name``: redrawn inputs of which some hold hard values."""
        tensors = redraw(seen, generator)
        self.fill(name, tensors, generator)
        return tensors

    def fill(self, name: str, tensors: Tensors, generator: torch.Generator) -> None:
        """Write the hard values called ``name`` into ordinary ones."""
        base = next(n for n in self.names if name.startswith(n))
        only = name.removeprefix(base).strip().removeprefix("in")
        makers: dict[str, Maker] = {
            SIGNS: _signs, NOT_FINITE: _not_finite, HUGE: self._huge, TINY: _tiny
        }  # fmt: skip
        roles = self._roles if base in ALWAYS or base == TINY else self._scalable
        if only:
            roles = {int(only): self._roles[int(only)]}
        least = _LEAST * len(roles)
        for order, (i, role) in enumerate(roles.items()):
            tensor = distinct(tensors[i])
            here: dict[str, Any] = {"generator": generator, "device": tensor.device}
            part = None
            if base in (HUGE, NOT_FINITE) and len(roles) > 1:
                if tensor.numel() < least:
                    continue
                part = torch.arange(tensor.numel(), device=tensor.device) % len(roles) == order
            makers[base](tensor, role, part, here)

    def _huge(
        self, tensor: torch.Tensor, role: Role, part: torch.Tensor | None, here: dict[str, Any]
    ) -> None:
        """Sizes far above what training leaves; in steep functions no more than they can take."""
        values = tensor.reshape(-1).to(torch.float32)
        noise = torch.randn(values.numel(), **here)
        if role is Role.ROOT:
            large = values.abs() * _ROOT_HUGE if tensor.dtype is not torch.float16 else values
        else:
            size = _STEEP if self._steep else _HUGE
            large = noise * (min(size, _HALF) if tensor.dtype is torch.float16 else size)
        fill(
            tensor, (large if part is None else torch.where(part, large, values)).view(tensor.shape)
        )


def _signs(tensor: torch.Tensor, role: Role, _: torch.Tensor | None, here: dict[str, Any]) -> None:
    """Either sign, up to eight times as large, zeros, and numbers that stand there often."""
    values = tensor.reshape(-1).to(torch.float32)
    count = values.numel()
    if role is not Role.FREE:
        fill(tensor, (values * torch.exp2(torch.rand(count, **here) * 4 - 2)).view(tensor.shape))
        return
    size = values.abs()
    usual = size[torch.isfinite(size)].median() if count else values.new_ones(())
    usual = torch.where(usual > 0, usual, 0.5)
    size = size * torch.exp2(torch.rand(count, **here) * 4 - 1)
    which = torch.rand(count, **here)
    size = torch.where(which < 0.25, usual, size)
    size = torch.where(which < 0.125, 0.0, size)
    sign = 2.0 * torch.randint(2, (count,), **here) - 1.0
    fill(tensor, (size * sign).view(tensor.shape))


def _tiny(tensor: torch.Tensor, role: Role, _: torch.Tensor | None, here: dict[str, Any]) -> None:
    """All so small that nothing else in the output hides them; variances, half of them zero.

    What holds one value for a row, or one for all, does so for half of the rows at most: where a
    tiny factor meets tiny numbers nothing is left to compare.
    """
    if role is Role.KEPT:
        return
    size = _TINY_HALF if tensor.dtype is torch.float16 else _TINY
    values = torch.randn(tensor.numel(), **here) * size
    if role is Role.ROOT:
        values = torch.where(torch.rand(tensor.numel(), **here) < 0.5, 0.0, values.abs())
    elif tensor.numel() == 1:
        return
    elif tensor.shape[-1] == 1:
        kept = torch.rand(tensor.numel(), **here) < 0.5
        values = torch.where(kept, tensor.reshape(-1).to(torch.float32), values)
    fill(tensor, values.view(tensor.shape))


def _not_finite(
    tensor: torch.Tensor, role: Role, part: torch.Tensor | None, here: dict[str, Any]
) -> None:
    """NaN and infinity at a few places of ordinary values."""
    values = tensor.reshape(-1).to(torch.float32)
    free = values.new_ones(values.numel(), dtype=torch.bool) if part is None else part
    places = free.nonzero().reshape(-1)
    picked = places[torch.randperm(places.numel(), **here)][
        : max(1, min(_PLACES, len(values) // 8))
    ]
    values = values.clone()
    values[picked] = float("nan")
    if role is not Role.KEPT:
        values[picked[1::2]] = float("inf")
    fill(tensor, values.view(tensor.shape))
