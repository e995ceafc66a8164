"""The two that are timed on a GPU, as a session sees them: graphs, slots, batches and exchanges.

Each keeps a copy of the slots in its own device memory, and knows which versions of them it holds:
a slot is copied again only where its values have changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from kforge_nb.errors import BadInput
from kforge_nb.judge.baseline import BaselineWorker
from kforge_nb.judge.cases import moved
from kforge_nb.judge.cuda.slots import DeviceInputs, Stretch
from kforge_nb.judge.cuda.staging import Staging
from kforge_nb.judge.process import Child
from kforge_nb.judge.timing import Probe
from kforge_nb.workload.devices import free_bytes

__all__ = ["Candidate", "CudaBaselineSide", "CudaRunnerSide", "CudaSide", "bring", "renewed"]

_KEPT = 32  # sets of inputs must fit into the free memory of the device for one to stay there


class CudaSide(Protocol):
    """One of the two that are timed."""

    child: Child
    held: dict[int, int]
    """Versions of the slots that are in this side's memory."""

    def prepare(self, calls: int) -> None:
        """Make the graphs of ``calls`` calls ready, with new secrets where calls have some."""

    def upload(self, first: int, slots: int) -> None:
        """Copy slots from shared memory to this side's device memory."""

    def refresh(self, stretches: Sequence[Stretch]) -> None:
        """Copy parts of the shared memory of all slots, as (offset, bytes)."""

    def ping(self) -> float:
        """Seconds of an empty exchange."""

    def batch(self, replays: int, empty: bool) -> tuple[float, float]:
        """Seconds of so many replays, on the judge's clock and by the device's events."""


class Candidate(CudaSide, Protocol):
    """The side that is not trusted."""

    staged: bool
    """Whether its calls see secret inputs, and its outputs are noted."""

    def saw(self, inputs: DeviceInputs, call: int) -> list[torch.Tensor]:
        """The inputs of a call of the last replay."""

    def noted(self, inputs: DeviceInputs, call: int) -> Probe:
        """The inputs of a call of the last replay, and what was noted of its outputs."""


def bring(side: CudaSide, inputs: DeviceInputs) -> None:
    """Copy the slots to a side of which it lacks the present version."""
    for first, count in inputs.stale(side.held):
        side.upload(first, count)
    renewed(side, inputs)


def renewed(side: CudaSide, inputs: DeviceInputs) -> None:
    """Note that a side has all that is new in the slots."""
    side.held.clear()
    side.held.update(enumerate(inputs.versions))


class CudaRunnerSide:
    """The candidate; ``seconds`` is the limit of a batch, ``held`` what its process has."""

    def __init__(self, loaded: Any, seconds: float, held: dict[int, int] | None = None) -> None:
        self._loaded, self._runner = loaded, loaded.runner
        self.child = self._runner.child
        self.held = {} if held is None else held
        self.staged = bool(getattr(self._runner, "stages", False))
        self._staging: Staging | None = None
        self._seconds = seconds

    def prepare(self, calls: int) -> None:
        """Make the graphs ready."""
        if not self.staged:
            self._runner.prepare(calls)
            return
        self._staging = self._loaded.staging()
        self._runner.prepare(calls, self._staging)

    def saw(self, inputs: DeviceInputs, call: int) -> list[torch.Tensor]:
        """The inputs of a call of the last replay, computed from the judge's own copy."""
        if self._staging is None:
            return inputs.snapshot(call)
        tick, _ = self._loaded.noted(self._staging, call)
        return _staged(self._staging, inputs, tick, call)

    def noted(self, inputs: DeviceInputs, call: int) -> Probe:
        """The inputs of a call of the last replay, and what was noted of its outputs."""
        if self._staging is None:
            raise BadInput("nothing is noted of calls without secret inputs")
        tick, values = self._loaded.noted(self._staging, call)
        staged = _staged(self._staging, inputs, tick, call)
        return Probe(staged, values, self._staging.places(tick, call))

    def upload(self, first: int, slots: int) -> None:
        """Copy slots to the runner's device memory."""
        self._runner.upload(first, slots)

    def refresh(self, stretches: Sequence[Stretch]) -> None:
        """Copy parts of them."""
        self._runner.refresh(stretches)

    def ping(self) -> float:
        """Seconds of an empty exchange."""
        return float(self._runner.ping())

    def batch(self, replays: int, empty: bool) -> tuple[float, float]:
        """Seconds of so many replays, on both clocks."""
        wall, device = self._runner.batch(replays, empty, self._seconds)
        return wall, device


class CudaBaselineSide:
    """A baseline; ``how`` says after ``prepare`` whether a graph or a stream is timed."""

    def __init__(
        self, worker: BaselineWorker, key: str, baseline: str, held: dict[int, int] | None = None
    ) -> None:
        self.child = worker.child
        self.held = {} if held is None else held
        self.how = ""
        self._worker, self._key, self._baseline = worker, key, baseline
        self._calls = 1

    def prepare(self, calls: int) -> None:
        """Make the graphs ready."""
        self._calls = calls
        self.how = self._worker.graph(self._key, self._baseline, calls)

    def upload(self, first: int, slots: int) -> None:
        """Copy slots to the worker's device memory."""
        self._worker.upload(self._key, first, slots)

    def refresh(self, stretches: Sequence[Stretch]) -> None:
        """Copy parts of them."""
        self._worker.refresh(self._key, stretches)

    def ping(self) -> float:
        """Seconds of an empty exchange."""
        return self._worker.ping()

    def batch(self, replays: int, empty: bool) -> tuple[float, float]:
        """Seconds of so many replays, on both clocks."""
        return self._worker.replay(self._key, self._baseline, self._calls, replays, empty)


def _staged(staging: Staging, inputs: DeviceInputs, tick: int, call: int) -> list[torch.Tensor]:
    """Staged inputs on the judge's device while there is room for many, else in host memory."""
    device = inputs.device
    if torch.device(device).type != "cuda":
        return staging.staged(inputs, tick, call)
    try:
        found = staging.staged(inputs, tick, call, device)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return staging.staged(inputs, tick, call)
    if free_bytes(device) >= _KEPT * inputs.layout.stride:
        return found
    return [moved(t, "cpu") for t in found]
