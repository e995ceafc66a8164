"""The cases of a target: on its device while there is room, else made again when their turn comes.

Expected values are float64 and take seven times the memory of a half-precision output. Where a
device has no room for all of them, bringing them from the host's memory costs more than computing
them again from their inputs, which is what a GPU is fast at; so only the inputs are kept. What took
longer to make than it takes to move waits in the host's memory, and what does not fit even alone is
made and compared on the CPU. Running out of a GPU's memory is never an error here, only slower, and
``notes`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import overload

import torch
from torch import fx

from kforge_nb.judge.cases import Case, make_case, moved

__all__ = ["Again", "Shelf", "taken"]

_BUS = 4e9  # bytes a second from memory that is not page-locked, at best
_SETS = 8  # of so many more cases the inputs have room where no more cases have


@dataclass(frozen=True, slots=True)
class Again:
    """A case of which only the inputs are kept."""

    graph: fx.GraphModule
    name: str
    inputs: list[torch.Tensor]


class Shelf(Sequence[Case]):
    """A sequence of cases that come out on ``device``; at most ``room`` bytes are kept there.

    ``seconds``: what making them took, and moving them.
    """

    def __init__(self, device: str, room: float = math.inf) -> None:
        self.device = device
        self.notes: list[str] = []
        self.seconds: dict[str, float] = {}
        self._left = room
        self._cases: list[Case | Again] = []
        self._last: tuple[Case, fx.GraphModule, float] | None = None

    def make(self, graph: fx.GraphModule, name: str, inputs: Sequence[torch.Tensor]) -> Case:
        """A case made on the device, all but eager on the CPU where the device has no room for it.

        Raises:
            torch.OutOfMemoryError: not even eager fits.
        """
        with self._spending("move"):
            here = [moved(t, self.device) for t in inputs]
        start = perf_counter()
        with self._spending("make"):
            try:
                case = make_case(graph, name, here)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            else:
                self._last = (case, graph, perf_counter() - start)
                return case
            case = make_case(graph, name, here, exact_on="cpu")
        self._last = None  # not to be made twice
        self._note(
            f"{name}: all but eager was computed on the CPU, {self.device} has no room for it"
        )
        return case

    def keep(self, case: Case) -> Case | Again:
        """What of a case that was just made stays, and where, now that so much room is left."""
        inputs = sum(t.untyped_storage().nbytes() for t in case.inputs)
        if case.bytes + _SETS * inputs <= self._left:
            self._left -= case.bytes
            return case
        last, self._last = self._last, None
        with self._spending("move"):
            if last is not None and last[0] is case and last[2] * _BUS < case.bytes:
                self._note(
                    f"{case.name} is worked out anew for each candidate, {self.device} has no room "
                    "for all cases"
                )
                return Again(last[1], case.name, self._inputs(case, inputs))
            self._note(
                f"{case.name} waits in the host's memory, {self.device} has no room for all cases"
            )
            return case.to("cpu")

    def _inputs(self, case: Case, size: int) -> list[torch.Tensor]:
        if size <= self._left:
            self._left -= size
            return case.inputs
        return [moved(t, "cpu") for t in case.inputs]

    def fill(self, cases: Sequence[Case | Again]) -> Shelf:
        """Take the cases; itself."""
        self._cases = list(cases)
        self._last = None
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the cases, without moving any."""
        return tuple(case.name for case in self._cases)

    def named(self, start: str) -> list[Case]:
        """The cases whose names begin like that."""
        return [self[i] for i, case in enumerate(self._cases) if case.name.startswith(start)]

    def __len__(self) -> int:
        return len(self._cases)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Shelf: ...
    def __getitem__(self, index: int | slice) -> Case | Shelf:
        if isinstance(index, slice):
            part = Shelf(self.device, self._left).fill(self._cases[index])
            part.seconds = self.seconds
            return part
        case = self._cases[index]
        if isinstance(case, Again):
            found = self.make(case.graph, case.name, case.inputs)
            self._last = None
            return found
        try:
            with self._spending("move"):
                return case.to(self.device)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            self._note(f"{case.name} is compared on the CPU, {self.device} has no room for it")
            return case

    @contextmanager
    def _spending(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start

    def _note(self, words: str) -> None:
        if words not in self.notes:
            self.notes.append(words)


def taken(cases: Sequence[Case], seconds: list[float]) -> Iterator[Case]:
    """The cases one by one, and how long it took to have each."""
    for index in range(len(cases)):
        start = perf_counter()
        case = cases[index]
        seconds.append(perf_counter() - start)
        yield case
