"""The tree keeps exactly what it is told, and survives JSON."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.landscapes import evaluation
from kforge_nb.errors import DocumentError
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.search.tree import Tree

SPEEDUPS = st.one_of(st.none(), st.floats(0.01, 100.0))


def grow(steps):
    """A tree from (parent choice, speed-up, fate) steps: recorded, refused, or left pending."""
    tree = Tree(3)
    for pick, speedup, fate in steps:
        done = [n.id for n in tree if not n.waiting]
        parent = None if not done or pick % 3 == 0 else done[pick % len(done)]
        node = tree.expect(parent, "draft" if parent is None else "optimise")
        if fate == "record":
            tree.record(node.id, f"digest{pick}", evaluation(speedup))
        elif fate != "pending":
            tree.refuse(node.id, exhausted=fate == "exhausted")
    return tree


STEPS = st.lists(
    st.tuples(
        st.integers(0, 50),
        SPEEDUPS,
        st.sampled_from(["record", "record", "record", "refused", "exhausted", "pending"]),
    ),
    max_size=30,
)


@given(STEPS)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_json_round_trip_is_exact(steps):
    """Saving and loading a tree through JSON text must give the same tree, pending nodes aside."""
    tree = grow(steps)
    data = json.loads(json.dumps(tree.to_document()))
    again = Tree.from_document(data)
    assert json.loads(json.dumps(again.to_document())) == data
    assert len(again) == len(tree)
    assert again.root.value == tree.root.value
    assert again.root.visits == tree.root.visits
    assert again.root.pending == 0
    assert again.expect(None, "draft").id == tree.expect(None, "draft").id


@given(STEPS)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_counts_hold_everywhere(steps):
    """Visits, pending and value of each node must follow from its own and its children's."""
    tree = grow(steps)
    for node in [tree.root, *tree]:
        below = tree.children(node)
        own = 0 if node is tree.root or node.waiting else 1
        assert node.visits == own + sum(c.visits for c in below)
        waiting = 1 if node is not tree.root and node.waiting else 0
        assert node.pending == waiting + sum(c.pending for c in below)
        values = [v for v in (node.own_value, *(c.value for c in below)) if v is not None]
        assert node.value == (max(values) if values else None)


def test_best_prefers_accepted():
    """An undecided candidate must not be the best while a slower, accepted one is there."""
    tree = Tree(0)
    for speedup, verdict in ((1.5, Verdict.UNDECIDED), (1.2, Verdict.ACCEPTED)):
        node = tree.expect(None, "draft")
        tree.record(node.id, str(speedup), evaluation(speedup, verdict))
    assert tree.best() is tree["0.1"]


def test_suspicious_speed_is_no_value():
    """A suspicious candidate, however fast it seems, must not count as progress."""
    tree = Tree(0)
    node = tree.expect(None, "draft")
    tree.record(node.id, "d", evaluation(50.0, Verdict.SUSPICIOUS))
    assert tree.root.value is None
    assert tree.best() is None


def test_replaced_evaluation_lowers_the_value():
    """A winner that turns out slower on fresh samples must lower the values above it."""
    tree = Tree(0)
    first = tree.expect(None, "draft")
    tree.record(first.id, "a", evaluation(1.3))
    second = tree.expect(first.id, "optimise")
    tree.record(second.id, "b", evaluation(2.0))
    tree.replace_evaluation(second.id, evaluation(1.1))
    assert tree.root.value == pytest.approx(math.log(1.3))
    assert tree.best() is first
    assert tree.root.visits == 2


def test_a_node_is_recorded_once():
    """Recording twice would count a visit twice, so it must be refused."""
    tree = Tree(0)
    node = tree.expect(None, "draft")
    tree.record(node.id, "a", evaluation(1.3))
    with pytest.raises(ValueError, match="already holds"):
        tree.record(node.id, "a", evaluation(1.3))
    with pytest.raises(ValueError, match="already holds"):
        tree.refuse(node.id, exhausted=True)


def test_find_names_the_first_holder():
    """A candidate that was tried before must be found by its digest."""
    tree = grow([(0, 1.5, "record"), (0, 1.5, "record")])
    assert tree.find("digest0") is tree["3.0"]
    assert tree.find("other") is None
    assert tree.digests == {"digest0"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"schema": "kforge.tree/9"}, "schema"),
        ({"nodes": [{"id": "3.0"}]}, "3.0"),
        ({"nodes": [{"id": "4.0", "parent": None, "action": "draft"}]}, "4.0"),
        ({"nodes": [{"id": "3.0", "parent": None, "action": "explode"}]}, "explode"),
        ({"root": {}}, "malformed"),
    ],
)
def test_damaged_documents_are_refused(change, word):
    """A tree document that was tampered with must give one DocumentError that names the spot."""
    data = {**grow([(0, 1.5, "record")]).to_document(), **change}
    with pytest.raises(DocumentError, match=word):
        Tree.from_document(data)


def test_orphans_are_refused():
    """A node before its parent must not be restored silently under another."""
    rows = grow([(0, 1.5, "record")]).to_document()["nodes"]
    with pytest.raises(DocumentError, match=r"3\.0"):
        Tree.restore(3, [{**rows[0], "parent": "3.7"}])
