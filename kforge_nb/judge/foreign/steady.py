"""Inputs of timed calls where only some of a target's inputs change: a reference's weights stay.

A model calls its kernels with other values every time, and with the same weights. Both sides get
one copy of the weights, and new values from call to call for everything else.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from kforge_nb.judge.foreign.tracing import flat

if TYPE_CHECKING:
    import torch

    from kforge_nb.judge.cuda.slots import DeviceInputs
    from kforge_nb.judge.slots import TimedInputs

__all__ = ["SteadyInputs"]


def _raw(tensor: torch.Tensor) -> np.ndarray:
    """The bytes between a tensor's first and last element."""
    import torch

    row = flat(tensor).cpu().contiguous()
    return row.view(torch.uint8).numpy() if row.numel() else np.empty(0, np.uint8)


class SteadyInputs:
    """:class:`TimedInputs` whose inputs from number ``given`` on are the same in every slot."""

    def __init__(
        self, inner: TimedInputs | DeviceInputs, weights: list[torch.Tensor], given: int
    ) -> None:
        self._inner: Any = inner
        self.given = given
        self._bytes = [_raw(tensor) for tensor in weights]
        self._settle(range(inner.slots))

    def __getattr__(self, name: str) -> Any:
        """Everything else is as ever."""
        return getattr(self._inner, name)

    def refill(self, generator: torch.Generator) -> None:
        """New values for everything but the weights."""
        self._inner.refill(generator)
        self._settle(range(self._inner.slots))

    def renew(self, first: int, calls: int, source: random.Random) -> None:
        """New values in the slots of some calls, weights left out."""
        self._inner.renew(first, calls, source)
        self._settle(range(first, first + min(calls, self._inner.slots)))

    def freshen(self, most: int, source: random.Random) -> list[tuple[int, int]]:
        """New values in a stretch of every slot, weights left out."""
        changed: list[tuple[int, int]] = self._inner.freshen(most, source)
        self._settle(range(self._inner.slots))
        return changed

    def _settle(self, slots: Iterable[int]) -> None:
        """Put the weights back into some slots."""
        for slot in slots:
            places = self._inner.raw(slot)[self.given :]
            for place, values in zip(places, self._bytes, strict=True):
                place[:] = values
