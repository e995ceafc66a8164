"""The widget's traits and who may write them; its life in a kernel is in test_kernel.py."""

from __future__ import annotations

import threading

import pytest

from kforge_nb.view import BUNDLE

if not BUNDLE.is_file():
    pytest.skip("the view is not built; run `python hatch_build.py`", allow_module_level=True)

from kforge_nb.view.deltas import apply
from kforge_nb.view.widget import Publisher
from tests.view.large import large


def ask(widget, **value):
    """What a message from the browser does."""
    widget.set_state(value)


@pytest.fixture
def stage(document):
    """A publisher, the commands it passed on, and the ids it asked details for."""
    commands, asked = [], []

    def details(node_id):
        asked.append((node_id, threading.current_thread().name))
        return document["details"].get(node_id)

    publisher = Publisher(details, commands.append, lambda: [{"id": "0.1", "text": "write"}])
    yield publisher, commands, asked
    publisher.close()


def test_a_document_arrives_without_details(stage, document):
    """The first message is whole and compact, whatever was published."""
    publisher, _, _ = stage
    publisher.publish(lambda: document)
    publisher.flush()
    shown = apply({}, publisher.widget.changes)

    assert shown["nodes"] == document["nodes"]
    assert shown["details"] == {}


def test_later_documents_arrive_as_changes(stage, document):
    """What did not change is not sent again; a page opened late is given all of it."""
    publisher, _, _ = stage
    publisher.publish(document)
    publisher.flush()
    publisher.publish({**document, "state": "guarding"})
    publisher.flush()

    assert publisher.widget.changes == {"seq": 2, "of": 1, "set": {"state": "guarding"}}
    assert apply({}, publisher.widget.get_state()["doc"])["state"] == "guarding"


def test_a_tree_too_large_for_one_message_arrives_in_full(stage):
    """What a message leaves out follows by itself, without another publish."""
    publisher, _, _ = stage
    run = large(600)
    publisher.publish({**run, "nodes": [], "costs": []})
    publisher.flush()
    publisher.publish(run)
    publisher.flush()

    assert publisher.widget.changes["seq"] > 2
    shown = apply({}, publisher.widget.get_state()["doc"])
    assert [row["id"] for row in shown["nodes"]] == [row["id"] for row in run["nodes"]]


def test_a_page_that_missed_a_message_is_sent_the_whole(stage, document, monkeypatch):
    """Servers drop messages under load: the page says so, and gets everything once more."""
    publisher, _, _ = stage
    publisher.publish(document)
    publisher.flush()
    sent = []
    monkeypatch.setattr(publisher.widget, "send_state", sent.append)
    ask(publisher.widget, whole_request={"n": "a.1"})
    publisher.flush()

    assert sent.count("doc") == 1


def test_details_are_answered_by_id_on_the_outbox_thread(stage, document):
    """A click costs one entry, read away from the thread that runs cells."""
    publisher, _, asked = stage
    ask(publisher.widget, detail_request={"id": "0.0", "n": 1})
    publisher.flush()

    assert asked == [("0.0", "kforge-outbox")]
    assert publisher.widget.detail == {"0.0": {"n": ["1"], "details": document["details"]["0.0"]}}


def test_an_unknown_node_is_answered_with_null(stage):
    """The browser is told, so that it does not wait."""
    publisher, _, _ = stage
    ask(publisher.widget, detail_request={"id": "9.9", "n": 1})
    publisher.flush()

    assert publisher.widget.detail == {"9.9": {"n": ["1"], "details": None}}


def test_an_answer_says_which_requests_it_is_newer_than(stage, document):
    """The last number of each page, so that a page knows its own answer from one made before."""
    publisher, _, _ = stage
    for number in ("a.1", "b.1", "a.2"):
        ask(publisher.widget, detail_request={"id": "0.0", "n": number})
    publisher.flush()
    assert publisher.widget.detail["0.0"]["n"] == ["b.1", "a.2"]

    ask(publisher.widget, detail_request={"id": "0.1", "n": "a.3"})
    publisher.flush()
    assert publisher.widget.detail["0.0"]["n"] == ["b.1", "a.2"]
    assert publisher.widget.detail["0.1"]["n"] == ["a.3"]

    for page in range(20):
        ask(publisher.widget, detail_request={"id": "0.0", "n": f"{page}.{'9' * 1000}"})
    publisher.flush()
    numbers = publisher.widget.detail["0.0"]["n"]
    assert [n.partition(".")[0] for n in numbers] == [str(page) for page in range(12, 20)]
    assert max(map(len, numbers)) == 80


def test_two_views_asking_at_once_both_get_an_answer(stage, document):
    """Coalescing never swallows a request, and old answers do not pile up."""
    publisher, _, _ = stage
    ids = [node["id"] for node in document["nodes"][:12]]
    for n, node_id in enumerate(ids):
        ask(publisher.widget, detail_request={"id": node_id, "n": n})
        if n == 1:
            publisher.flush()
            assert set(publisher.widget.detail) == set(ids[:2])
    publisher.flush()

    assert list(publisher.widget.detail) == ids[-8:]


def test_large_answers_do_not_pile_up(stage, document):
    """What was asked before is not sent again beside a long prompt; the newest always goes."""
    publisher, _, _ = stage
    for details in document["details"].values():
        details["prompt"] = "write " * 50_000
    for n, node_id in enumerate(["0.0", "0.1", "0.2"]):
        ask(publisher.widget, detail_request={"id": node_id, "n": n})
        publisher.flush()
        assert list(publisher.widget.detail) == [node_id]


def test_commands_pass_and_nothing_else_does(stage):
    """Stop and pause are passed on once a click; a made-up command is not."""
    publisher, commands, _ = stage
    for n, name in enumerate(["stop", "stop", "pause", "format_disk", None]):
        ask(publisher.widget, command={"name": name, "n": n})

    publisher.close()
    assert [c["name"] for c in commands] == ["stop", "stop", "pause"]


def test_the_callback_of_a_command_returns_at_once(document, caplog):
    """A command that takes long holds no message up, and one that fails does not stop the next."""
    go_on, done = threading.Event(), []

    def command(given):
        assert go_on.wait(10)
        done.append((given["name"], threading.current_thread().name))
        if given["name"] == "stop":
            raise ValueError("broken")

    publisher = Publisher(document["details"].get, command)
    ask(publisher.widget, command={"name": "stop", "n": 1})
    ask(publisher.widget, command={"name": "pause", "n": 2})
    assert done == []
    go_on.set()
    publisher.close()

    assert done == [("stop", "kforge-commands"), ("pause", "kforge-commands")]
    assert "the command 'stop' of the view failed" in caplog.text


def say(widget, **content):
    """What a custom message from the browser does."""
    data = {"method": "custom", "content": content}
    widget._handle_msg({"content": {"comm_id": widget.comm.comm_id, "data": data}, "buffers": []})


def test_a_command_counts_once_however_it_comes(stage):
    """As a message, as a change of the trait, or both in either order, by its number."""
    publisher, commands, _ = stage
    say(publisher.widget, command={"name": "stop", "n": "a.1"})
    ask(publisher.widget, command={"name": "stop", "n": "a.1"})
    ask(publisher.widget, command={"name": "pause", "n": "a.2"})
    say(publisher.widget, command={"name": "pause", "n": "a.2"})
    say(publisher.widget, command={"name": "resume", "n": "a.3"})
    say(publisher.widget, command={"name": "format_disk", "n": "a.4"})
    say(publisher.widget, command=["stop"])
    say(publisher.widget, other=1)

    publisher.close()
    assert [c["name"] for c in commands] == ["stop", "pause", "resume"]


def test_commands_without_a_number_all_count(stage):
    """A notebook's own code may set the trait: there is nothing to tell a repeat by, so none is."""
    publisher, commands, _ = stage
    ask(publisher.widget, command={"name": "pause"})
    ask(publisher.widget, command={"name": "stop"})
    say(publisher.widget, command={"name": "resume"})

    publisher.close()
    assert [c["name"] for c in commands] == ["pause", "stop", "resume"]


def test_malformed_requests_change_nothing(stage):
    """A hostile page can put anything into its own traits."""
    publisher, commands, asked = stage
    ask(publisher.widget, command={"n": 1}, detail_request={"id": ["0.0"], "n": 1})
    publisher.close()

    assert (commands, asked, publisher.widget.detail) == ([], [], {})


def test_prompts_are_sent_beside_the_document_and_answered_by_id(stage, document):
    """What waits for the user has a trait of its own; an answer comes back with id and text."""
    publisher, commands, _ = stage
    publisher.publish(document)
    publisher.flush()
    assert publisher.widget.prompts == [{"id": "0.1", "text": "write"}]

    ask(publisher.widget, command={"name": "answer", "id": "0.1", "text": "a kernel", "n": 1})
    ask(publisher.widget, command={"name": ["answer"], "n": 2})
    publisher.close()
    assert [(c["name"], c["id"], c["text"]) for c in commands] == [("answer", "0.1", "a kernel")]
