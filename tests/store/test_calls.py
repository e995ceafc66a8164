"""Calls of language models in the store: what is written before, what after, what is left open."""

import hashlib
import json
import sqlite3

import pytest

from kforge_nb.errors import StoreError
from kforge_nb.store import Store, document
from kforge_nb.store.migrations import MIGRATIONS
from tests.store.filling import fill, put_node

CALL = {"target": 0, "model": "m", "prompt": "v1", "text": "write a kernel", "worst_usd": 0.5}
ANSWER = {"usd": 0.02, "seconds": 1.5, "tokens_in": 100, "tokens_cached": 60, "tokens_out": 40}


@pytest.fixture
def run(store, example):
    """A run that holds the example's nodes."""
    return fill(store, example)


def test_an_open_call_counts_at_its_worst(store, run):
    """What may have been spent counts before the answer is there, in the document too."""
    store.begin_call(run, node="0.90", **CALL)

    last = document.validate(document.build(store, run))["costs"][-1]
    assert (last["usd"], last["state"], last["calls"]) == (0.5, "open", 1)


def test_an_ended_call_holds_what_it_cost(store, run):
    """After the answer the row has the real price and every kind of token."""
    number = store.begin_call(run, node="0.90", **CALL)
    store.end_call(number, **ANSWER, tokens_reasoning=7, estimated=True, model="m-2", answer="text")

    last = store.costs(run)[-1]
    assert last["usd"] == 0.02
    kinds = ("tokens_in", "tokens_cached", "tokens_out", "tokens_reasoning")
    assert [last[kind] for kind in kinds] == [100, 60, 40, 7]
    assert (last["model"], last["estimated"], last["state"]) == ("m-2", True, "done")
    (call,) = store.calls(run)
    assert (call["sent"], call["answer"]) == ("write a kernel", "text")


def test_a_call_ends_once(store, run):
    """A second end would book the money again, so it is an error."""
    number = store.begin_call(run, node="0.90", **CALL)
    store.end_call(number, **ANSWER)

    with pytest.raises(StoreError, match=f"no open call {number}"):
        store.end_call(number, **ANSWER)


def test_calls_of_a_dead_process_are_lost_but_paid(store, run):
    """Resume finds a call without an answer: it keeps its worst price and says why."""
    store.begin_call(run, node="0.90", **CALL)

    assert store.lose_calls(run) == 1
    last = store.costs(run)[-1]
    assert (last["usd"], last["state"]) == (0.5, "lost")
    assert "may have been paid" in last["problem"]
    assert store.lose_calls(run) == 0


def test_an_answer_of_an_earlier_session_is_taken_once(store, run, example):
    """An answer that came just before the kernel died is found again, once, and not if judged."""
    number = store.begin_call(run, node="0.90", **CALL)
    last = store.last_call(run)
    assert (last, store.take_answer(run, "write a kernel", last)) == (number, None)
    store.end_call(number, **ANSWER, answer="text")
    assert store.take_answer(run, "write a kernel", last - 1) is None
    assert store.take_answer(run, "write another", last) is None
    assert store.take_answer(run, "write a kernel", last) == "text"
    assert store.take_answer(run, "write a kernel", last) is None
    assert store.costs(run)[-1]["usd"] == 0.02

    number = store.begin_call(run, node="0.91", **CALL)
    store.end_call(number, **ANSWER, answer="judged")
    node = {**example["nodes"][0], "id": "0.91", "parent": None}
    put_node(store, run, node, example["details"]["0.0"])
    assert store.take_answer(run, "write a kernel", number) is None


def test_an_answer_with_notes_is_taken_too(store, run):
    """What was odd about a call does not make its answer be paid for twice; a failed one has none.

    The notes stay, and so does the answer when it was taken and lost once more.
    """
    number = store.begin_call(run, node="0.90", **CALL)
    store.end_call(number, **ANSWER, answer="text", problem="the endpoint reported no usage")
    failed = store.begin_call(run, node="0.91", **CALL)
    store.end_call(failed, **ANSWER, problem="the call was stopped")

    assert store.take_answer(run, "write a kernel", failed) == "text"
    assert store.take_answer(run, "write a kernel", failed) is None
    noted = store.costs(run)[-2]["problem"]
    assert noted.startswith("the endpoint reported no usage; ")
    again = store.begin_call(run, node="0.92", **CALL)
    store.end_call(again, **ANSWER, answer="text", problem="answered in an earlier session")
    assert store.take_answer(run, "write a kernel", again) == "text"


def test_texts_with_halves_of_characters_are_kept(store, run):
    """A text that is no UTF-8 is stored with the odd signs replaced, and found again by itself."""
    number = store.begin_call(run, node="0.90", **{**CALL, "text": "write \ud83d"})
    store.end_call(number, **ANSWER, answer="\ude00 text")

    assert store.take_answer(run, "write \ud83d", number) == "\ufffd text"


def test_details_tell_what_was_asked_and_answered(store, run, example):
    """A node's details hold the first prompt and the last answer, and redaction removes both."""
    first = store.begin_call(run, node="0.0", **CALL)
    store.end_call(first, **ANSWER, answer="broken")
    second = store.begin_call(run, node="0.0", **{**CALL, "text": "again", "purpose": "format"})
    store.end_call(second, **ANSWER, answer="mended")

    built = document.build(store, run)
    assert built["details"]["0.0"]["prompt"] == "write a kernel"
    assert built["details"]["0.0"]["answer"] == "mended"
    assert document.details_of(store, run, "0.0") == built["details"]["0.0"]
    bare = document.redacted(built)
    assert bare["details"]["0.0"]["prompt"] == bare["details"]["0.0"]["answer"] == ""
    assert {c["model"] for c in bare["costs"]} == {""}


def test_deleting_a_run_keeps_the_texts_of_others(store, run, example):
    """Prompts and answers are blobs like sources: kept while a run needs them, gone with it."""
    other = fill(store, example, "other")
    for owner, text in ((run, "mine"), (other, "theirs")):
        number = store.begin_call(owner, node="0.90", **{**CALL, "text": text})
        store.end_call(number, **ANSWER, answer=f"answer to {text}")
    store.delete_run(other)

    (call,) = store.calls(run)
    assert (call["sent"], call["answer"]) == ("mine", "answer to mine")
    with pytest.raises(StoreError, match="holds no blob"):
        store.blob(hashlib.sha256(b"theirs").hexdigest())


def test_a_store_of_before_gets_the_new_columns(tmp_path):
    """A store of the first version opens, and its bookings read as calls that are done."""
    path = tmp_path / "old.db"
    with Store(path) as store:
        run = store.create_run("old")
        store.add_cost(run, usd=0.25, calls=1)
    raw = sqlite3.connect(path)
    for name in ("costs_sent", "costs_answer"):
        raw.execute(f"DROP INDEX {name}")
    for statement in MIGRATIONS[1][:10]:
        raw.execute(f"ALTER TABLE costs DROP COLUMN {statement.split()[5]}")
    raw.execute("PRAGMA user_version = 1")
    raw.commit()
    raw.close()

    with Store(path) as store:
        (row,) = store.costs(run)
        assert (row["usd"], row["state"], row["model"]) == (0.25, "done", "")
        assert store.begin_call(run, node=None, **{**CALL, "target": None}) > 0


def test_a_document_of_version_1_is_read_as_one_of_today(tmp_path, example):
    """A file saved before calls were told opens, with nothing asked and every booking done."""
    old = json.loads(json.dumps(example))
    old["schema"] = "kforge.run/1"
    for key in ("paused", "prompts", "calls"):
        del old["progress"][key]
    for cost in old["costs"]:
        for key in (
            "tokens_cached",
            "tokens_reasoning",
            "estimated",
            "model",
            "prompt",
            "purpose",
            "state",
        ):
            del cost[key]
        del cost["problem"]
    path = tmp_path / "old.kforge.json"
    path.write_text(json.dumps(old))

    assert document.load(path) == example
