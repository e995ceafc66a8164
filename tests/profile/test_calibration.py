"""The roofline's arithmetic, the measured limits, and their cache."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.profile import calibration, remembered
from kforge_nb.profile.believing import believed
from kforge_nb.profile.calibration import calibrate
from kforge_nb.profile.device import facts
from kforge_nb.profile.reached import fastest_us, implausible, monotone, suspect
from kforge_nb.profile.timing import ForeignLoad, interleaved_us, quiet_value
from kforge_nb.settings import Settings, cache_dir


@pytest.fixture
def small(monkeypatch):
    """Sizes that are measured in a moment; counts how often that happens."""
    runs = []
    real = calibration._measure

    def counted(device, identity):
        runs.append(device)
        return real(device, identity)

    monkeypatch.setattr(calibration, "_SIZES", (1 << 12, 1 << 16))
    monkeypatch.setattr(calibration, "_DTYPES", ("float32",))
    monkeypatch.setattr(calibration, "_PRODUCT", 64)
    monkeypatch.setattr(calibration, "_ALL_S", 0.0)
    monkeypatch.setattr(calibration, "_AGAIN", 0)
    monkeypatch.setattr(calibration, "suspect", lambda _curve: False)
    monkeypatch.setattr(calibration, "_measure", counted)
    return runs


def test_the_roofline_is_the_longer_of_memory_and_arithmetic_plus_a_call(limits):
    """100 MB at 10 GB/s are 10 ms; 10 GFLOP at 100 GFLOP/s are 100 ms; a call costs 1 µs."""
    assert limits.roofline_us(100_000_000, 0) == pytest.approx(10_001)
    assert limits.roofline_us(100_000_000, 10**10) == pytest.approx(100_001)
    assert limits.roofline_us(100_000_000, 10**10, "unknown") == pytest.approx(100_001)


def test_bandwidth_between_measured_sizes(limits):
    """Small data is read from caches; between two sizes the value lies between theirs."""
    assert limits.bandwidth_at(10) == 100.0
    assert limits.bandwidth_at(10_000) == pytest.approx(75.0)
    assert limits.bandwidth_at(10**9) == 10.0


def test_measured_once_and_read_back(small, monkeypatch, home):
    """The second call, also in another process, reads the file; fresh measures again."""
    monkeypatch.setattr(ForeignLoad, "__exit__", lambda self, *_: setattr(self, "cores", 0.0))
    first = calibrate()
    assert first.bandwidth_gbs > 0
    assert first.flops_gflops["float32"] > 0
    calibration._MEASURED.clear()
    assert calibrate() == first
    assert small == ["cpu"]
    calibrate(fresh=True)
    assert small == ["cpu", "cpu"]
    assert len(list((home / "calibration").glob("*.json"))) == 1


def test_a_damaged_cache_is_measured_again(small, monkeypatch, home):
    """Rubbish in the file, or the figures of another machine, are not believed."""
    monkeypatch.setattr(ForeignLoad, "__exit__", lambda self, *_: setattr(self, "cores", 0.0))
    calibrate()
    (path,) = (home / "calibration").glob("*.json")
    body = json.loads(path.read_text())
    for damage in ("{", "[]", json.dumps({**body, "identity": "x"}), json.dumps({"a": 1})):
        calibration._MEASURED.clear()
        path.write_text(damage)
        assert calibrate().bandwidth_gbs > 0
    assert len(small) == 5


@pytest.mark.parametrize("cores", [0.0, 2.0])
def test_a_cache_that_cannot_be_written_is_a_warning(small, monkeypatch, home, cores):
    """A read-only or full home costs the measurement again, quiet or busy, and ends no profile."""
    monkeypatch.setattr(ForeignLoad, "__exit__", lambda self, *_: setattr(self, "cores", cores))
    home.mkdir(exist_ok=True)
    (home / "calibration").write_text("in the way of the folder")
    with pytest.warns(UserWarning, match=r"cannot be kept in .*KFORGE_HOME"):
        assert calibrate().bandwidth_gbs > 0


def test_a_busy_machine_is_remembered_for_a_while_only(small, monkeypatch, home):
    """Figures taken beside other work serve other processes too, but not for good."""
    monkeypatch.setattr(ForeignLoad, "__exit__", lambda self, *_: setattr(self, "cores", 1.0))
    first = calibrate()
    assert calibrate() == first
    assert small == ["cpu"]
    monkeypatch.setattr(remembered, "VALID_S", 0.0)  # over, also for this process
    again = calibrate()
    assert small == ["cpu", "cpu"]
    assert again.bandwidth_gbs >= first.bandwidth_gbs
    assert first.busy
    assert again.busy
    (file,) = home.glob("calibration/*.json")
    assert file.name.endswith(".busy.json")


def test_a_machine_that_is_quiet_again_is_measured_again(small, monkeypatch):
    """A busy calibration serves as long as the machine is busy, then a quiet one replaces it."""
    load = {"measuring": 1.0, "looking": 1.0}
    monkeypatch.setattr(
        ForeignLoad, "__exit__", lambda s, *_: setattr(s, "cores", load["measuring"])
    )
    monkeypatch.setattr(calibration, "_foreign_cores", lambda: load["looking"])
    assert calibrate().busy
    load.update(measuring=0.0, looking=0.0)
    assert calibrate().busy  # too soon to look
    monkeypatch.setattr(calibration, "RETRY_S", 0.0)
    load["looking"] = 1.0
    assert calibrate().busy
    assert small == ["cpu"]
    load["looking"] = 0.0
    assert not calibrate().busy
    assert not calibrate().busy
    assert small == ["cpu", "cpu"]


SEEN = {1 << 16: 57.8, 1 << 19: 0.044, 1 << 22: 0.26, 1 << 25: 2.1, 1 << 28: 6.0}
"""GB/s by bytes that one newcomer's busy laptop gave."""


def test_a_cache_is_never_slower_than_memory():
    """The curve falls with size; what contradicts that is known and measured again."""
    assert list(monotone(SEEN).values()) == [57.8, 6.0, 6.0, 6.0, 6.0]
    assert implausible(SEEN) == [1 << 19, 1 << 22, 1 << 25]
    assert suspect(SEEN)
    assert not suspect({1: 50.0, 2: 60.0, 3: 9.0})
    assert implausible({1: 50.0, 2: 60.0, 3: 9.0}) == []


@pytest.mark.parametrize("second", [1.0, 1000.0])
def test_odd_sizes_are_taken_again_and_never_below_larger_ones(monkeypatch, second):
    """Given times: sizes that were disturbed get more samples; if in vain, all is marked busy."""
    asked = []

    def given(calls, _sample, _seconds):
        asked.append(sorted(calls))
        slow = second if len(asked) > 1 else 1000.0
        us = {f"copy {s}": s / 40e3 * (slow if s in (1 << 19, 1 << 22) else 1.0) for s in SEEN}
        return {key: us.get(key, 1e-3) for key in calls}

    monkeypatch.setattr(calibration, "fastest_us", given)
    monkeypatch.setattr(calibration, "_copy", lambda *_: list)
    monkeypatch.setattr(calibration, "_product", lambda *_: list)
    found = calibration._measure("cpu", "id")
    assert asked[1] == ["copy 4194304", "copy 524288"]
    assert len(asked) == (2 if second == 1.0 else 3)
    assert all(
        speed == pytest.approx(40.0, rel=0.02) for speed in found.bandwidth_by_bytes.values()
    )
    assert found.busy is (second != 1.0)


def test_the_fastest_of_short_samples_in_turn_counts():
    """A machine that is disturbed most of the time is still seen at its best, in short samples."""
    now, order = [0.0], []
    pace = {"a": 10.0, "b": 400.0}

    def sample(call, number):
        name = call()
        order.append((name, number))
        disturbed = len(order) % 7 != 0
        us = pace[name] * (100.0 if disturbed else 1.0)
        now[0] += us * number * 1e-6
        return us

    calls = {name: (lambda name=name: name) for name in pace}
    found = fastest_us(calls, sample, 1.0, clock=lambda: now[0])
    assert found == pace
    assert [name for name, _ in order[:4]] == ["a", "b", "a", "b"]
    assert max(number * pace[name] for name, number in order) <= 400.0


@pytest.mark.parametrize(("second", "taken"), [(95.0, 2), (60.0, 3), (170.0, 3)])
def test_two_readings_of_a_gpu_must_agree(limits, monkeypatch, second, taken):
    """Nobody sees who else uses a GPU: a reading that another one contradicts is not kept alone."""
    readings = [100.0, second, 90.0]
    asked = []

    def measure(_device, _identity):
        asked.append(1)
        return replace(limits, bandwidth_gbs=readings[len(asked) - 1])

    monkeypatch.setattr(calibration, "_measure", measure)
    found = calibration._settled("cuda:0", "id")
    assert len(asked) == taken
    assert found.bandwidth_gbs == max(readings[:taken])


def test_remembered_figures_are_the_best_of_all(limits, tmp_path):
    """Each figure is the best that was seen, whichever measurement it came from."""
    path = tmp_path / "x.busy.json"
    other = replace(
        limits, bandwidth_gbs=8.0, bandwidth_by_bytes={1000: 120.0, 5: 1.0},
        flops_gflops={"float32": 90.0, "float16": 7.0}, overhead_us=0.5,
    )  # fmt: skip
    remembered.remember(path, limits, now=1000.0)
    best = remembered.remember(path, other, now=2000.0)
    assert best.bandwidth_gbs == 10.0
    assert best.bandwidth_by_bytes[1000] == 120.0
    assert best.bandwidth_by_bytes[100_000] == 50.0
    assert best.flops_gflops == {"float32": 100.0, "float16": 7.0}
    assert best.overhead_us == 0.5
    assert remembered.recall(path, "id", now=2000.0 + remembered.VALID_S - 1) == best
    assert remembered.recall(path, "id", now=2000.0 + remembered.VALID_S + 1) is None
    assert remembered.recall(path, "id", now=1999.0) is None
    assert remembered.recall(path, "another", now=2000.0) is None
    path.write_text("{")
    assert remembered.recall(path, "id", now=2000.0) is None


def test_facts_are_plain_and_cuda_is_asked_for_by_name():
    """JSON-ready facts of this CPU; a device that is not there is said in one message."""
    known = facts()
    assert known["kind"] == "cpu"
    assert known["threads"] == torch.get_num_threads()
    assert known["ram_gb"] > 0
    json.dumps(known)
    if not torch.cuda.is_available():
        with pytest.raises(MissingTool, match="cuda:0 was asked for"):
            facts("cuda:0")


def test_interleaving_runs_every_call_and_takes_a_low_quartile():
    """A slow outlier does not move a figure; each call is measured."""
    assert quiet_value([5.0, 1.0, 2.0, 100.0, 3.0]) == 2.0
    counts = {0: 0, 1: 0}

    def call(key):
        counts[key] += 1

    found = interleaved_us({k: lambda k=k: call(k) for k in counts}, "cpu", seconds=0.0)
    assert set(found) == {0, 1}
    assert min(counts.values()) >= 4
    assert all(v > 0 for v in found.values())


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    """KFORGE_HOME is honoured and made; a file in its place is one clear message."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "a" / "b"))
    assert cache_dir() == tmp_path / "a" / "b"
    assert cache_dir().is_dir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "file" / "sub"))
    with pytest.raises(BadInput, match="KFORGE_HOME"):
        cache_dir()


def test_settings_are_checked_and_come_back():
    """Unknown options and values out of range are named."""
    settings = Settings(budget=7, rest="eager", time_limit=3.5)
    assert Settings.from_document(settings.to_document()) == settings
    for wrong in ({"granularity": "layer"}, {"budget": 0}, {"roofline_stop": 2.0}, {"budgets": 1}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            Settings.from_document(wrong)


def test_what_is_faster_than_its_roofline_has_none():
    """A call at 40% of the roofline's time shows that it is no limit; a little luck does not."""
    assert believed(40.0, 100.0) is None
    assert believed(97.0, 100.0) == 97.0
    assert believed(500.0, 100.0) == 100.0
    assert believed(500.0, 0.0) is None
    assert believed(None, 100.0) == 100.0
