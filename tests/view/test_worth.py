"""Gain against cost, and what equal budgets would have spent; the browser has the same figures."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kforge_nb.view.worth import curve, uniform

EXPECTED = json.loads((Path(__file__).parent / "worth.json").read_text())


@pytest.fixture
def paid(document):
    """Two dear calls a candidate, one of which failed, and one call that was lost."""
    first = document["costs"][0]
    document["costs"] = [
        {
            **first,
            "target": node["target"],
            "node": node["id"],
            "created": node["created"],
            "calls": 1,
            "usd": usd,
        }
        for node in document["nodes"]
        for usd in (0.02, 0.01)
    ]
    lost = {"target": 0, "node": None, "calls": 1, "usd": 0.5, "created": "2026-03-14T09:01:00Z"}
    document["costs"].append({**first, **lost, "state": "lost"})
    return document


def close(spot, wanted):
    """Whether a spot has the expected figures."""
    return asdict(spot) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("name", ["example", "paid"])
def test_the_figures_are_the_browsers(name, document, request):
    """One file holds Python and TypeScript to the same curves and the same estimate."""
    run = request.getfixturevalue("paid") if name == "paid" else document
    wanted = EXPECTED[name]

    assert len(curve(run)) == wanted["spots"]
    assert close(curve(run)[-1], wanted["last"])
    for index, spot in wanted["targets"].items():
        assert close(curve(run, int(index))[-1], spot)
    equal = uniform(run)
    assert (equal.rounds, equal.targets) == (wanted["rounds"], wanted["shared"])
    assert close(equal.spent, wanted["spent"])
    assert close(equal.ours, wanted["ours"])


def test_all_that_was_spent_is_on_the_curves(paid):
    """The parts of the targets add up to the whole, lost calls too, and the gain never falls."""
    whole = curve(paid)
    parts = [curve(paid, index)[-1] for index in range(3)]

    assert whole[-1].usd == pytest.approx(0.03 * 26 + 0.5)
    for unit in ("judged", "calls", "usd", "seconds"):
        total = sum(getattr(part, unit) for part in parts)
        assert total == pytest.approx(getattr(whole[-1], unit))
    gains = [spot.gain for spot in whole]
    assert gains == sorted(gains)


def test_equal_budgets_by_hand(document):
    """Two targets, the second of which matters: half of the uniform money goes to the first."""
    first = document["targets"][0]
    document["targets"] = [
        {**first, "index": i, "share": share, "state": "done", "best": None}
        for i, share in enumerate((0.1, 0.6))
    ]
    node = document["nodes"][0]
    cost = document["costs"][0]
    plan = [(0, "wrong", None, 0.30), (1, "accepted", 1.5, 0.10), (1, "accepted", 3.0, 0.20)]
    document["nodes"], document["costs"] = [], []
    for n, (target, verdict, speedup, usd) in enumerate(plan):
        made = {"id": f"{target}.{n}", "created": f"2026-03-14T09:01:0{n}Z", "seconds": 1.0}
        made |= {"target": target, "verdict": verdict, "speedup": speedup, "parent": None}
        document["nodes"].append({**node, **made})
        paid = {"target": target, "node": made["id"], "usd": usd, "calls": 1}
        document["costs"].append({**cost, **paid, "created": made["created"]})

    equal = uniform(document)

    assert (equal.rounds, equal.targets) == (2, 2)
    # Two rounds: the first target's only candidate twice over, and both of the second.
    assert equal.spent.usd == pytest.approx(0.30 + 0.30 + 0.10 + 0.20)
    assert equal.spent.judged == 4
    assert equal.spent.gain == pytest.approx(1 / (1 - 0.6 * (1 - 1 / 3)))
    assert equal.ours.usd == pytest.approx(0.60)
    assert [spot.judged for spot in equal.spots] == [0, 2, 4]


def test_targets_that_were_skipped_share_no_budget(document):
    """A vendor op that was never a target of the search costs equal budgets nothing."""
    before = uniform(document).targets
    for target in document["targets"]:
        if target["state"] == "skipped":
            target["state"] = "waiting"

    assert uniform(document).targets == before + 1


def test_without_gain_or_with_one_target_there_is_nothing_to_compare(document):
    """No estimate is made up where equal budgets mean nothing."""
    nothing = [{**node, "verdict": "wrong"} for node in document["nodes"]]
    assert uniform({**document, "nodes": nothing}) is None
    alone = {"targets": document["targets"][:1]}
    alone["nodes"] = [node for node in document["nodes"] if node["target"] == 0]
    assert uniform({**document, **alone}) is None
    assert uniform({**document, "nodes": [], "costs": []}) is None


def uneven(document, targets, candidates):
    """Many targets: half have one candidate, the last has the rest and wins at its last one."""
    first, node, cost = document["targets"][0], document["nodes"][0], document["costs"][0]
    share = 0.9 / targets
    rows = [{**first, "index": i, "share": share, "state": "done"} for i in range(targets)]
    nodes, costs = [], []
    for i in range(candidates):
        of = i if i < targets // 2 else targets - 1
        created = (datetime(2026, 3, 14, 10, tzinfo=UTC) + timedelta(seconds=i)).isoformat()
        made = {"id": f"{of}.{i}", "target": of, "created": created, "verdict": "accepted"}
        nodes.append({**node, **made, "speedup": 2.0 if i == candidates - 1 else 1.0})
        paid = {"target": of, "node": made["id"], "created": created, "calls": 1, "usd": 0.01}
        costs.append({**cost, **paid})
    return {**document, "targets": rows, "nodes": nodes, "costs": costs}


def calls_of(act):
    """How many calls the interpreter makes in ``act()``, steps of generators among them."""
    made = 0

    def count(_frame, event, _argument):
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return made


def test_equal_budgets_take_no_more_work_than_there_are_candidates(document):
    """Twice the targets or twice the candidates is at most about twice the work, not the square."""

    def work(targets, candidates):
        run = uneven(document, targets, candidates)
        assert uniform(run).rounds == candidates - targets // 2
        return calls_of(lambda: uniform(run))

    small = work(100, 500)
    assert work(100, 1000) / small < 2.5
    assert work(200, 500) / small < 2.5
    assert small < 200 * (100 + 500)


def test_a_winner_that_is_searched_no_more_ends_no_estimate(document):
    """Where no candidate is any shared target's, there is nothing to average and no fault."""
    others = [{**t, "index": 10 + t["index"], "state": "waiting"} for t in document["targets"]]
    document["targets"] = [{**t, "state": "skipped"} for t in document["targets"]] + others

    assert uniform(document).rounds == 0


def test_pauses_are_no_time_searched(document):
    """A gap counts for no more than the candidate after it took."""
    before = curve(document)[-1].seconds
    for node in document["nodes"][13:]:
        node["created"] = node["created"].replace("2026-03-14", "2026-03-20")

    assert abs(curve(document)[-1].seconds - before) < 60
