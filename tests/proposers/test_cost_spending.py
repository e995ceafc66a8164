"""What a run spent, by target, by node, over time."""

import pytest

from kforge_nb.proposers import spending

TARGETS = [
    {"index": 0, "name": "softmax", "mean_us": 1000.0, "calls": 10},
    {"index": 1, "name": "gelu", "mean_us": 100.0, "calls": 5},
    {"index": 2, "name": "never timed", "mean_us": None, "calls": 1},
]
NODES = [
    {"id": "0.0", "target": 0, "verdict": "accepted", "speedup": 2.0},
    {"id": "0.1", "target": 0, "verdict": "suspicious", "speedup": 50.0},
    {"id": "0.2", "target": 0, "verdict": "accepted", "speedup": 4.0},
    {"id": "1.0", "target": 1, "verdict": "wrong", "speedup": None},
]


def cost(minute, target, node, usd, **more):
    return {
        "target": target,
        "node": node,
        "calls": 1,
        "tokens_in": 100,
        "tokens_out": 10,
        "usd": usd,
        "seconds": 2.0,
        "created": f"2026-11-30T10:{minute:02}:00Z",
        **more,
    }


COSTS = [
    cost(3, 1, "1.0", 0.5),
    cost(1, 0, "0.0", 1.0, tokens_cached=60, tokens_reasoning=4),
    cost(2, 0, "0.1", 1.0),
    cost(4, 0, "0.2", 2.0, calls=2),
    cost(5, 0, None, 0.25),
    cost(6, 2, None, None),
]


def test_by_target():
    """Each target's money, and what a millisecond saved has cost; only accepted kernels save."""
    first, second, third = spending.target_spending(COSTS, TARGETS, NODES)
    assert (first["name"], first["usd"], first["calls"], first["judged"]) == ("softmax", 4.25, 5, 3)
    assert (first["tokens_cached"], first["tokens_reasoning"]) == (60, 4)
    assert first["best"] == 4.0
    assert first["saved_ms"] == pytest.approx(7.5)
    assert first["usd_per_ms"] == pytest.approx(4.25 / 7.5)
    assert (second["best"], second["saved_ms"], second["usd_per_ms"]) == (None, 0.0, None)
    assert (third["unpriced"], third["saved_ms"]) == (1, None)


def test_by_node():
    """Each node's money; calls that came to no candidate stay together under their target."""
    rows = spending.node_spending(COSTS, NODES)
    assert [r["node"] for r in rows] == ["0.0", "0.1", "1.0", "0.2", None, None]
    assert [r["target"] for r in rows][-2:] == [0, 2]
    assert rows[3]["usd"] == 2.0
    assert rows[2]["verdict"] == "wrong"


def test_over_time():
    """Sums run in the order of time, and a better kernel counts from when it came."""
    rows = spending.cumulative(COSTS, TARGETS, NODES)
    assert [r["total_usd"] for r in rows] == [1.0, 2.0, 2.5, 4.5, 4.75, 4.75]
    assert [r["saved_ms"] for r in rows] == pytest.approx([5, 5, 5, 7.5, 7.5, 7.5])
    assert rows[0]["usd_per_ms"] == pytest.approx(0.2)
    assert rows[-1]["total_calls"] == 7


def test_the_parts_add_up_to_the_whole():
    """Targets, nodes and time tell of the same money."""
    whole = spending.total_spending(COSTS, TARGETS, NODES)
    by_target = spending.target_spending(COSTS, TARGETS, NODES)
    by_node = spending.node_spending(COSTS, NODES)
    for name in ("usd", "calls", "tokens_in", "seconds", "unpriced"):
        assert whole[name] == sum(r[name] for r in by_target) == sum(r[name] for r in by_node)
    over_time = spending.cumulative(COSTS, TARGETS, NODES)[-1]
    assert whole["usd"] == over_time["total_usd"]
    assert whole["saved_ms"] == over_time["saved_ms"]


def test_nothing_spent():
    """A run of recipes has no costs, and tables without rows."""
    assert spending.target_spending([], TARGETS, NODES) == []
    assert spending.node_spending([], NODES) == []
    assert spending.cumulative([], TARGETS, NODES) == []
    assert spending.total_spending([], TARGETS, NODES)["usd"] == 0.0


def test_a_slower_kernel_saves_nothing():
    """An accepted figure at or below one, after a second timing, must not show negative gains."""
    assert spending.saved_ms(TARGETS[0], 0.9) == 0.0
