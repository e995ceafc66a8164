"""Pause, resume and stop for single targets: from Python, the view and the store."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from kforge_nb.errors import BadInput, StoreError
from kforge_nb.run.conductor import Conductor
from kforge_nb.run.handle import Run
from kforge_nb.run.reload import works_of
from kforge_nb.run.source import StoreSource

PATIENCE_S = 30


def until(condition, what):
    """Polls until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)


@pytest.fixture
def begun(stage):
    """A run over two targets whose first candidates are being judged, and its handle."""
    conductor = stage.conductor(targets=2, budget=12)
    stage.judge.gate.clear()
    conductor.start()
    assert stage.judge.began.wait(PATIENCE_S)
    until(lambda: len(conductor.compact()["progress"]["judging"]) == 2, "two under way")
    return conductor, Run(StoreSource(conductor.record))


def row(run, index):
    """One target's row of the document."""
    return run.document["targets"][index]


def judged(run, index):
    """How many candidates of a target are in the document."""
    return sum(n["target"] == index for n in run.document["nodes"])


def test_what_is_being_judged_is_in_the_live_document_only(begun, stage):
    """A view sees target, node and title of each candidate under way; a saved run has none."""
    conductor, run = begun
    judging = conductor.compact()["progress"]["judging"]

    assert [j["node"] for j in judging] == ["0.0", "1.0"]
    assert [j["title"] for j in judging] == ["c1", "c2"]
    assert all(j["seconds"] >= 0 for j in judging)
    stage.judge.gate.set()
    run.wait(PATIENCE_S)
    assert "judging" not in run.document["progress"]


def test_a_stopped_target_ends_with_its_best_and_the_others_go_on(begun, stage):
    """What is under way is still judged; then it is done, and the budget is the other's."""
    _, run = begun
    run.stop(target=0)
    assert row(run, 0)["stopping"] is True
    assert run.state == "searching"

    stage.judge.gate.set()
    assert run.wait(PATIENCE_S).state == "done"

    assert judged(run, 0) == 1
    assert judged(run, 1) == 11
    target = row(run, 0)
    assert (target["state"], target["state_reason"]) == ("done", "stopped by the user")
    assert target["best"] == "0.0"
    assert (target["stopping"], target["stopped"]["by"]) == (False, "user")
    assert row(run, 1)["stopped"]["by"] == "run"


def test_a_paused_target_gets_no_more_proposals_until_it_is_resumed(begun, stage):
    """The other target uses what is left; resuming lets the held one go on."""
    conductor, run = begun
    run.pause(target=1)
    assert "target 1 paused" in run.status()
    run.stop(target=0)
    stage.judge.gate.set()
    until(lambda: row(run, 0)["state"] == "done", "the end of target 0")
    until(lambda: "nothing else to do" in run.status(), "the run to wait")

    assert judged(run, 1) == 1
    assert conductor.alive
    seconds = run.document["progress"]["seconds"]
    run.resume(target=1)
    assert run.wait(PATIENCE_S).state == "done"
    assert judged(run, 0) + judged(run, 1) == 12
    assert row(run, 1)["paused"] is False
    assert run.document["progress"]["seconds"] >= seconds


def test_waiting_for_the_user_is_not_searching(begun, stage):
    """Time in which all that is left is paused does not count against the time limit."""
    conductor, run = begun
    run.pause(target=0)
    run.pause(target=1)
    stage.judge.gate.set()
    until(lambda: "nothing else to do" in run.status(), "the run to wait")
    before = conductor._at_work.seconds
    time.sleep(0.3)
    run.resume(target=0)
    run.resume(target=1)
    assert run.wait(PATIENCE_S).state == "done"

    assert conductor.control.paused_for >= 0.3
    assert run.document["progress"]["seconds"] >= before


def test_stop_ends_a_run_whose_targets_are_all_paused(begun, stage):
    """A run that waits for its user can always be ended."""
    _, run = begun
    run.pause(target=0)
    run.pause(target=1)
    stage.judge.gate.set()
    until(lambda: "nothing else to do" in run.status(), "the run to wait")

    run.stop()

    assert run.state == "stopped"


def test_wishes_survive_the_end_of_the_session(begun, stage):
    """A resumed run still holds the paused target, and ends the stopped one without a candidate."""
    conductor, run = begun
    run.pause(target=0)
    run.stop(target=1)
    run.stop()
    assert run.state == "stopped"
    assert (judged(run, 0), judged(run, 1)) == (0, 0)

    stage.judge.gate.set()
    again = Conductor(
        conductor.record, works_of(conductor.record), conductor.options, "here", stage.tools()
    )
    again.start()
    until(lambda: row(run, 1)["state"] == "done", "the end of target 1")
    until(lambda: "nothing else to do" in run.status(), "the run to wait")
    assert (judged(run, 0), judged(run, 1)) == (0, 0)
    run.resume(target=0)
    assert run.wait(PATIENCE_S).state == "done"
    assert judged(run, 0) == 12


def test_the_buttons_of_the_view_do_the_same(begun, stage):
    """A command with a target holds and ends that target; rubbish changes nothing."""
    conductor, run = begun
    rubbish = [None, {}, "1", 1.0, True, -1, 7, [0], "x" * 100]
    for target in rubbish:
        conductor._command({"name": "stop", "target": target} if target is not None else {})
    for name in (None, 3, "format", {"a": 1}):
        conductor._command({"name": name, "target": 0})
        conductor._command({"name": name})
    assert not conductor.control.stop.is_set()
    assert not conductor.control.paused
    assert [w.paused or w.ending for w in conductor.works] == ["", ""]

    conductor._command({"name": "pause", "target": 0})
    conductor._command({"name": "resume", "target": 0})
    conductor._command({"name": "stop", "target": 0})
    conductor._command({"name": "pause"})
    assert conductor.compact()["progress"]["paused"] is True
    conductor._command({"name": "resume"})
    stage.judge.gate.set()
    assert run.wait(PATIENCE_S).state == "done"
    assert row(run, 0)["state_reason"] == "stopped by the button"


def test_after_the_end_buttons_do_nothing(begun, stage):
    """A page that was left open may still send; the ended run stays as it is."""
    conductor, run = begun
    stage.judge.gate.set()
    run.wait(PATIENCE_S)
    before = run.document
    for name in ("stop", "pause", "resume", "answer"):
        conductor._command({"name": name})
        conductor._command({"name": name, "target": 0})

    assert run.document == before
    assert not conductor.control.paused


def test_stopping_is_shown_until_the_end(begun):
    """From the click to the end every view says that the run is stopping."""
    conductor, run = begun
    assert conductor.compact()["progress"]["stopping"] is False
    conductor.control.request_stop("stopped by the button")
    shown = conductor.compact()["progress"]
    assert shown.get("stopping") or not conductor.alive
    run.wait(PATIENCE_S)
    assert "stopping" not in run.document["progress"]


def test_a_target_that_is_not_searched_is_said(begun, stage):
    """An unknown target, and one that has ended, are bad input with what there is."""
    _, run = begun
    with pytest.raises(BadInput, match="searches no target 7; it searches 0, 1"):
        run.pause(target=7)
    with pytest.raises(BadInput, match="searches no target True"):
        run.stop(target=True)
    run.stop(target=0)
    stage.judge.gate.set()
    run.wait(PATIENCE_S)
    with pytest.raises(BadInput, match="has ended"):
        run.stop(target=0)


def test_the_place_where_a_rule_fired_is_kept(stage):
    """A target that its own rule ended says when, why, and what the run had spent by then."""
    stage.judge.ratios = [1.5, 1.0]
    conductor = stage.conductor(targets=2, budget=30, patience=4)
    conductor.start()
    assert conductor.join(PATIENCE_S)
    run = Run(StoreSource(conductor.record))

    nodes = run.document["nodes"]
    for target in run.document["targets"]:
        stopped = target["stopped"]
        assert stopped["by"] == "rule"
        assert stopped["reason"] == target["state_reason"]
        assert "4 candidates in a row" in stopped["reason"]
        assert stopped["judged"] == sum(n["created"] <= stopped["at"] for n in nodes)
        assert (stopped["calls"], stopped["usd"]) == (0, 0.0)
        assert stopped["seconds"] > 0
    assert max(t["stopped"]["judged"] for t in run.document["targets"]) == len(nodes)


@pytest.mark.parametrize("wish", ["stop", "pause"])
def test_a_wish_comes_before_the_end_of_its_target_or_too_late(stage, monkeypatch, wish):
    """One asked while the run thread writes the end down is refused and leaves no flag behind."""
    conductor = stage.conductor(targets=1)
    (work,), record = conductor.works, conductor.record
    writing, go_on, refused = threading.Event(), threading.Event(), threading.Event()
    store = record.set_target

    def slowly(index, **fields):
        store(index, **fields)
        if "state" in fields:
            writing.set()
            assert go_on.wait(PATIENCE_S)

    def ask():
        try:
            getattr(conductor.wishes, wish)(0)
        except BadInput:
            refused.set()

    monkeypatch.setattr(record, "set_target", slowly)
    ending = threading.Thread(target=work.set, args=("done", "enough"), daemon=True)
    ending.start()
    assert writing.wait(PATIENCE_S)
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(0.2)  # unlocked, it would be through by now
    go_on.set()
    ending.join(PATIENCE_S)
    asking.join(PATIENCE_S)

    assert refused.is_set()
    assert (work.ending, work.paused) == ("", False)
    left = row(Run(StoreSource(record)), 0)
    assert (left["paused"], left["stopping"]) == (False, False)


def test_a_target_that_fails_wants_nothing_any_more(begun, stage):
    """A stop that was asked of it is no longer shown as under way when its judge has failed."""
    _, run = begun
    run.stop(target=0)
    stage.judge.error = RuntimeError("the compiler crashed")
    stage.judge.gate.set()
    run.wait(PATIENCE_S)

    assert (row(run, 0)["state"], row(run, 0)["stopping"]) == ("failed", False)


def test_a_stop_that_cannot_be_stored_still_stops(begun, stage, monkeypatch, caplog):
    """A full disk does not cost the user their Stop; what is lost with it is a warning."""
    conductor, run = begun
    store = conductor.record.set_target

    def full(index, **fields):
        if "stopping" in fields and "state" not in fields:
            raise StoreError("the disk is full")
        store(index, **fields)

    monkeypatch.setattr(conductor.record, "set_target", full)
    with caplog.at_level(logging.WARNING, "kforge_nb.run"):
        conductor._command({"name": "stop", "target": 0})
    stage.judge.gate.set()
    assert run.wait(PATIENCE_S).state == "done"

    assert row(run, 0)["state_reason"] == "stopped by the button"
    assert judged(run, 0) == 1
    assert "the disk is full" in caplog.text
