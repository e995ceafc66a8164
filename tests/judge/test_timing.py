"""Timing sessions on sides whose speed is known, and what follows from them."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kforge_nb.judge import timing
from kforge_nb.judge.cases import secret_generator
from kforge_nb.judge.evaluation import Comparison, Verdict
from kforge_nb.judge.leaks import leak
from kforge_nb.judge.moved import SPIN_SECONDS, Used, by_cpu
from kforge_nb.judge.physics import floor_seconds, moved_bytes
from kforge_nb.judge.ruling import Ruling, merged, rule
from kforge_nb.judge.runner_handle import Runner, timing_environment
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.statistics import Interval, middle
from kforge_nb.judge.timing import (
    SETTLE_SECONDS,
    Plan,
    RunnerSide,
    Session,
    run_session,
)
from kforge_nb.profile.calibration import Calibration
from kforge_nb.targets.target import Target, TensorSpec

SPEC = TensorSpec((64, 1024), (1024, 1), "float32")


class _Child:
    pid = 0


@pytest.fixture(scope="module", autouse=True)
def _idle_child():
    """A process that uses no CPU stands for those of both sides."""
    with subprocess.Popen(["sleep", "600"]) as process:
        _Child.pid = process.pid
        yield
        process.kill()


class _Side:
    """Answers at once with the time that it pretends to have taken."""

    child = _Child()
    waiting = 0

    def __init__(self, seconds: float, noise: float, seed: int) -> None:
        self.seconds, self.noise, self.random = seconds, noise, random.Random(seed)
        self.asked: list[tuple[int, int]] = []
        self.kept: list[int] = []

    def ping(self) -> float:
        return 1e-5

    def look(self):
        """It has no heap to look at."""

    def batch(self, first: int, calls: int) -> float:
        self.asked.append((first, calls))
        self.kept = self.random.sample(range(calls), min(4, calls))
        return 1e-5 + calls * self.seconds * self.random.lognormvariate(0.0, self.noise)


@pytest.fixture(scope="module")
def inputs():
    made = TimedInputs([SPEC], [torch.randn(64, 1024)], secret_generator())
    yield made
    made.close()


def _session(inputs, ours, against, plan=None, stop=lambda: False) -> Session:
    return run_session(ours, against, inputs, plan or Plan(), lambda age: [torch.tensor(age)], stop)


def test_the_ratio_is_found_and_the_pipe_taken_off(inputs):
    """Twice as fast is twice as fast, whatever the exchange itself costs."""
    found = _session(inputs, _Side(1e-3, 0.02, 1), _Side(2e-3, 0.02, 2))
    assert found.decision == "faster"
    assert found.found.ratio == pytest.approx(2.0, rel=0.05)


def test_a_slow_exchange_of_the_candidate_s_makes_it_no_faster(inputs):
    """More than the trusted side's exchange costs is never taken off: threads may delay a reply."""
    ours, against = _Side(1e-3, 0.02, 21), _Side(1e-3, 0.02, 22)
    ours.ping = lambda: 5e-3
    found = _session(inputs, ours, against)
    assert found.found.ratio == pytest.approx(1.0, rel=0.05)


def test_exchanges_on_a_busy_machine_make_no_honest_kernel_a_cheat(inputs):
    """One quick exchange among slow ones says what it costs; what is taken off is remembered."""
    ours, against = _Side(2e-6, 0.02, 23), _Side(6e-6, 0.02, 24)
    for side in (ours, against):
        side.ping = iter([1e-3, 1e-3, 1e-5] * 3).__next__
    found = _session(inputs, ours, against)
    assert min(found.ours) > 1.8e-6
    assert found.blur < 0.2e-6
    for side in (ours, against):
        side.ping = lambda: 1e-3
    found = _session(inputs, ours, against)
    ruled = rule(_target(), merged("eager", [found]), [found], 1.5e-6)
    assert min(found.ours) < 1e-6
    assert ruled.verdict is Verdict.UNDECIDED
    assert "others used the machine" in ruled.reason


def test_both_sides_get_the_same_slots(inputs):
    """Each pair of batches reads the same inputs; the calls that do not count read others."""
    ours, against = _Side(1e-3, 0.02, 3), _Side(1.5e-3, 0.02, 4)
    _session(inputs, ours, against)
    mine, theirs = (s.asked[5:] for s in (ours, against))  # after the warm-up
    assert mine[1::2] == theirs[1::2]
    for lead, timed in zip(mine[::2], mine[1::2], strict=True):
        assert lead[0] == timed[0] + timed[1]


def test_close_pairs_get_more_samples(inputs):
    """Sampling goes on until it is decided or out of time."""
    clear = _session(inputs, _Side(1e-3, 0.05, 5), _Side(3e-3, 0.05, 6))
    close = _session(inputs, _Side(1e-3, 0.30, 7), _Side(1e-3, 0.30, 8), Plan(seconds=2.0))
    assert len(close.ours) > len(clear.ours)
    assert close.decision in (None, "equal")


def test_long_calls_have_no_call_before_them(inputs):
    """Where a call is long, the threads that have to wake are nothing to it: every call counts."""
    ours, against = _Side(30e-3, 0.02, 11), _Side(60e-3, 0.02, 12)
    found = _session(inputs, ours, against)
    assert found.decision == "faster"
    assert found.found.ratio == pytest.approx(2.0, rel=0.05)
    assert ours.asked[2:] == against.asked[2:]  # after the warm-up
    assert len(ours.asked) == 2 + len(found.ours)


def test_what_is_far_slower_is_not_timed_to_the_end(inputs):
    """When the time is up, a few pairs suffice for what takes more than twice as long in each."""
    plan = Plan(seconds=0.0)
    slow = _session(inputs, _Side(5e-3, 0.02, 13), _Side(1e-3, 0.02, 14), plan)
    assert len(slow.ours) == 3
    ruled = rule(_target(), merged("eager", [slow]), [slow], 0.0)
    assert ruled.verdict is Verdict.SLOWER
    for ours in (1.5e-3, 0.5e-3):
        assert len(_session(inputs, _Side(ours, 0.02, 15), _Side(1e-3, 0.02, 16), plan).ours) == 10


def test_stop_ends_a_session(inputs):
    """Stop is asked after each pair."""
    found = _session(inputs, _Side(1e-3, 0.3, 9), _Side(1e-3, 0.3, 10), stop=lambda: True)
    assert len(found.ours) == 1
    assert found.stopped


def test_nothing_is_copied_between_the_two_sides_of_a_pair(inputs):
    """Copies fill the caches of whoever comes next, and only the candidate has outputs to copy."""
    ours, against = _Side(1e-3, 0.02, 41), _Side(1e-3, 0.02, 42)
    when = []

    def fetch(age):
        when.append(len(ours.asked) + len(against.asked) - 10)  # without the warm-up
        return [torch.tensor(age)]

    run_session(ours, against, inputs, Plan(screened=64), fetch, lambda: False)
    assert len(when) >= 10
    assert {batches % 4 for batches in when} == {0}  # two of each side


def test_outputs_of_timed_calls_are_kept_unpredictably(inputs):
    """Two sessions keep different calls, and never more than asked for."""
    ages = []
    for seed in range(4):
        found = _session(inputs, _Side(1e-4, 0.3, seed), _Side(1e-4, 0.3, seed + 50))
        assert 1 <= len(found.probes) <= 4
        ages.append(tuple(int(p.outputs[0]) for p in found.probes))
    assert len(set(ages)) > 1


def _target(family: str = "rms_norm") -> Target:
    return Target("f", "norm", family, "region", None, (SPEC,), (SPEC,))


def _comparison(ratio: float, low: float, high: float, ours_us: float = 100.0) -> Comparison:
    samples = (ours_us,) * 10
    return Comparison("eager", ratio, low, high, 10, ours_us, ours_us * ratio, samples, samples)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (_comparison(1.5, 1.4, 1.6), Verdict.ACCEPTED),
        (_comparison(0.8, 0.7, 0.9), Verdict.SLOWER),
        (_comparison(1.02, 0.99, 1.05), Verdict.UNDECIDED),
        (_comparison(90.0, 80.0, 99.0, ours_us=0.1), Verdict.SUSPICIOUS),
    ],
)
def test_the_interval_decides(found, verdict):
    """Accepted only above 1, slower only below, and nothing is faster than physics."""
    ruled = rule(_target(), found, [Session()], 1e-6)
    assert ruled.verdict is verdict
    assert ruled.reason


@pytest.mark.parametrize(
    ("blur", "verdict"),
    [(0.0, Verdict.SUSPICIOUS), (0.8e-6, Verdict.SUSPICIOUS), (1.1e-6, Verdict.UNDECIDED)],
)
def test_a_shared_device_makes_no_honest_kernel_a_cheat(blur, verdict):
    """Below physics by less than the timing is uncertain decides nothing; never a speed-up."""
    found = _comparison(90.0, 80.0, 99.0, ours_us=0.1)
    assert rule(_target(), found, [Session(), Session(blur=blur)], 1e-6).verdict is verdict


def test_few_samples_that_lie_apart_are_not_faster_than_any_of_them():
    """On a busy machine three pairs may be all there is: what was not seen is not held against."""
    samples = (60.0, 300.0, 310.0)
    found = Comparison("eager", 0.3, 0.2, 0.4, 3, 300.0, 90.0, samples, samples)
    assert rule(_target(), found, [Session()], 1e-6).verdict is Verdict.SLOWER
    assert rule(_target(), found, [Session()], 100e-6).verdict is Verdict.SLOWER
    assert rule(_target(), found, [Session()], 110e-6).verdict is Verdict.SUSPICIOUS
    one = replace(found, n=1, ours_us=60.0, ours_samples_us=(60.0,))
    assert rule(_target(), one, [Session()], 61e-6).verdict is Verdict.SUSPICIOUS


@pytest.mark.parametrize(
    ("grown", "bytes_"),
    [
        ([(400, 32000)] * 8, 80),
        ([(400, 0), (400, 64000)] * 4, 0),
        ([(400, 700000), (400, 90000), *[(400, 0)] * 8], 0),
        ([(6, 126)] * 20, 0),
        ([(100_000, 700_000)] * 8, 0),
        ([(100_000, 900_000)] * 8, 9),
        ([(1, 1 << 20)] * 3, 0),
        ([], 0),
    ],
    ids=[
        "in every batch",
        "in some",
        "in the first",
        "a little",
        "less than blocks of calls",
        "a block of some calls",
        "too few batches",
        "none",
    ],
)
def test_memory_that_every_batch_keeps_is_a_leak(grown, bytes_):
    """What grows once, or now and then, is the allocator's business."""
    assert leak(grown) == bytes_


def test_the_heap_is_looked_at_from_one_look_to_the_next(monkeypatch):
    """The first look has nothing to compare with; only calls since the last one count."""
    heaps = iter([1000, 1300, 1300])
    monkeypatch.setattr(Runner, "heap", lambda _: next(heaps))
    monkeypatch.setattr(Runner, "batch", lambda *_: (1.0, 1.0))
    runner = Runner.__new__(Runner)
    runner.child = _Child()
    side = RunnerSide(runner, 1.0, 1)
    for batches in ((5,), (3, 4), (2,)):
        for calls in batches:
            side.batch(0, calls)
        side.look()
    assert side.grown == [(7, 300), (2, 0)]
    worker = RunnerSide(SimpleNamespace(child=_Child(), heap=lambda: pytest.fail("looked")), 1.0)
    worker.look()
    assert worker.grown == []


def test_hidden_work_is_suspicious():
    """A candidate that works in the baseline's time is caught, however fast it looks."""
    ruled = rule(_target(), _comparison(2, 1.9, 2.1), [Session(hidden=0.05, watched=0.1)], 0.0)
    assert ruled.verdict is Verdict.SUSPICIOUS
    assert "hidden" in ruled.reason


def test_processes_that_disagree_decide_nothing():
    """Faster in one process and slower in the next is luck of memory layout."""
    sessions = [
        Session(found=Interval(1.1, 1.05, 1.2, 30)),
        Session(found=Interval(0.9, 0.8, 0.95, 30)),
    ]
    ruled = rule(_target(), _comparison(1.05, 1.01, 1.1), sessions, 0.0)
    assert ruled.verdict is Verdict.UNDECIDED


def test_sessions_are_merged_pair_by_pair():
    """One comparison over all samples, in microseconds."""
    sessions = [Session(ours=[1e-3] * 12, against=[2e-3] * 12) for _ in range(2)]
    found = merged("eager", sessions)
    assert (found.n, found.ours_us, found.against_us) == (24, 1000.0, 2000.0)
    assert found.ratio == pytest.approx(2.0)


def test_the_floor_follows_the_memory():
    """Reading and writing 512 KB cannot take less than the fastest copy allows."""
    calibration = Calibration("cpu", "", 100.0, {1 << 16: 400.0, 1 << 25: 200.0, 1 << 28: 100.0})
    assert moved_bytes(_target()) == 2 * 64 * 1024 * 4
    assert moved_bytes(_target("pooling")) == 64 * 1024 * 4
    small = floor_seconds(_target(), 64 << 20, calibration)
    large = floor_seconds(_target(), 1 << 30, calibration)
    assert 0 < small < large < moved_bytes(_target()) / 100e9


def test_a_calibration_under_load_makes_nothing_impossible():
    """Speeds that were measured on a busy machine do not turn honest kernels suspicious."""
    busy = Calibration("cpu", "", 0.5, {1 << 16: 1.0, 1 << 28: 0.5})
    assert floor_seconds(_target(), 64 << 20, busy) < moved_bytes(_target()) / 25e9
    said = replace(busy, busy=True)
    assert 0 < floor_seconds(_target(), 64 << 20, said) < moved_bytes(_target()) / 75e9


LATE = """
import sys, time
while sys.stdin.buffer.read(1):
    sys.stdout.buffer.write(b"x")
    sys.stdout.buffer.flush()
    end = time.process_time() + 1.5e-3
    while time.process_time() < end: pass
"""


class _Late(_Side):
    """A process that answers at once and works afterwards."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(1e-3, 0.02, 3)
        self.child = process
        self.process = process
        self.waiting = 0

    def batch(self, first: int, calls: int) -> float:
        self.process.stdin.write(b"x")
        self.process.stdout.read(1)
        return super().batch(first, calls)


def test_work_after_the_answer_is_seen(inputs):
    """The settling time is nobody's: who computes in it has answered too early."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen([sys.executable, "-c", LATE], **pipes) as process:
        late = _session(inputs, _Late(process), _Side(2e-3, 0.02, 4))
        process.stdin.close()
    assert late.hidden > 1e-3


def test_threads_of_its_own_do_not_earn_it_time_to_wait(inputs):
    """Only threads that it was given may wait awake, however many it has started."""
    start = "import sys, threading, time\n" + (
        "for _ in range(4): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen([sys.executable, "-c", start + LATE], **pipes) as process:
        late = _session(inputs, _Late(process), _Side(2e-3, 0.02, 4))
        process.stdin.close()
    assert late.hidden > 1e-3


CALLS = 60  # of a timed batch, with a third as many before it


def _used(pairs, waiting=0) -> Used:
    """Of pairs of CPU seconds, each of a call before the batch and of one in it."""
    used = Used(waiting)
    for lead, timed in pairs:
        used.add(6e-3, (lead * CALLS / 3, CALLS // 3), (timed * CALLS, CALLS))
    assert used.ahead() is None
    return used


def _uneven(pairs) -> float:
    return _used(pairs).uneven()


def test_work_that_is_moved_between_calls_is_seen():
    """The work of some pairs in other pairs, in a few of the calls before, or a little in each."""
    whole, rest = 100e-6, 12e-6
    before = whole + 3 * whole  # a batch has three times as many calls
    assert _uneven([(whole, 2 * whole), (whole, rest)] * 20) > 1.5
    assert _uneven([(before, whole), (whole, rest), (whole, whole)] * 14) > 1.5
    assert _uneven([(1.6 * whole, 0.8 * whole)] * 40) > 1.5


def test_work_that_differs_as_machines_do_is_not_called_moved():
    """A call that takes more at times, threads that wake, and one pair that met with anything."""
    source = random.Random(5)
    for n in (10, 40):
        noisy = [1e-4 * source.lognormvariate(0.0, 0.3) for _ in range(n)]
        assert _uneven([(1.2 * t, t) for t in noisy]) < 1.3
        assert _uneven([(1e-4, 1e-4)] * (n - 1) + [(1e-4, 3e-3)]) < 1.01
        assert _uneven([(1e-4, 1e-4 * (1 + i % 2)) for i in range(n)]) < 1.3
    assert _uneven([(12e-6, 2e-6)] * 40) == 1.0  # a thread that wakes, before tiny calls
    assert _uneven([(1e-4, 1e-4)] * 9) == 1.0


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_little_work_before_each_batch_counts_for_all_that_it_gains(share, every):
    """Also where it is less than machines differ by, and where it is done in some pairs only."""
    whole, source = 100e-6, random.Random(7)
    pairs, ready = [], False
    for i in range(40):
        lead = whole * (1.0 + 3.0 * share * (i % every == 0))  # three times as many are timed
        noise = source.lognormvariate(0.0, 0.02)
        pairs.append((lead * noise, whole * (1.0 - share * ready) * noise))
        ready = i % every == 0
    gained = whole / math.exp(middle([math.log(timed) for _, timed in pairs]))
    assert _used(pairs).shifted() > gained - 0.03


@pytest.mark.parametrize("waiting", [0, 1])
def test_what_honest_kernels_use_before_a_batch_is_no_work_ahead(waiting):
    """Threads that wake, cold caches, calls that take more at times, pairs of anything."""
    source = random.Random(6)
    for n in (10, 40):
        noise = [source.lognormvariate(0.0, 0.3) for _ in range(n)]
        whole = [100e-6 * (1 + waiting) * t for t in noise]
        wakes = 0.1e-3 * (1 + waiting) / (CALLS / 3)
        assert _used([(t + wakes, t) for t in whole], waiting).shifted() == 1.0
        spoilt = [(20 * t if i % 5 == 0 else t, t) for i, t in enumerate(whole)]
        assert _used(spoilt, waiting).shifted() < 1.1
    assert _used([(2e-4, 1e-4)] * 9).shifted() == 1.0


def test_far_more_work_before_each_batch_is_suspicious_where_there_are_pairs_enough():
    """A few pairs that a busy machine spoilt are no evidence against an honest kernel."""
    for pairs, seen in ((9, False), (10, True)):
        used = Used()
        for _ in range(pairs):
            used.add(6e-3, (20 * 4e-4, 20), (60 * 1e-4, 60))
        assert (used.ahead() is not None) is seen
    used.add(6e-3, (20 * 1e-4, 20), (60 * 1e-4, 60))
    assert "ahead of the clock" in used.ahead()


def test_a_gain_that_may_come_from_the_calls_before_is_no_speed_up():
    """It is undecided as long as the interval does not clear it; what is slower stays slower."""
    sessions = [Session(ahead=1.08), Session(ahead=1.12)]
    for low, verdict in ((1.02, Verdict.UNDECIDED), (1.099, Verdict.UNDECIDED)):
        ruled = rule(_target(), _comparison(1.15, low, 1.2), sessions, 0.0)
        assert ruled.verdict is verdict
        assert "just before" in ruled.reason
    assert rule(_target(), _comparison(1.15, 1.11, 1.2), sessions, 0.0).verdict is Verdict.ACCEPTED
    far = [Session(ahead=1.25)]
    assert rule(_target(), _comparison(3.0, 2.9, 3.1), far, 0.0).verdict is Verdict.UNDECIDED
    assert rule(_target(), _comparison(0.9, 0.8, 0.95), sessions, 0.0).verdict is Verdict.SLOWER


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_on_a_busy_machine_what_waited_less_is_not_faster(processes):
    """There the lower end by CPU time counts, too, and what may be work of other calls of that."""

    def ruled(low: float, foreign: float = 0.5, ahead: float = 1.0) -> Ruling:
        by_cpu = Interval(low + 0.05, low, low + 0.1, 40)
        timed = {"ours": [1e-3] * 12, "against": [2e-3] * 12}
        sessions = [
            Session(by_cpu=by_cpu, foreign=foreign, ahead=ahead, **timed) for _ in range(processes)
        ]
        return rule(_target(), _comparison(2.0, 1.9, 2.1), sessions, 0.0)

    assert ruled(0.9).verdict is Verdict.UNDECIDED
    assert "CPU time" in ruled(0.9).reason
    assert ruled(1.1).verdict is Verdict.ACCEPTED
    assert ruled(0.9, foreign=0.1).verdict is Verdict.ACCEPTED
    assert ruled(1.1, ahead=1.15).verdict is Verdict.UNDECIDED
    assert ruled(1.1, foreign=0.1, ahead=1.15).verdict is Verdict.ACCEPTED
    unknown = [Session(foreign=0.5), Session(foreign=0.5, by_cpu=Interval(0.9, 0.8, 1.0, 40))]
    found = rule(_target(), _comparison(2.0, 1.9, 2.1), unknown, 0.0)
    assert found.verdict is Verdict.ACCEPTED


def test_cpu_time_tells_the_speed_of_sides_that_wait():
    """Whoever waited less is no faster; two cores do the same work in half the time."""
    source = random.Random(8)
    noise = [source.lognormvariate(0.0, 0.02) for _ in range(40)]
    waits = [source.choice([0.0, 3e-3, 9e-3]) for _ in range(40)]
    ours = [(6e-3 * t, 6e-3 * t) for t in noise]
    rows = [(cpu, wall, wait) for (cpu, wall), wait in zip(ours, waits, strict=True)]
    assert by_cpu(ours, [(cpu, wall + wait) for cpu, wall, wait in rows]).low < 1.0
    assert by_cpu(ours, [(2 * cpu, 2 * wall + wait) for cpu, wall, wait in rows]).low > 1.9
    several = [(cpu, wall / 2 + i % 2 * wait) for i, (cpu, wall, wait) in enumerate(rows)]
    assert by_cpu(several, ours).low > 1.9
    assert by_cpu(ours[:9], ours[:9]) is None
    assert by_cpu([(0.0, 1e-3)] * 40, ours) is None


def test_cpu_time_of_both_sides_is_kept_beside_the_clock(inputs, monkeypatch):
    """Each batch with its own process's, none with the calls before it."""
    clocks = {1: 0.0, 2: 0.0}
    sides = {}
    for pid, seconds in ((1, 3e-4), (2, 9e-4)):
        sides[pid] = side = _Side(1e-3, 0.02, pid)
        side.child = type("Child", (), {"pid": pid})

        def batch(first, calls, pid=pid, seconds=seconds, batch=side.batch):
            clocks[pid] += calls * seconds
            return batch(first, calls)

        side.batch = batch
    monkeypatch.setattr(timing, "cpu_seconds", clocks.__getitem__)
    monkeypatch.setattr(timing, "thread_count", lambda _: 1)
    monkeypatch.setattr(timing.Foreign, "share", lambda _: 0.0)
    found = _session(inputs, sides[1], sides[2])
    assert found.by_cpu.ratio == pytest.approx(3.0)
    assert [len(rows) for rows in found.cpu] == [len(found.ours)] * 2
    calls = [count for _, count in sides[1].asked[6::2]]
    assert [cpu for cpu, _ in found.cpu[0]] == pytest.approx([3e-4 * count for count in calls])


def test_more_pairs_tell_moved_work_from_a_kernel_that_is_faster_by_more(inputs, monkeypatch):
    """It is timed on until the whole interval lies above what could have been moved."""
    monkeypatch.setattr(Used, "uneven", lambda used: 1.45)
    for seed in range(3):
        ours, against = _Side(1e-3, 0.3, seed), _Side(1.7e-3, 0.3, seed + 50)
        found = _session(inputs, ours, against, Plan(seconds=60.0))
        assert found.found.low > 1.45
        assert found.seconds < 60.0


@pytest.mark.parametrize(
    ("uneven", "foreign", "verdict"),
    [
        (1.15, 0.0, Verdict.ACCEPTED),
        (1.35, 0.0, Verdict.ACCEPTED),
        (1.45, 0.0, Verdict.UNDECIDED),
        (1.6, 0.0, Verdict.UNDECIDED),
        (3.5, 0.0, Verdict.SUSPICIOUS),
        (3.5, 0.5, Verdict.UNDECIDED),
    ],
)
def test_moved_work_is_never_a_speed_up(uneven, foreign, verdict):
    """And on a machine that others use no honest kernel is called a cheat for it."""
    sessions = [Session(uneven=uneven - 0.1), Session(uneven=uneven + 0.1, foreign=foreign)]
    assert rule(_target(), _comparison(1.5, 1.4, 1.6), sessions, 0.0).verdict is verdict
    slow = rule(_target(), _comparison(0.8, 0.7, 0.9), sessions, 0.0)
    assert slow.verdict is Verdict.SLOWER


def test_a_handful_of_slow_pairs_is_ruled_by_what_was_seen():
    """Never accepted; slower only if every pair was far slower; no figure that is infinite."""
    for factor, verdict in (
        (0.1, Verdict.SLOWER),
        (0.8, Verdict.UNDECIDED),
        (9, Verdict.UNDECIDED),
    ):
        session = Session(ours=[1.0] * 3, against=[factor] * 3)
        found = merged("eager", [session])
        ruled = rule(_target(), found, [session], 0.0)
        assert ruled.verdict is verdict, ruled.reason
        assert 0 < found.low <= found.high < 100
        assert "seen" in ruled.reason


def test_idle_threads_fall_asleep_within_what_they_are_allowed():
    """Also where a busy hypervisor makes each turn of a waiting thread fifteen times as long."""
    turn = 15 * 13e-9  # seconds: a turn was seen to take 13 ns, and up to fifteen times that
    assert int(timing_environment(2)["GOMP_SPINCOUNT"]) * turn < SPIN_SECONDS / 2
    assert SPIN_SECONDS < SETTLE_SECONDS
