"""Interleaved timing on a GPU: replays of graphs with a cold cache, decided on the judge's clock.

A batch is some replays of a graph of flush and call, so long that the exchange with the process
costs less than a hundredth of it. Each pair of batches comes with the same batches without calls,
all four in random order; what those take is taken off. Before each pair some slots get new values
on both sides, outside the clock. The candidate's calls see secret inputs, put together anew before
each call (staging.py); of some, anywhere in a batch, the outputs are looked at afterwards. At
random times its code is loaded anew and its graphs are made anew.
While all this happens nothing else uses the device.
"""

from __future__ import annotations

import random
import statistics as plain
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kforge_nb.errors import BadInput
from kforge_nb.judge.baseline import BaselineWorker
from kforge_nb.judge.cuda.staging import Staging
from kforge_nb.judge.process import Child
from kforge_nb.judge.protocol import HELD_CALLS
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.statistics import decide, next_look, paired_ratio
from kforge_nb.judge.timing import Plan, Probe, Session

__all__ = [
    "BATCH_SECONDS",
    "CudaBaselineSide",
    "CudaRunnerSide",
    "CudaSide",
    "calls_in_a_graph",
    "run_cuda_session",
]

BATCH_SECONDS = 10e-3
GRAPH_SECONDS = 5e-3
MOST_CALLS, LEAST_CALLS = 64, 4
MOST_REPLAYS = 4096
LEAST_CALL = 2e-7  # a difference below 0.2 µs is the clock's
_RENEWED_BYTES = 32 << 20
_AGREE = 0.10
_AGREE_SECONDS = 3e-7
_ANEW = 0.15  # chance, after each pair, that code is loaded and graphs are made anew
_LEAST_FLUSH = 1.2  # of the baseline's flush, for the two in a candidate's process


class CudaSide(Protocol):
    """One of the two that are timed."""

    child: Child

    def prepare(self, calls: int) -> None:
        """Make the graphs of ``calls`` calls ready, with new secrets where calls have some."""

    def upload(self, first: int, slots: int) -> None:
        """Copy slots from shared memory to this side's device memory."""

    def batch(self, replays: int, empty: bool) -> tuple[float, float]:
        """Seconds of so many replays, on the judge's clock and by the device's events."""


class Candidate(CudaSide, Protocol):
    """The side that is not trusted."""

    staged: bool
    """Whether its calls see secret inputs, and its outputs are noted."""

    def saw(self, inputs: TimedInputs, call: int) -> list[torch.Tensor]:
        """The inputs of a call of the last replay."""

    def noted(self, inputs: TimedInputs, call: int) -> Probe:
        """The inputs of a call of the last replay, and what was noted of its outputs."""


class CudaRunnerSide:
    """The candidate; ``seconds`` is the limit of a batch."""

    def __init__(self, loaded: Any, seconds: float) -> None:
        self._loaded, self._runner = loaded, loaded.runner
        self.child = self._runner.child
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

    def saw(self, inputs: TimedInputs, call: int) -> list[torch.Tensor]:
        """The inputs of a call of the last replay, computed from the judge's own copy."""
        if self._staging is None:
            return inputs.snapshot(call)
        tick, _ = self._loaded.noted(self._staging, call)
        return self._staging.staged(inputs, tick, call)

    def noted(self, inputs: TimedInputs, call: int) -> Probe:
        """The inputs of a call of the last replay, and what was noted of its outputs."""
        if self._staging is None:
            raise BadInput("nothing is noted of calls without secret inputs")
        tick, values = self._loaded.noted(self._staging, call)
        staged = self._staging.staged(inputs, tick, call)
        return Probe(staged, values, self._staging.places(tick, call))

    def upload(self, first: int, slots: int) -> None:
        """Copy slots to the runner's device memory."""
        self._runner.upload(first, slots)

    def batch(self, replays: int, empty: bool) -> tuple[float, float]:
        """Seconds of so many replays, on both clocks."""
        return self._runner.batch(replays, empty, self._seconds)


class CudaBaselineSide:
    """A baseline; ``how`` says after ``prepare`` whether a graph or a stream is timed."""

    def __init__(self, worker: BaselineWorker, key: str, baseline: str) -> None:
        self.child = worker.child
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

    def batch(self, replays: int, empty: bool) -> tuple[float, float]:
        """Seconds of so many replays, on both clocks."""
        return self._worker.replay(self._key, self._baseline, self._calls, replays, empty)


def calls_in_a_graph(call: float, flush: float) -> int:
    """How many calls of about ``call`` seconds, each after a flush, a graph should hold."""
    return max(LEAST_CALLS, min(MOST_CALLS, round(GRAPH_SECONDS / max(call + flush, 1e-7))))


@dataclass(slots=True)
class _Tally:
    """Batches of one side: seconds a call with its flush, and of a flush alone, on both clocks."""

    replays: int
    full: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    full_device: list[float] = field(default_factory=list)
    empty_device: list[float] = field(default_factory=list)

    def net(self) -> list[float]:
        """Seconds a call, the flush and the exchange taken off."""
        off = plain.median(self.empty)
        return [max(one - off, LEAST_CALL) for one in self.full]

    def unseen(self) -> tuple[float, float]:
        """Seconds a call that the judge's clock sees and the side's events do not, and its spread.

        Both clocks ran over the same batch, so what disturbed the device cancels; what disturbed
        the exchange is in the spread.
        """
        full = [w - d for w, d in zip(self.full, self.full_device, strict=True)]
        empty = [w - d for w, d in zip(self.empty, self.empty_device, strict=True)]
        found = [plain.median(full), plain.median(empty)]
        spread = sum(
            plain.median(abs(one - middle) for one in values)
            for values, middle in zip((full, empty), found, strict=True)
        )
        return found[0] - found[1], spread


def run_cuda_session(
    ours: Candidate,
    against: CudaSide,
    inputs: TimedInputs,
    plan: Plan,
    calls: int,
    fetch: Callable[[int], list[torch.Tensor]],
    stop: Callable[[], bool],
) -> Session:
    """Time both sides until it is decided, narrow enough, out of time, or stopped.

    Args:
        ours: the candidate.
        against: the baseline, warm.
        inputs: slots that both sides copy to their memory.
        plan: limits.
        calls: in one graph, see :func:`calls_in_a_graph`.
        fetch: copies of the outputs of the last replay's call some calls ago (0: the last).
        stop: asked between pairs.

    Raises:
        RunnerFailed: the candidate broke its runner.
    """
    source = random.SystemRandom()
    session = Session(calls=calls)
    start = time.monotonic()
    sides = (ours, against)
    for side in sides:
        side.upload(0, inputs.slots)
        side.prepare(calls)
    tallies = tuple(_Tally(_replays(side)) for side in sides)
    look = plan.pairs
    while True:
        new = _renew(sides, inputs, calls, source, first=not tallies[0].full)
        _pair(sides, tallies, calls, source)
        done = len(tallies[0].full)
        if ours.staged:
            new = min(HELD_CALLS, calls)  # no call saw what another one saw
        if new and source.random() < plan.probes / done:
            age = source.randrange(new)
            probe = Probe(ours.saw(inputs, calls - 1 - age), fetch(age))
            _keep(session.probes, probe, plan.probes, source)
        if ours.staged and source.random() < plan.notes / done:
            _keep(session.noted, ours.noted(inputs, source.randrange(calls)), plan.notes, source)
        if ours.staged and source.random() < _ANEW:
            _start_anew(ours, calls)
        session.stopped = stop()
        late = plan.over(time.monotonic() - start, done)
        if session.stopped or late or done >= look:
            look = next_look(done)
            session.ours, session.against = (tally.net() for tally in tallies)
            session.found = paired_ratio(session.ours, session.against)
            session.decision = decide(session.found, plan.narrow)
            if session.decision is not None or session.stopped or late:
                break
    session.disagreement = _disagreement(tallies[0]) or _unflushed(ours, against, tallies)
    session.foreign = max(_disturbed(tally.empty) for tally in tallies)
    session.blur = plain.median(tallies[0].empty) - min(tallies[0].empty)
    session.seconds = time.monotonic() - start
    return session


def _replays(side: CudaSide) -> int:
    """Replays that make a batch long enough; also the first batches, which do not count."""
    once = min(side.batch(1, False)[0] for _ in range(3))
    side.batch(1, True)
    count = max(1, min(MOST_REPLAYS, round(BATCH_SECONDS / max(once, 1e-6))))
    while count < MOST_REPLAYS:
        wall, device = side.batch(count, False)
        if wall >= 0.8 * BATCH_SECONDS and wall - device < 0.01 * wall:
            break
        if wall >= 4 * BATCH_SECONDS:
            break  # the exchange is slow here; what it costs is taken off all the same
        count = min(MOST_REPLAYS, 2 * count)
    return count


def _renew(
    sides: tuple[CudaSide, CudaSide],
    inputs: TimedInputs,
    calls: int,
    source: random.Random,
    *,
    first: bool,
) -> int:
    """New values for the slots of the last calls, whose outputs may be checked, and for others.

    Large inputs get them before the first pair, and before each later one with a chance that keeps
    copying short. Returns how many of the last calls have new inputs.
    """
    stride, slots = inputs.layout.stride, inputs.slots
    if not first and source.random() > _RENEWED_BYTES / stride:
        return 0
    some = max(1, min(slots, _RENEWED_BYTES // stride))
    held = min(HELD_CALLS, calls, some)
    for start, count in ((calls - held, held), (source.randrange(slots), some)):
        inputs.renew(start % slots, count, source)
        for side in sides:
            side.upload(start % slots, count)
    return held


def _pair(
    sides: tuple[CudaSide, CudaSide],
    tallies: tuple[_Tally, ...],
    calls: int,
    source: random.Random,
) -> None:
    """One batch and one without calls of both sides, in random order.

    The candidate's batch with calls is the later of its two: its outputs are fetched afterwards,
    and the other one overwrites them.
    """
    order = [(side, empty) for side in (0, 1) for empty in (False, True)]
    source.shuffle(order)
    first, last = sorted((order.index((0, True)), order.index((0, False))))
    order[first], order[last] = (0, True), (0, False)
    for index, empty in order:
        tally = tallies[index]
        wall, device = sides[index].batch(tally.replays, empty)
        count = tally.replays * calls
        (tally.empty if empty else tally.full).append(wall / count)
        (tally.empty_device if empty else tally.full_device).append(device / count)


def _start_anew(ours: CudaSide, calls: int) -> None:
    """Code loaded anew, other secrets, and first replays that do not count."""
    ours.prepare(calls)
    for empty in (False, True):
        ours.batch(1, empty)


def _keep(kept: list[Probe], probe: Probe, most: int, source: random.Random) -> None:
    """Keep a probe with a chance that is the same for every pair of the session."""
    if len(kept) < most:
        kept.append(probe)
    else:
        kept[source.randrange(most)] = probe


def _unflushed(ours: Candidate, against: CudaSide, tallies: tuple[_Tally, ...]) -> str | None:
    """Words, if the cache cannot have been emptied before the candidate's calls.

    What its process does between calls has two flushes in it, the baseline's has one of the same.
    """
    if not ours.staged or getattr(against, "how", "") != "graph":
        return None
    own, theirs = (plain.median(tally.empty) for tally in tallies)
    if own >= _LEAST_FLUSH * theirs:
        return None
    return (
        f"emptying the cache twice took {own * 1e6:.3g} µs in its process, once "
        f"{theirs * 1e6:.3g} µs in the baseline's: something kept it from being emptied"
    )


def _disturbed(empty: list[float]) -> float:
    """The share of the device that others used: a flush takes the same time while it is alone."""
    return max(0.0, 1.0 - min(empty) / plain.median(empty))


def _disagreement(tally: _Tally) -> str | None:
    """Words, if the judge's clock and the runner's events tell different times of a call."""
    judged, (unseen, spread) = plain.median(tally.net()), tally.unseen()
    if abs(unseen) <= max(_AGREE * judged, _AGREE_SECONDS) + 2 * spread:
        return None
    own = max(judged - unseen, 0.0)
    return (
        f"the judge's clock says {judged * 1e6:.3g} µs a call, the runner's events say "
        f"{own * 1e6:.3g} µs: more than {_AGREE:.0%} apart"
    )
