"""Messages of a live view: whole at first, then small, and always to the same document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge_nb.view.deltas import MESSAGE_BYTES, Encoder, apply, table, untable
from kforge_nb.view.payload import for_widget, size
from tests.view.large import large

MESSAGES = Path(__file__).with_name("messages.json")

VALUES = st.one_of(
    st.none(), st.integers(0, 3), st.text(max_size=3), st.lists(st.integers(0, 2), max_size=2)
)
FIELDS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def keyed(key, names):
    """Lists of rows with distinct keys, in any order."""
    rows = st.tuples(st.sampled_from(names), FIELDS).map(lambda pair: {key: pair[0], **pair[1]})
    return st.lists(rows, unique_by=lambda row: row[key], max_size=6)


DOCUMENTS = st.fixed_dictionaries(
    {
        "nodes": keyed("id", ["0.0", "0.1", "0.2", "1.0", "1.1"]),
        "targets": keyed("index", [0, 1, 2]),
        "costs": st.lists(FIELDS, max_size=4),
        "progress": FIELDS,
    },
    optional={"counters": VALUES, "decisions": keyed("target", [0, 1])},
)


@settings(max_examples=100, deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=5), st.sampled_from([1, 40, 10**6]))
def test_messages_lead_to_the_document_they_were_made_of(documents, limit):
    """Whatever changes and however small messages must be, readers end with the newest document."""
    encoder = Encoder(limit)
    seen = {}
    for document in documents:
        message = encoder.advance(document)
        while message is not None:
            seen = apply(seen, json.loads(json.dumps(message)))
            assert seen == apply({}, encoder.whole())
            message = encoder.advance(document) if encoder.behind else None
        assert not encoder.behind
        assert seen == document


@given(st.lists(FIELDS, max_size=5))
def test_tables_hold_records(rows):
    """A table gives back the rows it was made of, also rows of unequal fields."""
    assert untable(json.loads(json.dumps(table(rows)))) == rows


def test_nothing_new_is_no_message(document):
    """The same document twice costs one message; a copy of it costs no second one either."""
    encoder = Encoder()
    assert encoder.advance(document) is not None
    assert encoder.advance(document) is None
    assert encoder.advance(json.loads(json.dumps(document))) is None


def test_a_judged_candidate_costs_a_small_message_in_a_tree_of_2000():
    """One new node and the visits of its ancestors: hundreds of bytes, not the tree."""
    run = for_widget(large(2001))
    before = {**run, "nodes": run["nodes"][:-1], "costs": run["costs"][:-1]}
    last = run["nodes"][-1]
    encoder = Encoder()
    whole = size(encoder.advance(before))
    rows = [
        {**r, "visits": r["visits"] + 1} if r["id"] == last["parent"] else r for r in run["nodes"]
    ]

    changes = encoder.advance({**run, "nodes": rows})

    assert changes is not None
    assert size(changes) < 2_000
    assert whole < 700_000
    assert [row["id"] for _, row in changes["lists"]["nodes"]["new"]] == [last["id"]]
    ((parent, fields),) = changes["lists"]["nodes"]["put"]
    assert (parent, set(fields)) == (last["parent"], {"visits"})


def test_many_changes_at_once_go_in_bounded_messages():
    """A tree of 2,000 that appears between two messages comes in parts of bounded size."""
    run = for_widget(large(2000))
    encoder = Encoder()
    seen = apply({}, encoder.advance({**run, "nodes": [], "costs": []}))
    sizes = []
    while (message := encoder.advance(run)) is not None:
        sizes.append(size(message))
        seen = apply(seen, message)

    assert seen == run
    assert max(sizes) < 1.1 * MESSAGE_BYTES
    assert len(sizes) > 5


def test_parts_of_a_tree_are_trees():
    """Rows that wait never leave a child before its parent: nodes come parents first."""
    run = for_widget(large(300))
    encoder = Encoder(limit=5_000)
    seen = apply({}, encoder.advance({**run, "nodes": [], "costs": []}))
    while (message := encoder.advance(run)) is not None:
        seen = apply(seen, message)
        known = {row["id"] for row in seen["nodes"]}
        assert all(row["parent"] in known for row in seen["nodes"] if row["parent"] is not None)


def messages() -> dict:
    """Messages of one small run, and the documents that they lead to, for the browser's test."""
    nodes = [
        {"id": f"{i % 2}.{i}", "target": i % 2, "parent": None, "visits": 1, "title": f"<b>{i}</b>"}
        for i in range(9)
    ]
    nodes.sort(key=lambda row: row["target"])
    costs = [{"node": row["id"], "usd": 0.5, "calls": 1} for row in nodes]
    targets = [{"index": 0, "best": None}, {"index": 1, "best": None}]
    run = {"state": "searching", "targets": targets, "nodes": nodes, "costs": costs, "whole": []}
    visited = [{**row, "visits": 5} if i % 2 else row for i, row in enumerate(nodes[2:])]
    settled = [{**targets[0], "best": "0.2"}, targets[1]]
    steps = [
        {**run, "nodes": nodes[:3], "costs": costs[:3], "counters": None},
        {**run, "nodes": nodes[:2] + nodes[3:], "progress": {"judged": 8}, "counters": {"a": 1}},
        {**run, "nodes": visited, "targets": settled, "costs": costs[:4]},
        {**run, "state": "done", "targets": targets[::-1], "nodes": nodes[::-1]},
    ]
    encoder = Encoder()
    made = [encoder.advance(step) for step in steps]
    return {"messages": made, "documents": steps}


def test_the_browser_is_held_to_todays_messages():
    """``messages.json``, which the browser's reader is tested with, is what is sent today."""
    assert json.loads(MESSAGES.read_text()) == json.loads(json.dumps(messages()))


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_a_reader_that_comes_late_gets_the_whole(late):
    """A page opened again after any message goes on from the whole document of that moment."""
    steps = messages()["documents"]
    encoder = Encoder()
    for step in steps[: late + 1]:
        encoder.advance(step)
    assert apply({}, encoder.whole()) == steps[late]


if __name__ == "__main__":
    MESSAGES.write_text(json.dumps(messages()) + "\n")
