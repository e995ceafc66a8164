"""The benchmarks' clock and language: ratios, intervals, interleaving, foreign load, rows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import cpu_op_tuning, cpu_ops
from benchmarks.cpu_op_cases import CASES, make_target
from benchmarks.cpu_ops import _rows
from benchmarks.report import compare_row, make_report, measure_row, write_report
from benchmarks.timing import Comparison, Watch, allocator_environment, compare, interleave


def test_compare_takes_the_median_of_paired_rounds() -> None:
    """A round in which everything was slow for both sides does not move the ratio."""
    ours = [1.0, 1.0, 50.0, 1.0, 1.0]
    found = compare(ours, [2.0 * o for o in ours])
    assert (found.ratio, found.low, found.high, found.n) == (2.0, 2.0, 2.0, 5)
    assert found.ours_us == 1e6


def test_interval_widens_with_noise() -> None:
    """The interval holds the ratio and says how sure it is."""
    found = compare([1.0] * 20, [1.0 + 0.1 * (i % 7) for i in range(20)])
    assert found.low < found.ratio < found.high


def test_interleave_gives_every_contender_each_round() -> None:
    """All contenders have one figure a round, in an order that changes."""
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    samples = interleave(calls, seconds=0.0, batch_seconds=1e-9, least=30)
    assert {len(s) for s in samples.values()} == {30}
    rounds = ["".join(seen[i : i + 3]) for i in range(len(seen) - 90, len(seen), 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) > 1


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc/stat")
def test_watch_sees_what_other_processes_take() -> None:
    """A busy child counts as foreign load."""
    loop = "import time\nend = time.time() + 0.7\nwhile time.time() < end: pass"
    with Watch() as watch, subprocess.Popen([sys.executable, "-c", loop]) as child:
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            watch._read()
        busy = child.poll() is None
    assert busy
    assert watch.foreign > 0.2


def _found(ratio: float, foreign: float) -> dict[str, object]:
    samples = {"ours": [1.0] * 9, "eager": [ratio] * 9}
    samples |= {"ours beside copy": [2.0] * 9, "copy": [1.8] * 9}
    return {"samples": samples, "foreign": foreign, "switched": 0, "recipe": "r", "params": {}}


def test_a_miss_counts_only_on_a_quiet_machine() -> None:
    """Below nine tenths of the table fails, unless others used the machine meanwhile."""
    case = next(c for c in CASES if c.name.startswith("layer norm"))
    assert _rows(case, 1, _found(1.48 * 0.91, 0.0))[1]
    assert not _rows(case, 1, _found(1.48 * 0.89, 0.0))[1]
    rows, good = _rows(case, 1, _found(1.48 * 0.89, 0.8))
    assert good
    assert [row["quiet"] for row in rows] == [False, False, False]
    assert (rows[-1]["against"], rows[-1]["ratio"]) == ("copy", 0.9)


def test_rounds_of_several_processes_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process that lies badly in memory does not decide, and the busiest one is told."""
    asked: list[float] = []

    def child(case: object, threads: int, **request: object) -> dict[str, object]:
        if "tries" in request:
            return {"params": {"unroll": 2}}
        assert request["params"] == {"unroll": 2}
        asked.append(request["seconds"])
        return _found(float(len(asked)), 0.1 * len(asked))

    monkeypatch.setattr(cpu_ops, "_child", child)
    found = cpu_ops._children(CASES[0], 1, 6.0, ["eager"], 3, 5)
    assert asked == [2.0, 2.0, 2.0]
    assert found["samples"]["eager"] == [1.0] * 9 + [2.0] * 9 + [3.0] * 9
    assert len(found["samples"]["ours"]) == len(found["samples"]["copy"]) == 27
    assert found["foreign"] == pytest.approx(0.3)


def test_the_picked_parameters_are_the_quickest_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes that each gain are tried together, and the quickest of all sets is picked."""
    fn, inputs = next(c for c in CASES if c.name.startswith("layer norm")).build()
    target = make_target(fn, inputs, "layer norm")
    start = cpu_op_tuning.emit(target).origin["params"]

    def launch(candidate: object, folder: Path) -> object:
        params = candidate.origin["params"]
        gained = 2.0 * (params["ahead"] == 2) + 1.0 * (params["unroll"] == 8)
        useless = sum(v != start[k] for k, v in params.items() if k not in ("ahead", "unroll"))
        cost = 8.0 - gained + 0.1 * useless
        return lambda: cost

    def timed(calls: dict[str, object], **_: object) -> dict[str, list[float]]:
        return {name: [call() for _ in range(3)] for name, call in calls.items()}

    monkeypatch.setattr(cpu_op_tuning, "interleave", timed)
    picked = cpu_op_tuning.pick(target, launch, 20, 0.0)
    assert (start["ahead"], start["unroll"]) != (2, 8)
    assert picked == {**start, "ahead": 2, "unroll": 8}
    assert cpu_op_tuning.pick(target, launch, 1, 0.0) == start


def test_a_child_answers_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request names the operator; with ``tries`` parameters are picked, else timed."""
    monkeypatch.setattr(cpu_ops, "tune_case", lambda case, **more: {"tuned": case.name, **more})
    monkeypatch.setattr(cpu_ops, "run_case", lambda case, **more: {"timed": case.name, **more})
    name = CASES[3].name
    asked = {"case": name, "threads": 2, "seconds": 1.0}
    tuned = cpu_ops._answer(json.dumps({**asked, "tries": 3}))
    assert tuned == {"tuned": name, "threads": 2, "seconds": 1.0, "tries": 3}
    timed = cpu_ops._answer(json.dumps({**asked, "against": ["eager"], "params": {"a": 1}}))
    assert timed["timed"] == name
    assert timed["params"] == {"a": 1}


def test_never_below_eager_even_where_the_table_is() -> None:
    """Where the table itself is below 1, eager is the bar."""
    case = next(c for c in CASES if c.headroom[2] < 1.0)
    assert not _rows(case, 2, _found(0.97, 0.0))[1]
    assert _rows(case, 2, _found(1.01, 0.0))[1]


def test_report_has_the_common_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document for all benchmarks: what ran, where, when, and rows of two kinds."""
    rows = [
        compare_row("op", "eager", Comparison(2.0, 1.9, 2.1, 9, 1.0, 2.0)),
        measure_row("speed", 3.0, "GB/s"),
    ]
    report = make_report("cpu_ops", rows)
    target = tmp_path / "deep" / "report.json"
    write_report(report, str(target))
    loaded = json.loads(target.read_text())
    assert set(loaded) >= {"benchmark", "command", "commit", "date", "device", "versions", "rows"}
    wanted = {"name", "against", "ratio", "low", "high", "n", "ours_us", "against_us"}
    assert set(loaded["rows"][0]) >= wanted
    assert set(loaded["rows"][1]) >= {"name", "value", "unit", "low", "high", "n"}
    assert "2.00x" in capsys.readouterr().out


def test_children_keep_their_memory() -> None:
    """Timing children run with the allocator settings that leave page faults out."""
    environment = allocator_environment(2)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert int(environment["MALLOC_MMAP_THRESHOLD_"]) > 134 << 20
