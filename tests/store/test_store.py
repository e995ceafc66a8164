"""Records go in and come out unchanged, whole or not at all, from any thread and process."""

import math
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kforge_nb.errors import BadInput, StoreError
from kforge_nb.judge.evaluation import Comparison, ErrorFigure, Evaluation, Verdict
from kforge_nb.search.tree import Tree
from kforge_nb.store import Store
from tests.store.filling import fill, put_node

FLOATS = st.floats(allow_nan=False, allow_infinity=True)
TEXT = st.text(max_size=80)
EVALUATIONS = st.builds(
    Evaluation,
    verdict=st.sampled_from(Verdict),
    reason=TEXT,
    log=TEXT,
    errors=st.lists(st.builds(ErrorFigure, TEXT, TEXT, FLOATS, FLOATS, FLOATS), max_size=2).map(
        tuple
    ),
    timings=st.lists(
        st.builds(
            Comparison,
            st.sampled_from(["eager", "compile"]),
            *[st.floats(0.01, 1e6)] * 3,
            st.integers(1, 100),
            *[st.floats(0.01, 1e6)] * 2,
            st.lists(FLOATS, max_size=3).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    bandwidth_gbs=st.none() | FLOATS,
    resources=st.dictionaries(TEXT, st.integers() | TEXT, max_size=3),
    seconds=st.dictionaries(TEXT, FLOATS, max_size=3),
    mismatches=st.lists(st.dictionaries(TEXT, FLOATS, max_size=2), max_size=2).map(tuple),
)


def add(store, run, node, evaluation=None, parent=None, source="x"):
    found = evaluation or Evaluation(Verdict.WRONG, "off")
    store.add_node(
        run,
        node,
        target=0,
        parent=parent,
        action="draft" if parent is None else "optimise",
        candidate={"source": source, "language": "cpp", "digest": node},
        evaluation=found.to_document(),
        seconds=1.5,
    )


@given(st.lists(st.tuples(EVALUATIONS, TEXT), max_size=6))
@settings(
    deadline=None,
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_nodes_come_back_as_they_went_in(tmp_path_factory, pairs):
    """Every evaluation, infinite figures and odd text included, must survive the store."""
    with Store(tmp_path_factory.mktemp("s") / "store.db") as store:
        run = store.create_run()
        store.add_target(run, 0, {"fingerprint": "f"})
        for i, (evaluation, source) in enumerate(pairs):
            add(store, run, f"0.{i}", evaluation, f"0.{i // 2}" if i else None, source)
        rows = store.nodes(run, sources=True)
        assert [Evaluation.from_document(r["evaluation"]) for r in rows] == [e for e, _ in pairs]
        assert [r["candidate"]["source"] for r in rows] == [s for _, s in pairs]
        assert [store.node(run, r["id"]) for r in rows] == rows
        tree = Tree.restore(0, rows)  # what the store gives is what a tree is grown from
        assert [n.evaluation for n in tree] == [e for e, _ in pairs]


def test_a_whole_run_comes_back(store, example):
    """Targets, costs, decisions, rows and run records must come back as they were given."""
    run = fill(store, example, "minilm")
    record = store.run(run)
    assert record["name"] == "minilm"
    for key in ("options", "device", "versions", "workload", "progress", "fidelity"):
        assert record[key] == example[key]
    assert [t["record"] for t in store.targets(run)] == example["targets"]
    assert store.decisions(run) == example["decisions"]
    assert store.whole(run) == example["whole"]
    assert [c["node"] for c in store.costs(run)] == [n["id"] for n in example["nodes"]]
    assert [n["id"] for n in store.nodes(run)] == [n["id"] for n in example["nodes"]]
    assert {n["target"] for n in store.nodes(run, 1)} == {1}


def test_opened_again_it_is_all_there(tmp_path, example):
    """What one store object wrote, a later one must read, also when opened for reading only."""
    with Store(tmp_path / "deep" / "er" / "store.db") as store:
        run = fill(store, example)
        before = store.nodes(run, sources=True)
    for read_only in (False, True):
        with Store(tmp_path / "deep" / "er" / "store.db", read_only=read_only) as store:
            assert store.nodes(run, sources=True) == before


def test_names_are_unique_and_checked(store):
    """Run names: given ones once only and fit for files, automatic ones never in the way."""
    assert store.run(store.create_run())["name"] == "run1"
    store.create_run("run2")
    assert store.run(store.create_run())["name"] == "run3"
    with pytest.raises(BadInput, match="run2"):
        store.create_run("run2")
    for bad in ("", "a b", "../x", "ü", "x" * 101, "..", "a\n"):
        with pytest.raises(BadInput, match="cannot name a run"):
            store.create_run(bad)


def test_find_run_by_name_id_or_newest(store):
    """A run is found by name or id, the newest without either, and a typo lists what there is."""
    with pytest.raises(BadInput, match="no runs yet"):
        store.find_run()
    first, second = store.create_run("first"), store.create_run("second")
    assert store.find_run("first") == store.find_run(first) == first
    assert store.find_run() == second
    with pytest.raises(BadInput, match="first, second"):
        store.find_run("frist")


def add_with_failure(store, run):
    add(store, run, "0.0")
    store.add_cost(run, node="0.0", usd=1.0)
    store.replace_evaluation(run, "0.9", {"verdict": "wrong"})


def test_a_transaction_is_whole(store):
    """When something fails inside a transaction nothing of it may stay, and the store goes on."""
    run = store.create_run()
    store.add_target(run, 0, {"fingerprint": "f"})
    with pytest.raises(StoreError, match=r"no node '0\.9'"), store.transaction():
        add_with_failure(store, run)
    assert store.nodes(run) == []
    assert store.costs(run) == []
    add(store, run, "0.0")
    assert len(store.nodes(run)) == 1


def test_no_write_is_lost_inside_a_reading_view(store):
    """A write inside a view that only reads would be undone with it, so it must be refused."""
    run = store.create_run()
    with pytest.raises(StoreError, match="only reads"), store.database.read():
        store.add_event(run, "x")
    store.add_event(run, "y")
    assert [e["kind"] for e in store.events(run)] == ["y"]


def test_node_and_cost_are_one(store):
    """Money is booked with its node: when the node is refused, so is the booking."""
    run = store.create_run()
    store.add_target(run, 0, {"fingerprint": "f"})
    add(store, run, "0.0")
    with pytest.raises(StoreError, match=r"already holds a node '0\.0'"):
        store.add_node(
            run,
            "0.0",
            target=0,
            parent=None,
            action="draft",
            candidate={},
            evaluation={"verdict": "wrong"},
            cost={"usd": 1.0},
        )
    assert store.costs(run) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda s, r: add(s, "nobody", "0.0"),
        lambda s, r: add(s, r, "0.1", parent="0.7"),
        lambda s, r: add(s, r, "first"),
        lambda s, r: add(s, r, "1.0"),
        lambda s, r: add(s, r, "0.0 "),
        lambda s, r: s.update_target(r, 0, state="asleep"),
        lambda s, r: s.add_target(r, 1, {"fingerprint": "f", "granularity": "atom"}),
        lambda s, r: s.add_target(r, -1, {"fingerprint": "f"}),
        lambda s, r: s.target(r, 5),
        lambda s, r: s.node(r, "0.9"),
        lambda s, r: s.update_run(r, colour="blue"),
        lambda s, r: s.update_run(r, state="asleep"),
        lambda s, r: s.update_run("nobody", state="done"),
        lambda s, r: s.set_decision("nobody", 0, {}),
        lambda s, r: s.add_event("nobody", "x"),
        lambda s, r: s.add_event(r, "x", {"bad": object()}),
        lambda s, r: s.replace_evaluation(r, "0.9", {"verdict": "wrong"}),
        lambda s, r: s.replace_evaluation(r, "0.9", {"verdict": "fine"}),
        lambda s, r: s.blob("00"),
    ],
)
def test_impossible_requests_are_errors(store, call):
    """A record that does not belong anywhere must be refused with a StoreError, never kept."""
    run = store.create_run()
    store.add_target(run, 0, {"fingerprint": "f"})
    with pytest.raises(StoreError):
        call(store, run)
    assert store.nodes(run) == []
    assert store.events(run) == []


def test_confirmation_replaces_the_evaluation(store):
    """The winner's figure on fresh samples must be the one that is kept, with its log."""
    run = store.create_run()
    store.add_target(run, 0, {"fingerprint": "f"})
    add(store, run, "0.0", Evaluation(Verdict.ACCEPTED, "2x", log="first"))
    store.replace_evaluation(
        run, "0.0", Evaluation(Verdict.SLOWER, "luck", log="again").to_document()
    )
    found = store.node(run, "0.0")["evaluation"]
    assert (found["verdict"], found["log"]) == ("slower", "again")


def test_events_are_appended_in_order(store):
    """Readers follow the log by number: nothing is missed, nothing comes twice."""
    run, other = store.create_run(), store.create_run()
    numbers = [store.add_event(run if i % 2 else other, "k", {"i": i}) for i in range(6)]
    assert numbers == sorted(numbers)
    seen = store.events(run, limit=2)
    seen += store.events(run, after=seen[-1]["seq"])
    assert [e["record"]["i"] for e in seen] == [1, 3, 5]


def test_blobs_are_kept_once(store):
    """Equal sources are stored once; bytes and odd text come back exactly."""
    text = "surrogate \udcff and ü"
    assert store.put_blob(text) == store.put_blob(text)
    assert store.blob(store.put_blob(text)).decode("utf-8", "surrogateescape") == text
    assert store.blob(store.put_blob(b"\x00\xff")) == b"\x00\xff"


def test_entries_keep_plain_data(store):
    """Plain data is kept by key, the latest value counts, a missing key is a default."""
    run = store.create_run()
    store.put_entry(run, "rates", {"a": [1, 2.5, math.inf]})
    store.put_entry(run, "rates", {"a": [3]})
    assert store.entry(run, "rates") == {"a": [3]}
    assert store.entry(run, "other", 7) == 7


def test_deleting_a_run_keeps_the_others(store, example):
    """Deleting removes a run with its sources, but none that another run uses."""
    one, two = fill(store, example), fill(store, example)
    before = store.nodes(two, sources=True)
    store.update_run(one, state="done")
    store.delete_run(one)
    assert [r["id"] for r in store.runs()] == [two]
    assert store.nodes(two, sources=True) == before
    store.delete_run(two)
    with store.database.read() as c:
        assert c.execute("SELECT count(*) FROM blobs").fetchone()[0] == 0
        assert c.execute("SELECT count(*) FROM nodes").fetchone()[0] == 0


def test_threads_share_a_store(store, example):
    """The run thread writes while others read: each reader sees whole nodes only."""
    run = store.create_run()
    for target in example["targets"]:
        store.add_target(run, target["index"], target)
    problems, done = [], threading.Event()

    def watch():
        while not done.is_set():
            ids = {n["id"] for n in store.nodes(run)}
            booked = {c["node"] for c in store.costs(run)}
            if not ids <= booked:  # costs are read later, so they can only be more
                problems.append(ids - booked)

    watchers = [threading.Thread(target=watch) for _ in range(2)]
    for w in watchers:
        w.start()
    for node, cost in zip(example["nodes"], example["costs"], strict=True):
        put_node(store, run, node, example["details"][node["id"]], cost)
    done.set()
    for w in watchers:
        w.join()
    assert problems == []
    assert len(store.nodes(run)) == len(example["nodes"])


WRITER = """
import sys
from kforge_nb.store import Store
store = Store(sys.argv[1])
run = store.create_run(sys.argv[2])
store.add_target(run, 0, {"fingerprint": "f"})
for i in range(60):
    store.add_node(run, f"0.{i}", target=0, parent=None, action="draft",
                   candidate={"source": f"{sys.argv[2]} {i}"}, evaluation={"verdict": "wrong"},
                   cost={"usd": 0.5})
store.update_run(run, state="done")
"""


def test_two_processes_write_two_runs(tmp_path):
    """Two notebooks on one store: both runs must be complete, and neither fails on a lock."""
    path = tmp_path / "store.db"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stderr=subprocess.PIPE)
        for name in ("one", "two")
    ]
    errors = [w.communicate(timeout=120)[1] for w in writers]
    assert [w.returncode for w in writers] == [0, 0], errors
    with Store(path) as store:
        for name in ("one", "two"):
            run = store.find_run(name)
            rows = store.nodes(run, sources=True)
            assert [r["candidate"]["source"] for r in rows] == [f"{name} {i}" for i in range(60)]
            assert sum(c["usd"] for c in store.costs(run)) == 30.0


def test_the_store_needs_no_heavy_imports():
    """Opening a store must load neither torch nor pandas nor jsonschema."""
    code = (
        "import sys, kforge_nb.store, kforge_nb.store.frames, kforge_nb.store.document\n"
        "import kforge_nb.search.mcts, kforge_nb.search.allocate, kforge_nb.search.stopping\n"
        "print([m for m in ('torch', 'pandas', 'jsonschema', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
