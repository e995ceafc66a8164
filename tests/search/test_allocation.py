"""Is the allocation worth it? The benchmark, small; and that it can fail."""

import json
from pathlib import Path

import pytest

from benchmarks import allocation, spenders
from benchmarks.recorded_runs import from_document
from benchmarks.workloads import WORKLOADS, draw_targets

SEED = 700
"""None that the policy was tuned on."""


@pytest.fixture(scope="module")
def records():
    """The paper's Gemma, where one target has most to gain."""
    gemma = next(w for w in WORKLOADS if w.model == "Gemma 4 E2B" and w.source == "paper")
    return allocation.synthetic(gemma, SEED)


def test_uniform_budgets_give_each_target_the_same(records):
    """The policy to compare with goes to the end of each run, by turns."""
    found = spenders.uniform(records)
    assert len(found.usd) == len(records) * allocation.ITERATIONS
    assert list(found.usd) == sorted(found.usd)


def test_ours_needs_less_money(records):
    """Where one target has most to gain, it must be found with much less than all of the money."""
    found = allocation.compare(records)
    assert found.there
    assert found.ours < 0.5
    assert found.ours < found.theirs


def test_ours_stays_within_its_money(records):
    """A tenth of the money is never exceeded, and spent on what pays."""
    total = spenders.uniform(records).usd[-1]
    found = spenders.ours(records, total / 10)
    assert 0 < found.usd[-1] <= total / 10


def test_shares_are_those_of_the_records():
    """No model's targets take more than its time, and names and shares stay as recorded."""
    for workload in WORKLOADS:
        targets = draw_targets(workload, SEED)
        assert [t.operation for t in targets] == list(workload.operations)
        assert sum(t.operation.share for t in targets) < 0.7
        assert all(1 <= t.reachable <= t.headroom for t in targets)


def test_a_policy_that_never_gets_there_costs_everything(records, monkeypatch):
    """The benchmark must be able to fail: stopping at once counts as all of the money."""
    monkeypatch.setattr(allocation, "ours", lambda records, money: spenders.Spent((), (), "no"))
    found = allocation.compare(records)
    assert (found.ours, found.there) == (1.0, False)
    row = allocation.pooled("paper", {w: [found, found] for w in WORKLOADS})
    assert row["ok"] is False


def test_reports_and_status(tmp_path, monkeypatch):
    """The command writes its rows in the language of all benchmarks, and has a status."""
    kept = [w for w in WORKLOADS if w.model == "Gemma 4 E2B"]
    monkeypatch.setattr(allocation, "WORKLOADS", kept)
    monkeypatch.setattr(allocation, "ITERATIONS", 12)
    file = tmp_path / "allocation.json"
    status = allocation.main(["--seeds", "4", "--json", str(file)])
    report = json.loads(file.read_text())
    assert status == (0 if report["rows"][0]["ok"] else 1)
    assert all(r["low"] <= r["value"] <= r["high"] for r in report["rows"])
    assert {"p10", "p90", "reached"} <= set(report["rows"][2])


def test_real_runs_are_played_in_another_order():
    """Each seed plays all of a run's candidates, parents first, and ends where the run ended."""
    fixture = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"
    document = json.loads(fixture.read_text())
    ends = set()
    orders = set()
    for seed in range(6):
        records = from_document(document, seed)
        assert sum(len(r.attempts) for r in records) == len(document["nodes"])
        ends.add(round(spenders.uniform(records).saved[-1], 9))
        orders.add(tuple(a.evaluation.reason for a in records[0].attempts))
        outcome = allocation.compare(records)
        assert 0 < outcome.ours <= 1
    assert len(ends) == 1
    assert len(orders) > 1


def test_recorded_runs_have_rows_of_their_own(tmp_path):
    """The committed run is played without the simulation: no bar, its size beside its figures."""
    run = Path(__file__).parents[2] / "docs" / "results" / "2026-11-30-cpu-run-minilm.kforge.json"
    file = tmp_path / "runs.json"
    played = ["--only-runs", "--runs", str(run), "--seeds", "5", "--json", str(file)]
    assert allocation.main(played) == 0
    report = json.loads(file.read_text())
    first = report["rows"][0]
    assert first["name"] == f"{run.name}: money for 95%"
    assert (first["targets"], first["candidates"], first["n"]) == (3, 24, 5)
    assert 0 < first["value"] <= 1
    assert "there is no bar for single runs" in report["notes"]


def test_a_run_that_saved_nothing_says_so(tmp_path):
    """No seed has anything to reach: one row with nought, not a failure."""
    fixture = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"
    document = json.loads(fixture.read_text())
    for node in document["nodes"]:
        node |= {"verdict": "slower", "speedup": 0.8}
    dull = tmp_path / "dull.kforge.json"
    dull.write_text(json.dumps(document))
    file = tmp_path / "runs.json"
    assert allocation.main(["--only-runs", "--runs", str(dull), "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["value"], row["candidates"]) == (0, len(document["nodes"]))
