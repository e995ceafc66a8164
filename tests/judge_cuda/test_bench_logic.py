"""The GPU bench's logic without a GPU: sessions on sides whose speed is known, shelves, locks."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import fx

from kforge_nb.judge import shelf as shelves
from kforge_nb.judge import slots as slots_module
from kforge_nb.judge.bench import CONFIRM, EVALUATE
from kforge_nb.judge.cases import Case, make_case, moved, secret_generator
from kforge_nb.judge.cuda import timing as session_module
from kforge_nb.judge.cuda.place import device_lock
from kforge_nb.judge.cuda.slots import DeviceInputs
from kforge_nb.judge.cuda.timing import MOST_CALLS, calls_in_a_graph, run_cuda_session
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.physics import device_floor_seconds
from kforge_nb.judge.ruling import comparison, merged, rule, settled
from kforge_nb.judge.shelf import Shelf
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.statistics import MIN_PAIRS
from kforge_nb.judge.timing import Plan, Probe, Session
from kforge_nb.profile.calibration import Calibration
from kforge_nb.targets.target import Target, TensorSpec

SPEC = TensorSpec((64, 1024), (1024, 1), "float32", "cuda:0")
FLUSH, EXCHANGE, CALLS = 40e-6, 50e-6, 16


class _Child:
    pid = os.getpid()


class _Side:
    """Pretends to have a device: answers with the times of its calls, a flush and an exchange."""

    child = _Child()
    staged = False

    def __init__(self, call: float, noise: float, seed: int, events: float = 1.0) -> None:
        self.call, self.noise, self.random = call, noise, random.Random(seed)
        self.events = events
        self.log: list[tuple] = []
        self.calls = 0
        self.held: dict[int, int] = {}

    def prepare(self, calls: int) -> None:
        self.calls = calls
        self.log.append(("prepare", calls))

    def refresh(self, stretches) -> None:
        self.log.append(("refresh", *stretches))

    def ping(self) -> float:
        self.log.append(("ping",))
        return EXCHANGE

    def saw(self, inputs: DeviceInputs, call: int) -> list[torch.Tensor]:
        return inputs.snapshot(call)

    def upload(self, first: int, slots: int) -> None:
        self.log.append(("upload", first, slots))

    def batch(self, replays: int, empty: bool) -> tuple[float, float]:
        self.log.append(("batch", replays, empty))
        call = 0.0 if empty else self.call * self.random.lognormvariate(0.0, self.noise)
        count = replays * self.calls
        return EXCHANGE + count * (FLUSH + call), count * (FLUSH + call * self.events)


@pytest.fixture(scope="module")
def inputs():
    made = DeviceInputs([SPEC], [torch.randn(64, 1024)], secret_generator(), most=32)
    yield made
    made.close()


def _session(inputs, ours, against, plan=None, fetch=None, stop=lambda: False) -> Session:
    return run_cuda_session(
        ours, against, inputs, plan or Plan(), CALLS,
        fetch or (lambda age: [torch.tensor(age)]), stop,
    )  # fmt: skip


def test_the_flush_is_taken_off_both_sides(inputs):
    """A call a tenth as long as the flush before it still has its own ratio."""
    found = _session(inputs, _Side(4e-6, 0.02, 1), _Side(12e-6, 0.02, 2))
    assert found.decision == "faster"
    assert found.found.ratio == pytest.approx(3.0, rel=0.08)
    assert found.ours[0] == pytest.approx(4e-6, rel=0.2)
    assert found.disagreement is None


class _SharedSide(_Side):
    """A side whose flushes others on the device hold up, most of the time."""

    def batch(self, replays: int, empty: bool) -> tuple[float, float]:
        wall, device = super().batch(replays, empty)
        held = replays * self.calls * self.random.choice((0.0, 20e-6, 40e-6)) if empty else 0.0
        return wall + held, device + held


def test_it_is_told_by_how_much_a_shared_device_blurs_a_call(inputs):
    """What is taken off was tens of microseconds off at times; alone it never is."""
    plan = Plan(seconds=0.5)
    shared = _session(inputs, _SharedSide(4e-6, 0.02, 1), _Side(12e-6, 0.02, 2), plan)
    assert 15e-6 < shared.blur < 45e-6
    assert _session(inputs, _Side(4e-6, 0.02, 1), _Side(12e-6, 0.02, 2), plan).blur < 1e-7


def test_batches_are_long_against_the_exchange(inputs):
    """What counts lasts a hundred exchanges, or at least ten milliseconds."""
    side = _Side(5e-6, 0.0, 3)
    _session(inputs, side, _Side(5e-6, 0.0, 4), Plan(seconds=0.2))
    timed = [entry for entry in side.log if entry[0] == "batch"][-2:]
    for _, replays, _ in timed:
        assert replays * CALLS * FLUSH > 80 * EXCHANGE


def test_the_candidates_calls_come_after_its_empty_batch(inputs):
    """The batch without calls wipes outputs, so those of the calls must still be there to fetch."""
    ours = _Side(1e-4, 0.3, 5)
    kept = []

    def fetch(age: int) -> list[torch.Tensor]:
        kept.append(next(entry for entry in reversed(ours.log) if entry[0] == "batch"))
        return [torch.tensor(age)]

    found = _session(inputs, ours, _Side(1e-4, 0.3, 6), fetch=fetch)
    assert 1 <= len(found.probes) <= 4
    assert all(not empty for _, _, empty in kept)


def test_both_sides_get_the_same_new_values(inputs):
    """Before each pair the same slots go to both devices, those of the last calls among them."""
    ours, against = _Side(1e-4, 0.02, 7), _Side(1e-4, 0.02, 8)
    _session(inputs, ours, against)
    mine, theirs = (
        [entry for entry in side.log if entry[0] == "upload"] for side in (ours, against)
    )
    assert mine == theirs
    assert len(mine) > 20
    last = (CALLS - 1) % inputs.slots
    for _, first, slots in mine[1::2]:
        assert last in {(first + i) % inputs.slots for i in range(slots)}


class _Staged(_Side):
    """A side whose calls see secret inputs, as a runner's with the judge's kernels do."""

    staged = True

    def noted(self, _inputs: DeviceInputs, call: int) -> Probe:
        return Probe([], [torch.tensor(call)], [])


def _copied(side: _Side) -> list[int]:
    """Bytes copied to a side before each pair."""
    refreshed = [entry[1:] for entry in side.log if entry[0] == "refresh"]
    return [sum(count for _, count in stretches) for stretches in refreshed]


def test_bytes_and_exchanges_of_a_session_are_bounded(inputs, monkeypatch):
    """Both sides get the same few bytes before each pair, and each batch has one exchange more."""
    monkeypatch.setattr(session_module, "_RENEWED_BYTES", 1 << 20)
    monkeypatch.setattr(session_module, "_LEAST_RENEWED", 1 << 18)
    monkeypatch.setattr(session_module, "_ANEW", 0.0)
    ours, against = _Staged(4e-6, 0.02, 31), _Side(20e-6, 0.02, 32)
    found = _session(inputs, ours, against)
    pairs = len(found.ours)
    assert pairs == MIN_PAIRS
    assert _copied(ours) == _copied(against)
    assert len(_copied(ours)) == pairs
    assert all((1 << 18) <= count < 1.3 * (1 << 20) for count in _copied(ours))  # gaps too
    for side in (ours, against):
        kinds = [entry[0] for entry in side.log]
        assert kinds.count("upload") == 1
        assert kinds.count("prepare") == 1
        assert kinds.count("ping") == 2 * pairs
        assert all(kinds[i + 1] == "batch" for i, kind in enumerate(kinds) if kind == "ping")
        assert kinds.count("batch") <= 2 * pairs + 4 + 12


def test_what_a_side_holds_already_is_not_copied_again(inputs):
    """The next session of the same processes starts without an upload."""
    ours, against = _Staged(4e-6, 0.02, 33), _Side(20e-6, 0.02, 34)
    _session(inputs, ours, against)
    for side in (ours, against):
        side.log.clear()
    _session(inputs, ours, against)
    assert not any(entry[0] == "upload" for side in (ours, against) for entry in side.log)


def test_renewing_takes_a_part_of_the_pairs_own_time(inputs):
    """Where copies are slow fewer bytes are new, never fewer than the least; else all there may."""
    sides = _Staged(4e-6, 0.02, 35), _Side(20e-6, 0.02, 36)
    renewal = session_module._Renewal(*sides, inputs, CALLS, random.Random(1))
    for took, expected in ((1.0, 4 << 20), (1e-4, 32 << 20), (0.02, 16 << 20)):
        renewal._took = (took, 32 << 20)
        renewal.pace(0.04)
        assert renewal._most == expected


@pytest.mark.parametrize("plan", [EVALUATE, CONFIRM], ids=["evaluation", "confirmation"])
def test_a_clear_winner_ends_at_the_first_look(inputs, plan):
    """Five times as fast is known after ten pairs, also where its figure is far from exact."""
    patient = replace(plan, seconds=60.0)
    found = _session(inputs, _Side(4e-6, 0.15, 37), _Side(20e-6, 0.15, 38), patient)
    assert found.decision == "faster"
    assert len(found.ours) == MIN_PAIRS
    assert found.found.width > plan.narrow


def test_three_processes_settle_a_clear_winner(inputs):
    """The least that an interval over processes needs is enough, and the interval is theirs."""
    patient = replace(CONFIRM, seconds=60.0)
    pairs = [(_Side(4e-6, 0.15, seed), _Side(20e-6, 0.15, seed + 50)) for seed in (41, 42, 43)]
    sessions = [_session(inputs, *sides, patient) for sides in pairs]
    assert settled(sessions)
    assert merged("eager", sessions).n == 3 * MIN_PAIRS


def test_it_is_told_where_the_time_of_a_session_goes(inputs):
    """Everything but the pairs themselves has a name, and all of it fits into the session."""
    found = _session(inputs, _Staged(4e-6, 0.02, 44), _Side(20e-6, 0.02, 45))
    assert {"upload", "prepare", "renew", "look"} <= set(found.spent)
    assert set(found.spent) <= {"upload", "prepare", "renew", "look", "anew"}
    assert 0.0 < sum(found.spent.values()) <= found.seconds


def test_probes_are_of_slots_with_new_values(inputs):
    """The inputs kept with an output are those of the call that made it, as they are now."""
    seen = []

    def fetch(age: int) -> list[torch.Tensor]:
        seen.append(inputs.snapshot(CALLS - 1 - age)[0].clone())
        return [torch.tensor(age)]

    found = _session(inputs, _Side(1e-4, 0.3, 9), _Side(1e-4, 0.3, 10), fetch=fetch)
    assert all(any(torch.equal(p.inputs[0], s) for s in seen) for p in found.probes)


def test_a_runner_whose_events_disagree_is_suspicious(inputs):
    """A tenth is let pass, a fifth is not."""
    honest = _session(inputs, _Side(1e-4, 0.01, 11, events=0.95), _Side(3e-4, 0.01, 12))
    assert honest.disagreement is None
    odd = _session(inputs, _Side(1e-4, 0.01, 13, events=0.8), _Side(3e-4, 0.01, 14))
    assert odd.disagreement is not None
    target = Target("f", "norm", "rms_norm", "region", None, (SPEC,), (SPEC,))
    ruled = rule(target, comparison("eager", odd), [odd], 0.0)
    assert ruled.verdict is Verdict.SUSPICIOUS
    assert "events" in ruled.reason


def test_a_held_up_exchange_makes_no_call_short(inputs):
    """Where events see more of a call than the clock, their time counts, and nobody is accused."""
    found = _session(inputs, _Side(1e-4, 0.01, 15, events=1.25), _Side(3e-4, 0.01, 16))
    assert found.disagreement is None
    assert median(found.ours) == pytest.approx(1.25e-4, rel=0.05)
    assert found.found.ratio == pytest.approx(3 / 1.25, rel=0.05)


def test_other_work_on_the_device_is_noticed(inputs):
    """Flushes that take longer than they do alone tell of somebody else."""

    class Disturbed(_Side):
        def batch(self, replays: int, empty: bool) -> tuple[float, float]:
            wall, device = super().batch(replays, empty)
            factor = self.random.choice((1.0, 1.5, 1.6))
            return wall * factor, device * factor

    quiet = _session(inputs, _Side(1e-4, 0.02, 21), _Side(3e-4, 0.02, 22))
    busy = _session(inputs, Disturbed(1e-4, 0.02, 23), Disturbed(3e-4, 0.02, 24))
    assert quiet.foreign < 0.05
    assert busy.foreign > 0.2


def test_stop_ends_a_session(inputs):
    """Stop is asked after each pair."""
    found = _session(inputs, _Side(1e-4, 0.3, 15), _Side(1e-4, 0.3, 16), stop=lambda: True)
    assert len(found.ours) == 1
    assert found.stopped


def test_graphs_hold_few_long_calls_and_many_short_ones():
    """A replay lasts some milliseconds, within bounds."""
    assert calls_in_a_graph(1e-6, 4e-5) == MOST_CALLS
    assert calls_in_a_graph(1e-3, 4e-5) == 5
    assert calls_in_a_graph(1.0, 4e-5) == 4


def test_the_device_floor_leaves_room_for_reading_alone():
    """Reading at 1.25 times the copy's speed is fine, at 1.5 times it is not possible."""
    calibration = Calibration("cuda:0", "", 4000.0, {1 << 20: 3000.0, 1 << 31: 4000.0})
    big = TensorSpec((4096, 65536), (65536, 1), "float32", "cuda:0")
    row = TensorSpec((4096,), (1,), "float32", "cuda:0")
    target = Target("f", "sum", "reduction", "region", None, (big,), (row,))
    floor = device_floor_seconds(target, calibration)
    read = 4096 * 65536 * 4 / 4000e9
    assert read / 1.5 < floor < read / 1.25


@pytest.mark.parametrize(
    ("method", "arguments"), [("narrow", (0, 0, 1)), ("tril", ()), ("masked_fill", (True, 0.0))]
)
def test_inputs_of_which_parts_are_taken_do_not_count(method, arguments):
    """A graph that slices its input, or masks some of it out, need not read all of it."""
    graph = fx.Graph()
    x = graph.placeholder("in0")
    graph.output((graph.call_method(method, (x, *arguments)),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    big = TensorSpec((4096, 65536), (65536, 1), "float32", "cuda:0")
    target = Target("f", method, "pointwise", "region", module, (big,), (big,))
    calibration = Calibration("cuda:0", "", 4000.0, {1 << 31: 4000.0})
    assert device_floor_seconds(target, calibration) < 4096 * 65536 * 4 / 4000e9


def _case(name: str) -> Case:
    graph = fx.Graph()
    x = graph.placeholder("in0")
    graph.output((graph.call_method("sin", (x,)),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    return make_case(module, name, [torch.randn(8, 16)])


def test_a_shelf_gives_cases_on_its_device_in_order():
    """Names without moving anything, items where they are wanted, slices of the same kind."""
    shelf = Shelf("meta").fill([_case("a"), _case("b"), _case("c")])
    assert shelf.names == ("a", "b", "c")
    assert [case.name for case in shelf[:2]] == ["a", "b"]
    assert shelf[1].inputs[0].device.type == "meta"
    assert shelf[1].expected[0].reference.device.type == "meta"


def _shelf(monkeypatch, bus: float) -> tuple[Shelf, list[str], dict[str, Case]]:
    """A shelf with room for one case, what it has made, and the cases by name."""
    made = {"a": _case("a"), "b": _case("b")}
    asked: list[str] = []

    def make(_graph, name: str, _inputs) -> Case:
        asked.append(name)
        return made[name]

    monkeypatch.setattr(shelves, "make_case", make)
    monkeypatch.setattr(shelves, "_BUS", bus)
    inputs = 8 * 16 * 4 * shelves._SETS
    return Shelf("cpu", made["a"].bytes + inputs), asked, made


def test_cases_beyond_the_room_are_made_again_where_that_is_faster(monkeypatch):
    """Of the second only its inputs stay, on the device; who wants it has it made, each time."""
    shelf, asked, made = _shelf(monkeypatch, bus=0.0)
    kept = [shelf.keep(shelf.make(None, name, case.inputs)) for name, case in made.items()]
    assert kept[0] is made["a"]
    assert kept[1].inputs[0] is made["b"].inputs[0]
    shelf.fill(kept)
    assert [case.name for case in shelf] == ["a", "b"]
    assert shelf[1] is made["b"]
    assert asked == ["a", "b", "b", "b"]
    assert shelf.names == ("a", "b")
    assert any("b is worked out anew" in note for note in shelf.notes)


def test_cases_that_took_long_wait_in_the_hosts_memory(monkeypatch):
    """What is brought faster than it is made is kept whole, and a note says so."""
    shelf, asked, made = _shelf(monkeypatch, bus=1e30)
    monkeypatch.setattr(Case, "to", lambda _case, device: f"moved to {device}")
    assert shelf.keep(shelf.make(None, "a", [])) is made["a"]
    assert shelf.keep(shelf.make(None, "b", [])) == "moved to cpu"
    assert asked == ["a", "b"]
    assert any("b waits" in note for note in shelf.notes)


def test_float64_goes_to_the_cpu_when_the_device_is_full(monkeypatch):
    """Running out of memory is not an error here."""
    asked = []

    def full(_graph, _name, _inputs, exact_on=None):
        asked.append(exact_on)
        if exact_on is None:
            raise torch.OutOfMemoryError("full")
        return "case"

    monkeypatch.setattr("kforge_nb.judge.shelf.make_case", full)
    shelf = Shelf("cpu")
    assert shelf.make(None, "a", []) == "case"
    assert asked == [None, "cpu"]
    assert shelf.notes


def test_moving_keeps_strides():
    """Expanded and transposed tensors arrive as they were."""
    for tensor in (torch.randn(4, 6).t(), torch.randn(1, 6).expand(4, 6), torch.randn(0, 3)):
        there = moved(tensor, "meta")
        assert there.stride() == tensor.stride()
        assert there.shape == tensor.shape


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_inputs_that_cannot_be_drawn_leave_no_memory(monkeypatch):
    """A device that is full is tried again with values on the CPU; the first try holds nothing."""

    def full(*_):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(slots_module, "redraw_flat", full)
    before = _descriptors()
    with pytest.raises(torch.OutOfMemoryError):
        TimedInputs([SPEC], [torch.randn(64, 1024)], secret_generator(), most=4)
    assert _descriptors() == before


def test_each_device_has_one_lock():
    """Timing on one device keeps its own workers out, not those of another."""
    lock, other = device_lock("cuda:7"), device_lock("cuda:8")
    assert device_lock("cuda:7") is lock
    entered = threading.Event()

    def work() -> None:
        with lock.work():
            entered.set()

    with lock.timing():
        thread = threading.Thread(target=work)
        thread.start()
        with other.work():
            assert not entered.wait(0.05)
    thread.join(5)
    assert entered.is_set()
