"""Rows for tables say what the document says."""

import pandas as pd
import pytest

from kforge_nb.store import frames
from tests.store.make_example import example as make

ALL = [
    frames.target_rows,
    frames.node_rows,
    frames.decision_rows,
    frames.cost_rows,
    frames.whole_rows,
]


@pytest.mark.parametrize("rows", ALL)
def test_rows_have_the_same_columns(rows):
    """Every row of a table has all its columns, so that a DataFrame has no accidental gaps."""
    found = rows(make())
    assert found
    assert len({tuple(r) for r in found}) == 1
    assert len(pd.DataFrame(found)) == len(found)


@pytest.mark.parametrize("rows", ALL)
def test_rows_of_an_empty_run(rows):
    """A run without anything yet gives empty tables, not errors."""
    empty = {k: [] for k in ("targets", "nodes", "costs", "decisions", "whole")}
    assert rows({**make(), **empty, "details": {}}) == []


def test_nodes_know_their_depth_and_best():
    """Depth counts the steps from a draft, and one node a target is its best."""
    rows = {r["node"]: r for r in frames.node_rows(make())}
    assert [rows[n]["depth"] for n in ("0.0", "0.3", "0.5", "0.7")] == [0, 1, 2, 3]
    assert {n for n, r in rows.items() if r["best"]} == {"0.5", "1.4", "2.5"}
    assert rows["0.5"]["over_compile"] == pytest.approx(2.31 / 1.18, rel=1e-3)
    assert rows["0.2"]["over_compile"] is None


def test_costs_add_up():
    """Running totals end at the sum of all bookings, and the best so far never falls."""
    document = make()
    for i, cost in enumerate(document["costs"]):
        cost["usd"] = None if i == 3 else 0.01
    rows = frames.cost_rows(document)
    assert rows[-1]["total_usd"] == pytest.approx(0.25)
    assert rows[-1]["total_seconds"] == pytest.approx(sum(c["seconds"] for c in document["costs"]))
    best = [r["best_speedup"] for r in rows if r["target"] == 0 and r["best_speedup"]]
    assert best == sorted(best)
    assert best[-1] == 2.31


def test_decisions_hold_both_measurements():
    """A decision's row shows the candidate alone and in the model, or empty where not measured."""
    rows = frames.decision_rows(make())
    assert (rows[2]["isolated"], rows[2]["in_model"], rows[2]["installed"]) == (1.24, 0.998, False)
    assert rows[3]["isolated"] is None


def test_targets_show_their_best():
    """A target's row shows what its best candidate reached and whether it was installed."""
    rows = frames.target_rows(make())
    assert [r["speedup"] for r in rows] == [2.31, 2.09, 1.24, None]
    assert [r["installed"] for r in rows] == [True, True, False, False]
    assert [r["judged"] for r in rows] == [11, 9, 6, 0]
