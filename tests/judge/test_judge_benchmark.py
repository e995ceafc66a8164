"""The benchmark of the judge itself: rates from pairs, pieces that add up, nothing left behind."""

from __future__ import annotations

import itertools
import json

import pytest

from benchmarks import judge as judge_benchmark
from benchmarks import judge_leaks
from benchmarks.judge import next_pairs, read_pairs
from benchmarks.judge_leaks import CUDA_SOURCE, LEAKS, SLACK_MIB, Footprint, leak_rows, leaking
from benchmarks.judge_rates import missed, rate_rows, wilson
from benchmarks.judge_refusals import Task, refusal_rows, refused
from benchmarks.judge_stages import BAR_SECONDS, late
from benchmarks.judge_twins import KERNELS, TWINS, Calibrated, candidate
from benchmarks.report import measure_row
from kforge_nb.judge import bench as benches
from kforge_nb.judge.timing import Plan


def _pair(kind: str, verdict: str, **more) -> dict:
    row = {"kind": kind, "kernel": next(iter(KERNELS)), "threads": 1, "verdict": verdict}
    return {**row, "ratio": 1.0, "seconds": 10.0, "foreign": 0.1, **more}


def test_rates_are_shares_of_a_kind():
    """A decided A/A pair counts against the judge, an undecided one does not."""
    pairs = [_pair("same", "undecided")] * 38 + [_pair("same", "slower"), _pair("same", "accepted")]
    rows = {row["name"]: row for row in rate_rows(pairs)}

    assert rows["same: decided"]["value"] == pytest.approx(2 / 40)
    assert rows["same: decided"]["n"] == 40
    assert rows["same: decided"]["low"] < 0.05 < rows["same: decided"]["high"]


def test_missed_bars_are_told():
    """Too many wrong verdicts are said in words; a handful of pairs says nothing yet."""
    bad = [_pair("slower", "accepted")] * 2 + [_pair("slower", "slower")] * 28

    assert "slower: called faster: at most 1%" in missed(rate_rows(bad))[0]
    assert missed(rate_rows(bad[:4])) == []


def test_an_honest_twin_taken_for_a_cheat_is_told():
    """Twins are honest and right: any other verdict on one of them misses a bar."""
    pairs = [_pair("same", "undecided")] * 30 + [_pair("same", "suspicious")]

    assert "taken for a cheat" in missed(rate_rows(pairs))[0]


def judged(name, seconds, verdict="accepted"):
    """The row of the whole, three evaluations of which the last one had this verdict."""
    said = {"verdict": f"accepted, accepted, {verdict}", "reason": "as it is"}
    return measure_row(f"stages: {name}, judged", seconds, "s", **said)


def test_a_clearly_faster_kernel_that_is_not_accepted_meets_no_bar():
    """Being refused takes no time at all."""
    (words,) = late([judged("row sum of 60 MB in", 0.9, "crashed")])
    assert "clearly faster, and yet accepted, accepted, crashed: as it is" in words


def test_judging_that_takes_too_long_is_told():
    """The whole has a bar, in seconds; a stage alone has none."""
    took = BAR_SECONDS + 0.25
    rows = [
        judged("row sum of 60 MB in", took),
        measure_row("stages: row sum of 60 MB in, timing", took, "s"),
        judged("row sum of 16 MB in", BAR_SECONDS - 0.25),
    ]

    (words,) = late(rows)
    assert "row sum of 60 MB in, judged: at most 3 s, and it is 3.25 s" in words


@pytest.mark.parametrize(("hits", "n"), [(0, 200), (2, 200), (200, 200)])
def test_intervals_of_shares_hold_them(hits, n):
    """Also at none and at all, where a normal interval would have no width."""
    low, high = wilson(hits, n)

    assert 0.0 <= low <= hits / n <= high <= 1.0
    assert high > low


def test_pieces_add_up(tmp_path):
    """Pairs of earlier pieces are read again, and what was judged least comes next."""
    path = tmp_path / "pairs.jsonl"
    assert read_pairs(path) == []
    path.write_text("".join(json.dumps(_pair("same", "undecided")) + "\n" for _ in range(3)))
    done = read_pairs(path)
    coming = list(itertools.islice(next_pairs(done), 4 * len(TWINS) * len(KERNELS)))

    assert len(done) == 3
    assert coming.count(("same", next(iter(KERNELS)), 1)) < 4
    assert {kind for kind, _, _ in coming} == set(TWINS)


def test_twins_differ_in_a_number_alone():
    """The same source, and so many rows computed twice as the calibration says."""
    kernel = next(iter(KERNELS.values()))
    calibrated = Calibrated(seconds=1e-3, share=1 / 64)
    plain, longer = candidate(kernel, 0), candidate(kernel, calibrated.more(1.05))

    assert plain.source == longer.source
    assert longer.plan.symbols["EXTRA"] == "3"


@pytest.mark.slow
def test_live_pairs_are_not_told_apart_by_more_than_chance(tmp_path, monkeypatch):
    """Three of three equal pairs decided, or a slower twin called faster twice: not by chance.

    Real processes, few of them and for a short time, on any machine and under any load.
    """
    monkeypatch.setattr(benches, "CONFIRM", Plan(seconds=0.3, narrow=0.05, pairs=10, probes=2))
    monkeypatch.setattr(benches, "MOST_PROCESSES", 3)
    kernel = next(iter(KERNELS))
    opened = judge_benchmark._Benches(tmp_path)
    try:
        kinds = ["same", "slower", "same", "slower", "same"]
        rows = [judge_benchmark._judge_pair(opened, kind, kernel, 1) for kind in kinds]
    finally:
        opened.close()
    found = {kind: [row["verdict"] for row in rows if row["kind"] == kind] for kind in kinds}

    assert all(row["ratio"] for row in rows), rows
    assert sum(verdict in ("accepted", "slower") for verdict in found["same"]) < 3
    assert found["slower"].count("accepted") < 2


def test_nothing_is_left_of_candidates_a_third_of_which_crash():
    """Right, crashing and wrong ones in a row: no process, descriptor, memory or file remains."""
    rows = leak_rows(6)

    assert rows[0]["verdicts"]["crashed"] == 2
    assert rows[0]["verdicts"]["wrong"] == 2
    assert leaking(rows) == []


PARTS = {
    "": (12, True, LEAKS),
    "--seconds 60 --json": (12, True, LEAKS),
    "--pairs 0 --stages": (0, True, 0),
    "--stages": (0, True, 0),
    "--leaks 6": (0, False, 6),
    "--pairs 3": (3, False, 0),
    "--append FILE": (12, False, 0),
    "--append FILE --pairs 0": (0, False, 0),
    "--pairs 4 --stages --leaks 9": (4, True, 9),
    "--refusals 2": (0, False, 0),
}


@pytest.mark.parametrize("line", PARTS)
def test_all_parts_run_unless_some_are_named(line):
    """Without options everything is run; with them what they name, and no more."""
    found = judge_benchmark.chosen(judge_benchmark._parser().parse_args(line.split()))

    assert (found.pairs, found.stages, found.leaks) == PARTS[line]


def test_an_honest_kernel_that_is_refused_is_told():
    """Candidates of one target on draws of their own: a wrong one is counted, and where."""
    import torch

    from tests.judge.kernels import RMS_NORM, rms_norm, target_of
    from tests.judge.kernels import candidate as made

    target = target_of(rms_norm, torch.randn(8, 64), family="rms_norm")
    off = made(RMS_NORM.replace("* k;", "* k * 1.001f;"))
    task = Task("some", "norm", target, {"right": made(RMS_NORM), "off": off})
    (row,) = refusal_rows(2, [task])

    assert (row["value"], row["n"]) == (2, 4)
    assert {who.split(" on ")[0] for who in row["where"]} == {"norm: off"}
    assert row["shown"][0]["worst"]
    assert "none may be, and it is 2 of 4" in refused([row])[0]
    assert refused([{**row, "value": 0}]) == []


FOUND = {
    "a leak": ([measure_row("leaks: processes, 200 candidates, judge closed", 1, "left")], 1),
    "too slow": ([judged("row sum of 60 MB in", 3.2)], 1),
    "nothing": ([measure_row("leaks: processes, 200 candidates, judge closed", 0, "left"),
                 judged("row sum of 60 MB in", 2.9)], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_the_exit_status_says_what_was_missed(name, monkeypatch, capsys):
    """A leak or a late stage is a failure like a missed rate, and the bars are printed."""
    rows, status = FOUND[name]
    monkeypatch.setattr(judge_benchmark, "_judge_pairs", lambda *_: None)
    monkeypatch.setattr(judge_benchmark, "stage_rows", lambda: rows[-1:])
    monkeypatch.setattr(judge_benchmark, "leak_rows", lambda *_: rows[:-1] or rows)
    monkeypatch.setattr("sys.argv", ["judge"])

    assert judge_benchmark.main() == status
    said = capsys.readouterr().out
    assert "judged in 3 s" in said
    assert "is left of candidates in a row" in said
    assert ("missed: " in said) == bool(status)


def test_memory_of_a_device_is_compared_above_the_noise(tmp_path, monkeypatch):
    """What others do moves a few MiB; more than that is a leak, told in MiB."""
    readings = iter([500, 500 + SLACK_MIB - 1, 500 + SLACK_MIB])
    monkeypatch.setattr(judge_leaks, "_device_mib", lambda _: next(readings))
    before, noise, leak = (Footprint(tmp_path, "cuda") for _ in range(3))

    assert noise.above(before)["MiB of device memory"] == 0
    assert leak.above(before)["MiB of device memory"] == SLACK_MIB


def test_device_code_of_the_leak_check_compiles(tmp_path):
    """Right, crashing and wrong: all three are valid code with nothing against them."""
    from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda, find_nvrtc
    from kforge_nb.errors import MissingTool
    from kforge_nb.judge.cuda.policy import scan_cuda

    try:
        find_nvrtc()
    except MissingTool as missing:
        pytest.skip(str(missing))
    mix = judge_leaks._mix(judge_leaks._KERNEL, "cuda")
    assert len({c.source for c in mix}) == 3
    assert mix[0].source == CUDA_SOURCE
    for made in mix:
        assert scan_cuda(made.source) == []
        assert isinstance(build_cuda(made.source, ("kernel",), cache=tmp_path, arch="sm_90"),
                          CudaBuilt)  # fmt: skip


@pytest.mark.gpu
def test_nothing_is_left_on_a_device():
    """The same on a GPU, where the device's memory is looked at by another process."""
    rows = leak_rows(9, "cuda:0")

    assert rows[0]["verdicts"]["crashed"] == 3
    assert any("device memory" in row["name"] for row in rows)
    assert leaking(rows) == []
