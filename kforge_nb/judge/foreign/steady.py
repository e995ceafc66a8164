"""Inputs of timed calls where only some of a target's inputs change: a reference's weights stay.

A model calls its kernels with other values every time, and with the same weights. Both sides get
one copy of the weights, and new values from call to call for everything else.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from kforge_nb.judge.foreign.tracing import flat

if TYPE_CHECKING:
    import torch

    from kforge_nb.judge.slots import TimedInputs

__all__ = ["SteadyInputs"]


class SteadyInputs:
    """:class:`TimedInputs` whose inputs from number ``given`` on are the same in every slot."""

    def __init__(self, inner: TimedInputs, weights: list[torch.Tensor], given: int) -> None:
        self._inner = inner
        self._weights = weights
        self.given = given
        self._settle()

    def __getattr__(self, name: str) -> Any:
        """Everything else is as ever."""
        return getattr(self._inner, name)

    def refill(self, generator: torch.Generator) -> None:
        """New values for everything but the weights."""
        self._inner.refill(generator)
        self._settle()

    def renew(self, first: int, calls: int, source: random.Random) -> None:
        """New values in the slots of some calls, weights left out."""
        inner = self._inner
        pools, rows = inner._pools, inner._rows
        inner._pools, inner._rows = pools[: self.given], rows[: self.given]
        try:
            inner.renew(first, calls, source)
        finally:
            inner._pools, inner._rows = pools, rows

    def _settle(self) -> None:
        for tensor, rows in zip(self._weights, self._inner._rows[self.given :], strict=True):
            values = flat(tensor).cpu().contiguous()
            raw = values.view(_bytes()).numpy() if values.numel() else np.empty(0, np.uint8)
            rows.view(np.uint8)[:] = raw


def _bytes() -> Any:
    import torch

    return torch.uint8
