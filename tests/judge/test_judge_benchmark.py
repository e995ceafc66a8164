"""The benchmark of the judge itself: rates from pairs, pieces that add up, nothing left behind."""

from __future__ import annotations

import itertools
import json

import pytest

from benchmarks.judge import next_pairs, read_pairs
from benchmarks.judge_leaks import leak_rows
from benchmarks.judge_rates import missed, rate_rows, wilson
from benchmarks.judge_stages import BAR_SECONDS, late
from benchmarks.judge_twins import KERNELS, TWINS, Calibrated, candidate
from benchmarks.report import measure_row


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


def test_judging_that_takes_too_long_is_told():
    """The whole has a bar, in seconds; a stage alone has none."""
    took = BAR_SECONDS + 0.25
    rows = [
        measure_row("stages: row sum of 60 MB in, judged", took, "s"),
        measure_row("stages: row sum of 60 MB in, timing", took, "s"),
        measure_row("stages: row sum of 16 MB in, judged", BAR_SECONDS - 0.25, "s"),
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


def test_nothing_is_left_of_candidates_a_third_of_which_crash():
    """Right, crashing and wrong ones in a row: no process, descriptor, memory or file remains."""
    rows = leak_rows(6)

    assert rows[0]["verdicts"]["crashed"] == 2
    assert rows[0]["verdicts"]["wrong"] == 2
    assert [row["name"] for row in rows if row["value"] > 0] == []
