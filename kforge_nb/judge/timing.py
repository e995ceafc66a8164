"""Interleaved timing of a candidate against one baseline, decided on the judge's own clock.

Pairs of batches run next to each other, in random order, on the same input slots, which got new
values just before. While one side runs, the other waits for its next command; what the candidate's
process computes meanwhile, beyond the short wait of idle OpenMP threads, counts against it. The
cost of an empty exchange on each side is measured and taken off. Outputs of
random timed calls are kept with their inputs, to be checked when the clock no longer runs.
"""

from __future__ import annotations

import math
import os
import random
import statistics as plain
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from kforge_nb.judge.baseline import BaselineWorker
from kforge_nb.judge.moved import SPIN_SECONDS, Busy, Used, by_cpu
from kforge_nb.judge.process import Child, Foreign, cpu_seconds, thread_count
from kforge_nb.judge.protocol import HELD_CALLS
from kforge_nb.judge.runner_handle import Runner
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.statistics import (
    Interval,
    decide,
    may_be_moved,
    next_look,
    paired_ratio,
)

__all__ = ["BaselineSide", "Plan", "Probe", "RunnerSide", "Session", "Side", "run_session"]

BATCH_SECONDS = 6e-3
LONGEST_SECONDS = 80e-3  # of the slower side's batch, where that is more than one call
LEAD_SECONDS = 2e-3  # calls that do not count, before each batch
LONG_SECONDS = 20e-3  # of a call: waking threads is nothing to it, it needs no call before it
SETTLE_SECONDS = 2e-3  # longer than OpenMP threads spin, see timing_environment
PIPE_SHARE = 100  # a batch lasts at least this many empty exchanges
PATIENCE, LEAST_PATIENCE = 3.0, 10.0
_FEWEST_PAIRS = 3
_HALF = 0.5
_PINGS = 9
_OWN_THREADS = 2  # of a runner: the one that speaks with the judge, and the one that computes


class Side(Protocol):
    """One of the two that are timed."""

    child: Child

    def ping(self) -> float:
        """Seconds of an empty exchange."""

    def batch(self, first: int, calls: int) -> float:
        """Seconds of a batch on the judge's clock."""


class Tried(Side, Protocol):
    """The side that is not trusted."""

    kept: list[int]
    """Calls of the last batch whose outputs can be fetched."""
    waiting: int
    """Threads of its that may wait awake for a moment after an answer, at most."""

    def look(self) -> None:
        """Note what its calls have kept; outside of everything that is timed."""


class RunnerSide:
    """The candidate. ``own`` collects the runner's reading over the judge's, batch by batch.

    ``grown``: between two looks the calls, and by how many bytes the runner's heap grew.

    ``threads``: how many it was given; one of them answers, and only the others may wait awake.

    ``kept``: which calls of the last batch have outputs that can be fetched, chosen at random where
    the runner can keep any.
    """

    def __init__(self, runner: Runner, seconds: float, threads: int | None = None) -> None:
        self.child = runner.child
        self.waiting = (threads or os.cpu_count() or 1) - 1
        self.runner = runner
        self.own: list[float] = []
        self.grown: list[tuple[int, int]] = []
        self.kept: list[int] = []
        self._seconds = seconds
        self._chooses = bool(getattr(runner, "keeps", False))
        self._calls = 0
        self._heap: int | None = None

    def ping(self) -> float:
        """Seconds of an empty exchange."""
        return self.runner.batch(0, 0)[0]

    def batch(self, first: int, calls: int) -> float:
        """Seconds of a batch on the judge's clock."""
        count = min(HELD_CALLS, calls)
        if self._chooses:
            self.kept = sorted(random.SystemRandom().sample(range(calls), count))
            wall, own = self.runner.batch(first, calls, self._seconds, self.kept)
        else:
            self.kept = list(range(calls - 1, calls - 1 - count, -1))
            wall, own = self.runner.batch(first, calls, self._seconds)
        if calls:
            self.own.append(own / wall)
            self._calls += calls
        return wall

    def look(self) -> None:
        """Note how much memory the calls since the last look have kept.

        An exchange of its own: what a look costs would else be CPU time of a batch.
        """
        if not isinstance(self.runner, Runner):  # an interpreter's heap says nothing of a call
            return
        before, self._heap = self._heap, self.runner.heap()
        if before is not None:
            self.grown.append((self._calls, self._heap - before))
        self._calls = 0


class BaselineSide:
    """A baseline of one target; its outputs are never asked for."""

    def __init__(self, worker: BaselineWorker, key: str, baseline: str) -> None:
        self.child = worker.child
        self.kept: list[int] = []
        self.waiting = (os.cpu_count() or 1) - 1
        self._worker = worker
        self._key = key
        self._baseline = baseline

    def look(self) -> None:
        """A baseline is trusted to give its memory back."""

    def ping(self) -> float:
        """Seconds of an empty exchange."""
        return self._worker.ping()

    def batch(self, first: int, calls: int) -> float:
        """Seconds of a batch on the judge's clock."""
        return self._worker.batch(self._key, self._baseline, first, calls)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to look.

    ``seconds`` at most, ``narrow`` the interval width that is enough, ``pairs`` at least, and how
    many timed calls to keep for checking: whole outputs (``probes``), and a few elements of calls
    anywhere in a batch (``notes``, where they are taken). ``screened``: keep so many for a quick
    look, of all whose outputs there are after each batch; ``probes`` of them are checked. A side so
    slow that ``pairs`` would take more than ``PATIENCE`` times the ``seconds`` (and
    ``LEAST_PATIENCE`` seconds) gets fewer of them, three at least.
    """

    seconds: float = 2.0
    narrow: float = 0.10
    pairs: int = 10
    probes: int = 4
    notes: int = 8
    screened: int = 0

    def over(self, elapsed: float, pairs: int) -> bool:
        """Whether the time is up, after so many seconds and pairs."""
        if elapsed <= self.seconds:
            return False
        patient = elapsed <= max(PATIENCE * self.seconds, LEAST_PATIENCE)
        return pairs >= (self.pairs if patient else _FEWEST_PAIRS)


@dataclass(frozen=True, slots=True)
class Probe:
    """A timed call's inputs and outputs, copied.

    ``places``: of each output only some elements were noted, those at these places in its memory.
    """

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    places: list[np.ndarray] | None = None


@dataclass(slots=True)
class Session:
    """What a session found. Times are seconds per call; ``decision`` as in statistics.decide.

    ``foreign`` is the share of the machine that others used; ``cores`` how many the candidate used
    in its own batches; ``hidden`` the CPU seconds that it used in the ``watched`` seconds when it
    had answered already, or that belonged to the baseline. ``disagreement`` says,
    on a GPU, how far the runner's own reading is from the judge's clock, where it is too far.
    ``uneven`` is how many times over all calls together used the CPU that one usually uses when it
    is timed, ``ahead`` how many times as long it would take with what usually comes just before.
    ``blur`` is by how many seconds a call may be told too short: on a GPU, since the
    flush that is taken off took longer at times (others used the device); on a CPU, all that is
    taken off. ``cpu`` is what each batch used and took, of both sides, ``by_cpu`` the ratio by it.
    Of the calls that were kept for a quick look (``screened``) so many are to be looked at
    ``closely`` even where nothing is odd. ``spent``: on a GPU, seconds beside the batches.
    """

    ours: list[float] = field(default_factory=list)
    against: list[float] = field(default_factory=list)
    found: Interval | None = None
    decision: str | None = None
    calls: int = 1
    probes: list[Probe] = field(default_factory=list)
    noted: list[Probe] = field(default_factory=list)
    screened: list[Probe] = field(default_factory=list)
    closely: int = 0
    seconds: float = 0.0
    foreign: float = 0.0
    cores: float = 0.0
    cpu: tuple[list[Busy], list[Busy]] = field(default_factory=lambda: ([], []))
    by_cpu: Interval | None = None
    hidden: float = 0.0
    watched: float = 0.0
    stopped: bool = False
    disagreement: str | None = None
    uneven: float = 1.0
    ahead: float = 1.0
    blur: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)


def run_session(
    ours: Tried,
    against: Side,
    inputs: TimedInputs,
    plan: Plan,
    fetch: Callable[[int], list[torch.Tensor]],
    stop: Callable[[], bool],
) -> Session:
    """Time both sides until it is decided, narrow enough, out of time, or stopped.

    Args:
        ours: the candidate.
        against: the baseline, warm.
        inputs: slots that both sides read.
        plan: limits.
        fetch: copies of the outputs of the call of ``ours.kept`` with this number in it.
        stop: asked between pairs.

    Raises:
        RunnerFailed: the candidate broke its runner.
    """
    source = random.SystemRandom()
    session = Session(closely=plan.probes)
    start = time.monotonic()
    foreign = Foreign([ours.child.pid, against.child.pid])
    pace = _warm_up(ours, against, inputs)
    used = Used(ours.waiting)
    ahead = _Renewed(inputs)
    ahead.turn(pace, source)
    look = plan.pairs
    while True:
        _pair(ours, against, inputs, session, pace, source, fetch, plan, used, ahead)
        pace = pace.after(session)
        session.stopped = stop()
        elapsed = time.monotonic() - start
        late = plan.over(elapsed, len(session.ours))
        late = late or (elapsed > plan.seconds and _far_slower(session))
        if session.stopped or late or len(session.ours) >= look:
            look = next_look(len(session.ours))
            if _settled(session, plan, used) or session.stopped or late:
                break
    session.seconds = time.monotonic() - start
    session.foreign = foreign.share()
    session.cores = used.cores
    session.disagreement = used.ahead()
    session.by_cpu = by_cpu(*session.cpu)
    return session


def _settled(session: Session, plan: Plan, used: Used) -> bool:
    """Whether it is known which is faster; by how much at least, where work may have been moved.

    A few pairs of an honest kernel can look so: more of them tell that it is faster by more.
    """
    session.found = paired_ratio(session.ours, session.against)
    session.decision = decide(session.found, plan.narrow)
    session.uneven, session.ahead = used.uneven(), used.shifted()
    low, high = session.found.low, session.found.high
    moved = may_be_moved(low, high, session.uneven, session.ahead)
    return session.decision is not None and not moved


def _far_slower(session: Session) -> bool:
    """Whether it took more than twice the baseline's time in each of some pairs."""
    pairs = list(zip(session.ours, session.against, strict=True))
    return len(pairs) >= _FEWEST_PAIRS and all(b < _HALF * a for a, b in pairs)


def _warm_up(ours: Side, against: Side, inputs: TimedInputs) -> _Pace:
    """Cost of an empty exchange on each side, and a first idea of how long calls take.

    The least of some exchanges counts, and the candidate's for no more than the baseline's: what is
    taken off its timings must not depend on how busy the machine is, or is kept by its threads.
    """
    costs, calls = [], []
    for side in (ours, against):
        time.sleep(SETTLE_SECONDS)
        costs.append(min(side.ping() for _ in range(_PINGS)))
        side.batch(0, 1)
        one = math.inf
        for slot in range(3):
            one = min(one, max(side.batch(slot, 1) - costs[-1], 1e-7))
            if one > LONG_SECONDS:
                break
        count = max(1, min(inputs.slots, int(LEAD_SECONDS / one)))
        if one <= LONG_SECONDS:
            one = max(side.batch(0, count) - costs[-1], 1e-7) / count
        calls.append(one)
    return _Pace((min(costs), costs[1]), (calls[0], calls[1]), inputs.slots)


@dataclass(frozen=True, slots=True)
class _Pace:
    """Seconds of an empty exchange and of one call, ours first; from them the calls in a batch."""

    costs: tuple[float, float]
    call: tuple[float, float]
    slots: int

    @property
    def calls(self) -> int:
        """So many that the faster side's batch is long enough, the slower side's not too long."""
        want = max(BATCH_SECONDS, PIPE_SHARE * max(self.costs)) / min(self.call)
        most = LONGEST_SECONDS / max(self.call)
        return max(1, min(self.slots, round(min(want, most))))

    def lead(self, index: int) -> int:
        """Calls of one side that do not count; none where a call is long."""
        if max(self.call) > LONG_SECONDS:
            return 0
        return max(1, min(self.slots, round(LEAD_SECONDS / self.call[index])))

    def after(self, session: Session) -> _Pace:
        """The pace by what was measured so far."""
        call = (plain.median(session.ours), plain.median(session.against))
        return _Pace(self.costs, call, self.slots)


def _pair(
    ours: Tried, against: Side, inputs: TimedInputs, session: Session, pace: _Pace,
    source: random.Random, fetch: Callable[[int], list[torch.Tensor]], plan: Plan, used: Used,
    ahead: _Renewed,
) -> None:  # fmt: skip
    first, calls = ahead.turn(pace, source)
    seconds = [0.0, 0.0]
    order = [0, 1]
    source.shuffle(order)
    for index in order:
        side = (ours, against)[index]
        time.sleep(SETTLE_SECONDS)
        idle = cpu_seconds(ours.child.pid)
        lead = pace.lead(index)
        if lead:
            side.batch(first + calls, lead)  # on other slots
        before, theirs = cpu_seconds(ours.child.pid), cpu_seconds(against.child.pid)
        wall = side.batch(first, calls)
        after = cpu_seconds(ours.child.pid)
        theirs = cpu_seconds(against.child.pid) - theirs
        session.cpu[index].append((after - before if side is ours else theirs, wall))
        seconds[index] = max(wall - pace.costs[index], 0.02 * wall) / calls
        if side is ours:
            session.blur = max(session.blur, wall / calls - seconds[index])
            used.add(wall, (before - idle, lead), (after - before, calls))
            time.sleep(SETTLE_SECONDS)  # it has answered: what it still does is hidden work
            idlers = min(ours.waiting, thread_count(ours.child.pid) - _OWN_THREADS)
            spin = SPIN_SECONDS * max(0, idlers)
            idle, after, wall = after + spin, cpu_seconds(ours.child.pid), SETTLE_SECONDS
            ours.look()
        session.hidden += max(0.0, after - idle)
        session.watched += wall
    # Not between the two: what is copied then fills the caches of whoever comes second, and that
    # would be the baseline only (1.5% on two threads).
    _maybe_probe(inputs, session, first, ours.kept, source, fetch, plan)
    session.calls = calls
    session.ours.append(seconds[0])
    session.against.append(seconds[1])


class _Renewed:
    """Slots for the pair after this one, renewed before this one.

    What was just written is in the caches; by the time it is read, two batches of others were.
    """

    def __init__(self, inputs: TimedInputs) -> None:
        self._inputs = inputs
        self._next = (0, 0)

    def turn(self, pace: _Pace, source: random.Random) -> tuple[int, int]:
        """First slot and number of calls of this pair; those of the next one are drawn."""
        now, slots = self._next, self._inputs.slots
        calls = max(1, min(slots, round(pace.calls * source.uniform(0.8, 1.2))))
        first = source.randrange(slots)
        self._inputs.renew(first, calls, source)
        self._next = (first, calls)
        return now


def _maybe_probe(
    inputs: TimedInputs, session: Session, first: int, kept: list[int], source: random.Random,
    fetch: Callable[[int], list[torch.Tensor]], plan: Plan,
) -> None:  # fmt: skip
    """Keep this batch's outputs with a chance that is the same for every batch of the session."""
    seen = len(session.ours)
    if plan.screened:
        _screen(inputs, session, first, kept, source, fetch, plan)
        return
    if not kept or source.random() >= plan.probes / (seen + 1):
        return
    age = source.randrange(len(kept))
    probe = Probe(inputs.snapshot(first + kept[age]), fetch(age))
    _store(session.probes, probe, plan.probes, source)


def _screen(
    inputs: TimedInputs, session: Session, first: int, kept: list[int], source: random.Random,
    fetch: Callable[[int], list[torch.Tensor]], plan: Plan,
) -> None:  # fmt: skip
    """Keep all outputs that this batch has left; those to be checked anyway are among them.

    Where there is no room for all, each has the same chance.
    """
    before = len(session.ours) * len(kept)
    for age in range(len(kept)):
        if source.random() < plan.screened / (before + age + 1):
            probe = Probe(inputs.snapshot(first + kept[age]), fetch(age))
            _store(session.screened, probe, plan.screened, source)


def _store(kept: list[Probe], probe: Probe, most: int, source: random.Random) -> None:
    if len(kept) < most:
        kept.append(probe)
    else:
        kept[source.randrange(most)] = probe
