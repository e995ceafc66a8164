"""The cases of a target: held on its device while there is room, else in the host's memory.

Expected values are float64 and large. What does not fit is brought to the device when its turn
comes and let go afterwards; what does not fit even alone is compared on the CPU. Running out of a
GPU's memory is never an error here, only slower, and ``notes`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

import torch
from torch import fx

from kforge_nb.judge.cases import Case, make_case, moved

__all__ = ["Shelf"]


class Shelf(Sequence[Case]):
    """A sequence of cases that come out on ``device``; at most ``room`` bytes are kept there."""

    def __init__(self, device: str, room: float = math.inf) -> None:
        self.device = device
        self.notes: list[str] = []
        self._left = room
        self._cases: list[Case] = []

    def make(self, graph: fx.GraphModule, name: str, inputs: Sequence[torch.Tensor]) -> Case:
        """A case made on the device, float64 on the CPU where the device has no room for that.

        Raises:
            torch.OutOfMemoryError: not even eager fits.
        """
        here = [moved(t, self.device) for t in inputs]
        try:
            return make_case(graph, name, here)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        case = make_case(graph, name, here, exact_on="cpu")
        self._note(f"{name}: float64 was computed on the CPU, {self.device} has no room for it")
        return case

    def make_and_keep(
        self, graph: fx.GraphModule, name: str, inputs: Sequence[torch.Tensor]
    ) -> Case:
        """The same, and moved to the host's memory where the room is used up."""
        case = self.make(graph, name, inputs)
        if case.bytes <= self._left:
            self._left -= case.bytes
            return case
        self._note(f"{name} waits in the host's memory, {self.device} has no room for all cases")
        return case.to("cpu")

    def fill(self, cases: Sequence[Case]) -> Shelf:
        """Take the cases; itself."""
        self._cases = list(cases)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the cases, without moving any."""
        return tuple(case.name for case in self._cases)

    def __len__(self) -> int:
        return len(self._cases)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Shelf: ...
    def __getitem__(self, index: int | slice) -> Case | Shelf:
        if isinstance(index, slice):
            return Shelf(self.device, self._left).fill(self._cases[index])
        case = self._cases[index]
        try:
            return case.to(self.device)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            self._note(f"{case.name} is compared on the CPU, {self.device} has no room for it")
            return case

    def _note(self, words: str) -> None:
        if words not in self.notes:
            self.notes.append(words)
