"""Is the tree search worth it? The benchmark of the landscapes, small; and that it can fail."""

import json
import math

import pytest

from benchmarks import policies, search
from benchmarks.landscapes import LANDSCAPES, deceptive, flat, mostly_failing

SEEDS = range(500, 560)
"""None that the search was tuned on; with twenty of them chance decides on the deceptive one."""


@pytest.fixture(scope="module")
def found():
    """Log speed-ups of all policies on all landscapes."""
    return {
        make(0).name: {p: search.scores(make, p, SEEDS) for p in policies.POLICIES}
        for make in LANDSCAPES
    }


@pytest.mark.parametrize("name", search.TO_BEAT)
def test_beats_each_other_policy(found, name):
    """Where structure is to be found the tree search must find more of it than simple policies."""
    assert [v.against for v in search.judge(name, found[name]) if not v.ok] == []


@pytest.mark.parametrize("name", ["flat", "noisy timing", "mostly failing"])
def test_loses_nothing_elsewhere(found, name):
    """Where greed or chance does well the tree search must be within noise of the best."""
    assert [v.against for v in search.judge(name, found[name]) if v.ok is False] == []


def test_a_policy_that_only_drafts_misses_the_bars():
    """The benchmark must be able to fail: best-of-n in the place of the tree search misses bars."""
    for make in (deceptive, mostly_failing):
        drafts = search.scores(make, "best of n", SEEDS)
        others = {p: search.scores(make, p, SEEDS) for p in ("greedy", "random")}
        verdicts = search.judge(make(0).name, {search.OURS: drafts, **others})
        assert any(v.ok is False for v in verdicts)


def test_equal_evaluations():
    """No policy may judge one candidate more than another."""
    for make in LANDSCAPES:
        for policy in policies.POLICIES.values():
            assert len(policy(make(7), 7, 25).tree) == 25


@pytest.mark.parametrize("make", LANDSCAPES)
def test_nothing_exceeds_the_known_optimum(make):
    """The optimum of a landscape is one: no point that any policy finds is faster."""
    for seed in range(5):
        landscape = make(seed)
        for policy in policies.POLICIES.values():
            searched = policy(landscape, seed, 30)
            truths = [landscape.truth(p) or 0.0 for p in searched.points.values()]
            assert max(truths) <= landscape.optimum * (1 + 1e-12)


def test_reports_and_status(tmp_path, capsys, monkeypatch):
    """The command writes its rows in the language of all benchmarks, and has a status."""
    monkeypatch.setattr(search, "LANDSCAPES", (flat,))
    file = tmp_path / "search.json"
    arguments = ["--seeds", "3", "--budget", "8", "--json", str(file)]
    assert search.main(arguments) == 0
    report = json.loads(file.read_text())
    compared = [r for r in report["rows"] if "ratio" in r]
    assert {r["against"] for r in compared} == {"greedy", "best of n", "random"}
    assert all(r["low"] <= r["ratio"] <= r["high"] for r in compared)
    assert "every bar is reached" in capsys.readouterr().out
    monkeypatch.setattr(search, "NOISE", -math.inf)
    monkeypatch.setattr(search, "interval", lambda values: (-1.0, -1.0, -1.0))
    assert search.main(arguments) == 1
