"""The bench of a GPU target from policy to verdict, its runners real, on a pretended device."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate, LaunchPlan
from kforge_nb.candidates.plan import ResolvedPlan, resolve
from kforge_nb.errors import BadInput
from kforge_nb.judge import bench as benches
from kforge_nb.judge import slots
from kforge_nb.judge.bench import Bench
from kforge_nb.judge.cases import CAPTURED, build_cases, make_case, secret_generator
from kforge_nb.judge.cores import CORES, Cores
from kforge_nb.judge.cuda import place as places
from kforge_nb.judge.cuda import timing
from kforge_nb.judge.cuda.binary import cuda_runner_binary
from kforge_nb.judge.cuda.place import CudaPlace
from kforge_nb.judge.cuda.slots import DeviceInputs
from kforge_nb.judge.cuda.spares import Spares
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.place import Compiled
from kforge_nb.judge.shelf import Shelf
from kforge_nb.judge.timing import Plan
from kforge_nb.profile.calibration import Calibration
from tests.judge.kernels import target_of
from tests.judge_cuda.fakes import CODE, build_fake, on_device, one

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runners need Linux")
N = 1000
FLUSH = 1e-9
SLOW = 5e-3  # seconds of a call of the pretended baselines


class _Worker:
    """A baseline worker that pretends to have a slow eager and a slower compile."""

    child = SimpleNamespace(pid=0, alive=lambda: True)

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released: list[str] = []

    def open(self, *_) -> None:
        self.asked.append("open")

    def prepare(self, _key: str, baseline: str) -> float:
        self.asked.append(f"prepare {baseline}")
        return 0.1

    def graph(self, _key: str, baseline: str, _calls: int) -> str:
        return "stream: it waits for the device" if baseline == "compile" else "graph"

    def upload(self, *_) -> None:
        self.asked.append("upload")

    def refresh(self, *_) -> None:
        self.asked.append("refresh")

    def ping(self) -> float:
        return 1e-5

    def replay(self, _key, baseline, calls, replays, empty) -> tuple[float, float]:
        call = 0.0 if empty else SLOW * (2 if baseline == "compile" else 1)
        self.asked.append(f"replay {baseline}")
        return replays * calls * (FLUSH + call), replays * calls * (FLUSH + call)

    def hot(self, *_) -> float:
        return 1.0

    def let_go(self, key: str) -> None:
        self.released.append(key)


class _Place(CudaPlace):
    """All of a CUDA place but the device: tensors stay on the CPU, cubins are pretended too."""

    def __init__(self, folder: Path, driver: Path, cubin: Path) -> None:
        self.device = self.where = "cuda:0"
        self.index, self.arch, self.folder = 0, "sm_90", folder
        self.memory = 1 << 30
        self.binary, self.driver = cuda_runner_binary(), str(driver)
        self.flush = self.cubin = cubin
        self.calibration = Calibration("cuda:0", "", 1e6, {1 << 20: 1e6})
        self._lock = Cores()
        self._calls, self._meant, self._held = {}, {}, {}
        self._spares = Spares(self.working)
        self._meant_lock = threading.Lock()
        self.worker = _Worker()

    @contextmanager
    def working(self) -> Iterator[None]:
        with self._lock.work(), CORES.work():
            yield

    @contextmanager
    def timing(self) -> Iterator[None]:
        with self._lock.timing(), CORES.work():
            yield

    def cases(self, target, known=None) -> Shelf:
        shelf = Shelf("cpu")
        captured = known.named(CAPTURED) if known is not None else ()
        made = build_cases(target, secret_generator(), make=shelf.make, captured=captured)
        return shelf.fill(made)

    def make_case(self, graph, name, inputs):
        return make_case(graph, name, inputs)

    def build(self, _candidate) -> Compiled:
        return Compiled(self.cubin, "log", {"arch": self.arch})

    def inspect(self, *_):
        return []


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    cubin = folder / "kernel.cubin"
    cubin.write_text(CODE)
    return _Place(folder, build_fake(folder), cubin)


@pytest.fixture(autouse=True)
def _exchange(monkeypatch):
    """Calls of no length on a busy machine: its clock and the runner's need not agree here."""
    monkeypatch.setattr(timing, "_AGREE_SECONDS", 1.0)


@pytest.fixture(scope="module")
def bench(place, tmp_path_factory):
    torch.manual_seed(1)
    target = on_device(target_of(lambda x: x * 2.0, torch.randn(N)))
    judge = SimpleNamespace(folder=tmp_path_factory.mktemp("judge"), benches=set())
    opened = Bench(judge, place, target)
    yield opened
    opened.close()


def _candidate(plan: LaunchPlan, source: str = "// device code") -> Candidate:
    return Candidate("cuda", source, plan)


GOOD = _candidate(one("twice"))


def _built(bench: Bench, place: CudaPlace) -> tuple[ResolvedPlan, Compiled]:
    return resolve(GOOD.plan, bench.target.inputs, bench.target.outputs), place.build(GOOD)


def test_a_good_candidate_goes_through_all_stages(bench):
    """Policy, compile, correctness, replays against eager, and what there is to say of it."""
    found = bench.evaluate(GOOD)
    assert found.verdict is Verdict.ACCEPTED, found.reason
    assert {"policy", "compile", "load", "correctness", "timing", "probes"} <= set(found.seconds)
    assert found.repeatable is True
    assert found.resources["timed_eager"] == "graph"
    assert found.resources["loaded"]["twice"]["registers"] == 16
    assert found.against("eager").against_us == pytest.approx(SLOW * 1e6, rel=0.02)


def test_the_parts_of_a_timing_are_told_beside_it(bench):
    """Each second of an evaluation is in one stage, and hardly any in one without a name."""
    found = bench.evaluate(GOOD)
    parts = {"timing upload", "timing prepare", "timing renew", "timing look"}
    assert {"start", "end", "correctness cases", *parts} <= set(found.seconds)
    stages = sum(seconds for name, seconds in found.seconds.items() if name != "total")
    assert stages == pytest.approx(found.seconds["total"])
    assert found.seconds["other"] < 0.2 * found.seconds["total"]


def test_what_opening_took_is_told_once(place, tmp_path):
    """With the first evaluation, by what was done; the next one did not wait for it."""
    judge = SimpleNamespace(folder=tmp_path, benches=set())
    opened = Bench(judge, place, on_device(target_of(lambda x: x * 2.0, torch.randn(N))))
    first, second = opened.evaluate(GOOD), opened.evaluate(GOOD)
    opened.close()
    told = first.resources["opening"]
    assert {"cases", "cases make", "weakness", "slots", "baseline"} <= set(told)
    assert "opening" not in second.resources


def test_a_confirmation_has_what_is_not_drawn_from_the_bench(bench, place, monkeypatch):
    """Captured inputs and what is expected of them are the same; all others are drawn anew."""
    monkeypatch.setattr(benches, "CONFIRM", Plan(seconds=0.2, narrow=0.5, pairs=10))
    monkeypatch.setattr(bench.target.captured, "sets", lambda *_: pytest.fail("read again"))
    fresh, cases = [], place.cases

    def kept(*arguments) -> Shelf:
        fresh.append(cases(*arguments))
        return fresh[-1]

    monkeypatch.setattr(place, "cases", kept)
    found = bench.confirm(GOOD)
    assert found.verdict is Verdict.ACCEPTED, found.reason
    assert {"expect", "expect make", "conditions"} <= set(found.seconds)
    assert found.seconds["expect"] > 0.0  # drawing them, beside what they are made of
    same = [case.name for case in fresh[0] if any(case is one for one in bench._cases)]
    assert same
    assert all(name.startswith(CAPTURED) for name in same)
    assert set(bench.cases) - set(same) <= set(fresh[0].names)


def test_what_was_looked_at_is_let_go(bench, place, monkeypatch):
    """It may fill the device: a session that waits for others keeps none of it."""
    kept, time = [], place.time

    def timed(*arguments):
        session, figures = time(*arguments)
        kept.append((session, len(session.probes), len(session.noted)))
        return session, figures

    monkeypatch.setattr(place, "time", timed)
    assert bench.evaluate(GOOD).verdict is Verdict.ACCEPTED
    ((session, probes, noted),) = kept
    assert probes >= 1
    assert noted >= 1
    assert session.probes == session.noted == []


def test_a_confirmation_has_its_processes_made_at_once(bench, place, monkeypatch):
    """As many as it needs at least are under way before the first is asked for, and no more."""
    monkeypatch.setattr(benches, "CONFIRM", Plan(seconds=0.3, narrow=0.5, pairs=10))
    monkeypatch.setattr(place, "memory", 64 << 30)
    place._spares.drop(id(bench._slots))
    made, make, take = [], place._runner, place._spares.take
    ready: list[int] = []

    def counted(*arguments):
        made.append(None)
        return make(*arguments)

    def taken(key: int):
        ready.append(len(place._spares._made.get(key, [])))
        return take(key)

    monkeypatch.setattr(place, "_runner", counted)
    monkeypatch.setattr(place._spares, "take", taken)
    found = bench.confirm(GOOD)
    assert found.verdict is Verdict.ACCEPTED, found.reason
    assert {"refill", "start"} <= set(found.seconds)
    assert ready[:3] == [3, 2, 1]
    assert len(place._spares.waiting()) == 1
    assert len(made) == len(ready) + 1
    monkeypatch.setattr(place, "memory", 8 << 30)
    place.ahead(bench.target, bench._slots, 3.0, 3)
    assert len(place._spares.waiting()) == 1


BAD = {
    "wrong": (one("scale", "f32:2.002"), Verdict.WRONG, "error budget"),
    "beside": (one("beside", "i64:N"), Verdict.WRONG, "guard"),
    "vandal": (one("vandal"), Verdict.WRONG, "input"),
    "illegal": (one("illegal"), Verdict.CRASHED, "ILLEGAL"),
    "trap": (one("trap"), Verdict.CRASHED, ""),
    "dies": (one("dies"), Verdict.CRASHED, ""),
    "trusting": (one("trusting"), Verdict.WRONG, "NaN"),
    "unknown": (one("nowhere"), Verdict.COMPILE_FAILED, "nowhere"),
    "too large": (one("twice", block="2048"), Verdict.REFUSED, ""),
}  # fmt: skip


IDLE = {
    "idle": "copies what it computed for these addresses before",
    "lazy": "leaves out every third call",
    "stash": "puts something into the memory beside its outputs",
}


@pytest.mark.parametrize("name", IDLE)
def test_a_candidate_that_is_right_when_checked_and_idle_when_timed(name, bench):
    """Calls see new inputs, are noted wherever they stand, and their memory is looked at."""
    found = bench.evaluate(_candidate(one(name)))
    assert found.verdict is Verdict.SUSPICIOUS, found.reason
    assert "timed" in found.reason


@pytest.mark.parametrize("name", BAD)
def test_a_bad_candidate_ends_alone(name, bench):
    """It has its verdict, and a good one after it is judged as ever."""
    plan, verdict, words = BAD[name]
    found = bench.evaluate(_candidate(plan))
    assert found.verdict is verdict, found.reason
    assert words in found.reason
    assert bench.evaluate(GOOD).verdict is Verdict.ACCEPTED


WEAK = {
    "zeros by construction": (torch.zeros_like, "zeros"),
    "a constant": (torch.ones_like, "constant"),
    "a dropout outside training": (lambda x: torch.dropout(x, 0.5, False), "input"),
}


@pytest.mark.parametrize("name", WEAK)
def test_a_task_that_gives_the_answer_away_is_refused(name, place, tmp_path):
    """Where nothing, a constant or the input would pass, no kernel is even started."""
    function, words = WEAK[name]
    judge = SimpleNamespace(folder=tmp_path, benches=set())
    opened = Bench(judge, place, on_device(target_of(function, torch.randn(N))))
    found = opened.evaluate(_candidate(one("dies")))
    opened.close()

    assert found.verdict is Verdict.WEAK_TASK
    assert words in found.reason


def test_faster_than_the_memory_allows_is_suspicious(bench, monkeypatch):
    """Right, by whatever means: what moves data faster than the device can is not believed."""
    monkeypatch.setattr(_Place, "floor_seconds", lambda *_: 1.0)
    found = bench.evaluate(GOOD)

    assert found.verdict is Verdict.SUSPICIOUS, found.reason
    assert "faster than physics allows" in found.reason


def test_a_hanging_candidate_is_stopped(place, bench, monkeypatch):
    """By the judge's clock, in a checked call."""
    for spare in place._spares.waiting():
        spare.__exit__(None, None, None)
    monkeypatch.setattr(bench, "_call_seconds", 0.5)
    assert bench.evaluate(_candidate(one("hang"))).verdict is Verdict.TIMED_OUT


def test_other_languages_and_breaches_never_run(bench, place):
    """A C++ candidate, and device code that prints."""
    assert bench.evaluate(Candidate("cpp", "", one("twice"))).verdict is Verdict.REFUSED
    printing = _candidate(one("twice"), '__global__ void f() { printf("x"); }')
    found = bench.evaluate(printing)
    assert found.verdict is Verdict.REFUSED
    assert "prints" in found.reason


def test_a_winner_has_a_row_for_every_baseline_and_one_for_calls(bench, place, monkeypatch):
    """Eager once although it is asked for; compile says how it was timed; calls by themselves."""
    monkeypatch.setattr(benches, "CONFIRM", Plan(seconds=0.3, narrow=0.5, pairs=10))
    monkeypatch.setattr(places, "sanitizer_path", lambda: None)
    place.worker.asked.clear()
    found = bench.confirm(GOOD, ("eager", "compile"))
    assert [row.against for row in found.timings] == ["eager", "compile", "call"]
    assert found.resources["timed_compile"].startswith("stream: ")
    assert "sanitizer" not in found.resources
    eager = place.worker.asked.count("replay eager")
    assert eager == pytest.approx(place.worker.asked.count("replay compile"), rel=0.6)
    place.worker.asked.clear()
    kept = bench.confirm(GOOD, ("compile", "max_autotune"), standing=found)
    assert [r.against for r in kept.timings] == ["eager", "compile", "call", "max_autotune"]
    assert kept.timings[:3] == found.timings
    assert kept.resources["timed_eager"] == "graph"
    assert "replay eager" not in place.worker.asked


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({"memcheck": "clean", "racecheck": "1 errors: Race"}, Verdict.ACCEPTED),
        ({"memcheck": "3 errors: Invalid __global__ read of size 4"}, Verdict.WRONG),
        ({"memcheck": "1 errors: Program hit an error of the driver"}, Verdict.ACCEPTED),
    ],
)
def test_what_the_sanitizer_finds_is_in_the_evaluation(said, verdict, bench, place, monkeypatch):
    """A stray access is wrong after all; a race is told."""
    monkeypatch.setattr(benches, "CONFIRM", Plan(seconds=0.2, narrow=0.5, pairs=10))
    monkeypatch.setattr(place, "sanitize", lambda *_: said)
    found = bench.confirm(GOOD)
    assert found.verdict is verdict
    assert found.resources["sanitizer"] == said
    assert any(words in found.reason for words in said.values() if "errors" in words)


def test_running_out_of_device_memory_decides_nothing(bench, place, monkeypatch):
    """It is told in words, and is not the candidate's doing."""

    def full(*_args):
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")

    monkeypatch.setattr(place, "time", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1e9, 8e9))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = bench.evaluate(GOOD)
    assert found.verdict is Verdict.UNDECIDED
    assert "ran out of memory (1.0 of 8.0 GB are free)" in found.reason


def test_targets_on_two_devices_are_refused(place, bench, tmp_path):
    """Both are named."""
    target = replace(bench.target, inputs=(replace(bench.target.inputs[0], device="cuda:1"),))
    with pytest.raises(BadInput, match=r"cuda:0 and on cuda:1"):
        Bench(SimpleNamespace(folder=tmp_path, benches=set()), place, target)


def test_inputs_that_the_host_cannot_hold_are_refused(place, bench, monkeypatch):
    """Candidates get their inputs through the host's memory; figures are in the message."""
    monkeypatch.setattr(places, "_free_host_memory", lambda: 4096)
    with pytest.raises(BadInput, match="GB free"):
        place.timed(bench.target.inputs, [torch.randn(N)])
    monkeypatch.undo()
    monkeypatch.setattr(places, "_TIMED_BYTES", 4096)
    monkeypatch.setattr(slots, "TOTAL_BYTES", 4096)
    made = place.timed(bench.target.inputs, [torch.randn(N)])
    assert made.slots == 1
    made.close()


def test_values_are_drawn_on_the_cpu_where_the_device_is_full(place, bench, monkeypatch):
    """The second try has the values in the host's memory."""
    tried = []

    def timed(specs, seen, generator, **limits):
        tried.append(seen)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("full")
        return DeviceInputs(specs, seen, generator, **limits)

    monkeypatch.setattr(places, "DeviceInputs", timed)
    made = place.timed(bench.target.inputs, [torch.randn(N)])
    assert len(tried) == 2
    assert made.device == "cpu"
    made.close()


def test_a_sanitizer_that_does_not_work_is_asked_once(place, bench, monkeypatch):
    """It would cost its time limit for every winner."""
    asked = []

    def sanitize(*_args):
        asked.append(1)
        return {"memcheck": "did not run: no answer"}

    monkeypatch.setattr(benches, "CONFIRM", Plan(seconds=0.2, narrow=0.5, pairs=10))
    monkeypatch.setattr(places, "sanitizer_path", lambda: Path("/nowhere"))
    monkeypatch.setattr(places, "sanitize", sanitize)
    first, second = bench.confirm(GOOD), bench.confirm(GOOD)
    assert first.verdict is second.verdict is Verdict.ACCEPTED
    assert first.resources["sanitizer"] == {"memcheck": "did not run: no answer"}
    assert "sanitizer" not in second.resources
    assert asked == [1]


def test_a_runner_that_cannot_be_made_ahead_is_made_later(place, bench, monkeypatch):
    """No room for a second process costs the time to start one, nothing else."""
    for spare in place._spares.waiting():
        spare.__exit__(None, None, None)
    made, make = [], place._runner

    def every_other(*arguments):
        made.append(None)
        if len(made) % 2 == 0:
            raise OSError("no file descriptors are left")
        return make(*arguments)

    monkeypatch.setattr(place, "_runner", every_other)
    assert bench.evaluate(GOOD).verdict is Verdict.ACCEPTED
    assert place._spares.waiting() == []
    assert len(made) == 2
    assert bench.evaluate(GOOD).verdict is Verdict.ACCEPTED


def test_none_is_made_ahead_while_something_is_timed(place, bench):
    """A context that starts would take a part of the device from the candidate that is timed."""
    assert bench.evaluate(GOOD).verdict is Verdict.ACCEPTED
    for key in list(place._spares._made):
        place._spares.drop(key)
    started = threading.Event()
    with place.timing():
        place._spares.make(1, lambda: started.set() or place._runner(bench.target, bench._slots, 3))
        assert not started.wait(0.2)
    assert len(place._spares.waiting()) == 1
    assert started.is_set()
    place._spares.drop(1)


def test_processes_end_aside_and_never_while_something_is_timed(place, bench, monkeypatch):
    """Nobody waits for what a driver does then, and nobody's timing is disturbed by it."""
    monkeypatch.setattr(place, "memory", 64 << 30)
    monkeypatch.setattr(place, "_spares", Spares(place.working))
    candidate = place.start(bench.target, *_built(bench, place), bench._slots, 3.0)
    with place.timing():
        candidate.__exit__(None, None, None)
        assert candidate.runner.child.alive()
    place._spares.close()
    assert not candidate.runner.child.alive()
    last = place.start(bench.target, *_built(bench, place), bench._slots, 3.0)
    last.__exit__(None, None, None)
    assert not last.runner.child.alive()


def test_on_a_small_device_the_next_process_has_the_memory_of_the_last(place, bench, monkeypatch):
    """There one ends before another is started."""
    monkeypatch.setattr(place, "_spares", Spares(place.working))
    candidate = place.start(bench.target, *_built(bench, place), bench._slots, 3.0)
    with place.timing():
        candidate.__exit__(None, None, None)
        assert not candidate.runner.child.alive()
    place._spares.close()


@pytest.mark.parametrize(("slow", "calls"), [(2e-6, 64), (1e-3, 10), (4e-3, 3), (0.5, 1)])
def test_call_time_is_measured_for_some_hundredths_of_a_second(slow, calls, place):
    """Long calls are few: the pairs are what an interval needs, and each is long enough."""
    made: list[int] = []
    worker = SimpleNamespace(hot=lambda _key, _name, count: made.append(count) or slow)
    loaded = SimpleNamespace(runner=SimpleNamespace(hot=lambda _: slow / 2))
    found = CudaPlace.call_time(SimpleNamespace(worker=worker), loaded, "key", "eager")
    assert found.ratio == pytest.approx(2.0)
    assert found.n == 12
    assert made == [1, 1, *[calls] * 12]


def test_a_closed_place_leaves_no_process(place, bench, monkeypatch):
    """Runners that were made ahead end with it, also those of benches that are still open."""
    monkeypatch.setattr(place.worker, "close", lambda: None, raising=False)
    assert bench.evaluate(GOOD).verdict is Verdict.ACCEPTED
    spares = place._spares.waiting()
    assert spares
    place.close()
    assert not any(spare.runner.child.alive() for spare in spares)
    assert bench.evaluate(GOOD).verdict is Verdict.ACCEPTED


def test_a_closed_bench_leaves_no_process(place, tmp_path, monkeypatch):
    """The runner made ahead ends with its bench, and the worker forgets the target."""
    monkeypatch.setattr(place, "_spares", Spares(place.working))
    target = on_device(target_of(lambda x: x * 2.0, torch.randn(N)))
    bench = Bench(SimpleNamespace(folder=tmp_path, benches=set()), place, target)
    bench.evaluate(GOOD)
    before = place._spares.waiting()
    bench.close()
    ended = [spare for spare in before if spare not in place._spares.waiting()]
    assert len(ended) == 1
    assert not ended[0].runner.child.alive()
    assert len(place.worker.released) >= 1
    assert list(tmp_path.iterdir()) == []
