"""Places of a tree's items: without collisions, stable, and the same as in the browser."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kforge_nb.view.treelayout import FOLD_ABOVE, arrange, path_to, won_by
from tests.view.large import large

PLACES = Path(__file__).with_name("places.json")
VERDICTS = st.sampled_from(["accepted", "slower", "wrong", "crashed"])


def trees():
    """Nodes whose parents come before them, and some whose parents are not there, or behind."""
    rows = st.lists(st.tuples(st.integers(-2, 30), VERDICTS), max_size=30)
    return rows.map(
        lambda found: [
            {"id": str(i), "parent": str(p) if p >= 0 else None, "verdict": v}
            for i, (p, v) in enumerate(found)
        ]
    )


@given(trees())
def test_every_candidate_has_a_place_of_its_own(nodes):
    """Each node is an item or in a crowd, once; no two items share a place."""
    places = arrange(nodes)
    shown = [p.node["id"] for p in places if p.node]
    folded = [node["id"] for p in places for node in p.folded]
    assert sorted(shown + folded) == sorted(node["id"] for node in nodes)
    assert len({(p.level, p.row) for p in places}) == len(places)
    assert all(len(p.folded) > FOLD_ABOVE for p in places if p.folded)


@given(trees())
def test_lines_cross_no_item(nodes):
    """Between a parent and the row of its last child its column is empty."""
    places = arrange(nodes)
    for child in places:
        parent = child.parent
        if parent is None:
            continue
        assert child.level == parent.level + 1
        between = range(parent.row + 1, child.row + 1)
        assert not [p for p in places if p.level == parent.level and p.row in between]


@given(trees())
def test_a_draft_that_comes_last_moves_nothing(nodes):
    """What is tried later goes below."""
    before = {p.key: (p.level, p.row) for p in arrange(nodes)}
    after = arrange([*nodes, {"id": "new", "parent": None, "verdict": "accepted"}])
    assert {p.key: (p.level, p.row) for p in after if p.key != "new"} == before


def test_a_deep_chain_is_one_row():
    """Thousands of steps one after another need no recursion and one line."""
    nodes = [
        {"id": str(i), "parent": str(i - 1) if i else None, "verdict": "accepted"}
        for i in range(5_000)
    ]
    places = arrange(nodes)
    assert {p.row for p in places} == {0}
    assert places[-1].level == 5_000
    assert len(path_to(nodes, "4999")) == 5_000


def test_what_is_kept_is_not_folded():
    """A failure that the best came from, or that is looked at, stays in sight."""
    nodes = [{"id": str(i), "parent": None, "verdict": "wrong"} for i in range(6)]
    assert [p.key for p in arrange(nodes, {"2"})] == ["", "/failed", "2"]


def test_only_the_way_to_an_accepted_best_looks_like_success():
    """An undecided best has won nothing, and a wrong one that was mended stays wrong."""
    verdicts = ("accepted", "wrong", "accepted", "undecided")
    nodes = [
        {"id": str(i), "parent": str(i - 1) if i else None, "verdict": verdict}
        for i, verdict in enumerate(verdicts)
    ]
    assert won_by(nodes, "2") == {"0", "2"}
    assert won_by(nodes, "3") == won_by(nodes, None) == set()


def places() -> dict:
    """A tree and where its items stand, for the browser's test."""
    fields = ("id", "parent", "verdict")
    nodes = [{k: row[k] for k in fields} for row in large(120)["nodes"]]
    return {"nodes": nodes, "places": [[p.key, p.level, p.row] for p in arrange(nodes)]}


def test_the_browser_is_held_to_the_same_places():
    """``places.json``, which the browser's layout is tested with, is today's layout."""
    assert json.loads(PLACES.read_text()) == json.loads(json.dumps(places()))


if __name__ == "__main__":
    PLACES.write_text(json.dumps(places()) + "\n")
