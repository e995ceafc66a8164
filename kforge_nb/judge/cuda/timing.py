"""Interleaved timing on a GPU: replays of graphs with a cold cache, decided on the judge's clock.

A batch is some replays of a graph of flush and call, so long that the exchange with the process
costs less than a hundredth of it. Each pair of batches comes with the same batches without calls,
all four in random order, each right after an empty exchange; what those without calls take is taken
off. Before each pair slots get new values on both sides, outside the clock, and no more of them
than a part of the pair's own time allows. The candidate's calls see secret inputs, put together
anew before each call (staging.py); of some, anywhere in a batch, the outputs are looked at
afterwards. At random times its code is loaded anew and its graphs are made anew.
While all this happens nothing else uses the device. Where the time of a session goes is in
``Session.spent``.
"""

from __future__ import annotations

import random
import statistics as plain
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from kforge_nb.judge.cuda.sides import Candidate, CudaSide, bring, renewed
from kforge_nb.judge.cuda.slots import DeviceInputs
from kforge_nb.judge.protocol import HELD_CALLS
from kforge_nb.judge.statistics import decide, next_look, paired_ratio
from kforge_nb.judge.timing import Plan, Probe, Session

__all__ = ["BATCH_SECONDS", "calls_in_a_graph", "prompt", "run_cuda_session", "spending"]

BATCH_SECONDS = 10e-3
GRAPH_SECONDS = 5e-3
MOST_CALLS, LEAST_CALLS = 64, 4
MOST_REPLAYS = 4096
LEAST_CALL = 2e-7  # a difference below 0.2 µs is the clock's
_RENEWED_BYTES, _LEAST_RENEWED = 32 << 20, 4 << 20  # new values before each pair, both sides alike
_RENEWED_SHARE = 0.25  # of the time of a pair's batches, for renewing the slots of the next
_AGREE = 0.10
_AGREE_SECONDS = 3e-7
_ANEW = 0.15  # chance, after each pair, that code is loaded and graphs are made anew
_LEAST_FLUSH = 1.2  # of the baseline's flush, for the two in a candidate's process
_SWITCH_SECONDS = 1e-4
_SWITCHING = threading.Lock()
_prompt: list[float] = []


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

    def cautious(self) -> list[float]:
        """``net``, longer by what the side's events see of a call and the judge's clock does not.

        No call can hide from the clock over its whole batch. But where the exchange of the batches
        without calls was held up, too much is taken off: nobody's call is to look short for that.
        """
        unseen, spread = self.unseen()
        short = max(0.0, -unseen - 2 * spread)
        return [one + short for one in self.net()]


@contextmanager
def spending(session: Session, name: str) -> Iterator[None]:
    """Add the seconds of what runs in here to what a session spent beside its batches."""
    start = time.perf_counter()
    try:
        yield
    finally:
        spent = session.spent
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - start


@contextmanager
def prompt() -> Iterator[None]:
    """Have other threads of Python let go within a tenth of a millisecond while this is held.

    The judge's clock stops when its thread goes on after an answer. By default a thread that is
    busy in Python, a search that writes the next candidate, say, keeps it waiting for 5 ms: half a
    batch.
    """
    with _SWITCHING:
        if not _prompt:
            _prompt.append(sys.getswitchinterval())
            sys.setswitchinterval(min(_prompt[0], _SWITCH_SECONDS))
        else:
            _prompt.append(_prompt[0])
    try:
        yield
    finally:
        with _SWITCHING:
            usual = _prompt.pop()
            if not _prompt:
                sys.setswitchinterval(usual)


def run_cuda_session(
    ours: Candidate,
    against: CudaSide,
    inputs: DeviceInputs,
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
        with spending(session, "upload"):
            bring(side, inputs)
        with spending(session, "prepare"):
            side.prepare(calls)
    with spending(session, "prepare"):
        tallies = tuple(_Tally(_replays(side)) for side in sides)
    renewal = _Renewal(ours, against, inputs, calls, source)
    look = plan.pairs
    while True:
        with spending(session, "renew"):
            new = renewal.turn()
        renewal.pace(_pair(sides, tallies, calls, source))
        done = len(tallies[0].full)
        with spending(session, "look"):
            _look(session, ours, inputs, plan, new, done, source, fetch)
        if ours.staged and source.random() < _ANEW:
            with spending(session, "anew"):
                _start_anew(ours, calls)
        session.stopped = stop()
        late = plan.over(time.monotonic() - start, done)
        if session.stopped or late or done >= look:
            look = next_look(done)
            session.ours, session.against = tallies[0].cautious(), tallies[1].net()
            session.found = paired_ratio(session.ours, session.against)
            session.decision = decide(session.found, plan.narrow)
            if session.decision is not None or session.stopped or late:
                break
    session.disagreement = _disagreement(tallies[0]) or _unflushed(ours, against, tallies)
    session.foreign = max(_disturbed(tally.empty) for tally in tallies)
    session.blur = plain.median(tallies[0].empty) - min(tallies[0].empty)
    session.seconds = time.monotonic() - start
    return session


def _look(
    session: Session, ours: Candidate, inputs: DeviceInputs, plan: Plan, new: int, done: int,
    source: random.Random, fetch: Callable[[int], list[torch.Tensor]],
) -> None:  # fmt: skip
    """Keep outputs of the pair's calls with a chance that is the same for every pair so far.

    ``new``: so many of its last calls may be fetched, and have inputs that no earlier one had.
    """
    if new and source.random() < plan.probes / done:
        age = source.randrange(new)
        probe = Probe(ours.saw(inputs, session.calls - 1 - age), fetch(age))
        _keep(session.probes, probe, plan.probes, source)
    if ours.staged and source.random() < plan.notes / done:
        noted = ours.noted(inputs, source.randrange(session.calls))
        _keep(session.noted, noted, plan.notes, source)


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


class _Renewal:
    """New values for the slots, before each pair.

    Where calls see secret inputs, put together from all over a slot, each slot gets new numbers in
    a random stretch: before the first pair 32 MiB of them together, afterwards as many as can be
    drawn and copied in a quarter of the time that a pair's batches take, 4 MiB at least. Else whole
    slots: those of the last calls, whose outputs may be checked, and others; large ones before the
    first pair, and before each later one with a chance that keeps copying short.
    """

    def __init__(
        self, ours: Candidate, against: CudaSide, inputs: DeviceInputs, calls: int,
        source: random.Random,
    ) -> None:  # fmt: skip
        self._staged = ours.staged
        self._sides = (ours, against)
        self._inputs, self._calls, self._source = inputs, calls, source
        self._most = _RENEWED_BYTES
        self._took = (0.0, 0)  # seconds, bytes
        self._first = True

    def turn(self) -> int:
        """Renew; how many of the last calls of the next batch will have new inputs."""
        if not self._staged:
            return self._whole()
        start = time.perf_counter()
        stretches = self._inputs.freshen(self._most, self._source)
        for side in self._sides:
            side.refresh(stretches)
            renewed(side, self._inputs)
        self._took = (time.perf_counter() - start, sum(count for _, count in stretches))
        return min(HELD_CALLS, self._calls)  # no call sees what another one saw

    def pace(self, pair: float) -> None:
        """Say how long the batches of the pair after that took, in seconds."""
        seconds, copied = self._took
        if seconds > 0:
            want = int(copied * _RENEWED_SHARE * pair / seconds)
            self._most = max(_LEAST_RENEWED, min(_RENEWED_BYTES, want))

    def _whole(self) -> int:
        stride, slots = self._inputs.layout.stride, self._inputs.slots
        if not self._first and self._source.random() > _RENEWED_BYTES / stride:
            return 0
        self._first = False
        some = max(1, min(slots, _RENEWED_BYTES // stride))
        held = min(HELD_CALLS, self._calls, some)
        for start, count in ((self._calls - held, held), (self._source.randrange(slots), some)):
            self._inputs.renew(start % slots, count, self._source)
            for side in self._sides:
                side.upload(start % slots, count)
        for side in self._sides:
            renewed(side, self._inputs)
        return held


def _pair(
    sides: tuple[CudaSide, CudaSide],
    tallies: tuple[_Tally, ...],
    calls: int,
    source: random.Random,
) -> float:
    """One batch and one without calls of both sides, in random order; seconds of all four.

    The candidate's batch with calls is the later of its two: its outputs are fetched afterwards,
    and the other one overwrites them. Each batch comes after an empty exchange: a process that has
    slept for long answers later, and whichever of its two batches came first would seem longer.
    """
    order = [(side, empty) for side in (0, 1) for empty in (False, True)]
    source.shuffle(order)
    first, last = sorted((order.index((0, True)), order.index((0, False))))
    order[first], order[last] = (0, True), (0, False)
    seconds = 0.0
    for index, empty in order:
        tally = tallies[index]
        sides[index].ping()
        wall, device = sides[index].batch(tally.replays, empty)
        count = tally.replays * calls
        (tally.empty if empty else tally.full).append(wall / count)
        (tally.empty_device if empty else tally.full_device).append(device / count)
        seconds += wall
    return seconds


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
    """Words, if the judge's clock tells a longer time of a call than the runner's events."""
    judged, (unseen, spread) = plain.median(tally.net()), tally.unseen()
    if unseen <= max(_AGREE * judged, _AGREE_SECONDS) + 2 * spread:
        return None
    own = max(judged - unseen, 0.0)
    return (
        f"the judge's clock says {judged * 1e6:.3g} µs a call, the runner's events say "
        f"{own * 1e6:.3g} µs: more than {_AGREE:.0%} apart"
    )
