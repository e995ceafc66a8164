"""A recorded run or transcript drives a run again: same nodes, same order, no network."""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict

import pytest

from kforge_nb.errors import BadInput, DocumentError
from kforge_nb.options import OptimizeOptions
from kforge_nb.proposers.protocol import Failure
from kforge_nb.proposers.replay import ReplayProposer, read_recording
from kforge_nb.proposers.transcript import Entry, Transcript
from kforge_nb.run.conductor import Conductor, Tools
from kforge_nb.run.handle import Run
from kforge_nb.run.reload import works_of
from kforge_nb.run.script import PLAYED
from kforge_nb.run.source import StoreSource
from kforge_nb.run.writers import make_writer
from tests.proposers.talk import good
from tests.run.conftest import FakeBench, target_of

PATIENCE_S = 30


def finish(conductor):
    """Runs to the end; the document."""
    conductor.start()
    assert conductor.join(PATIENCE_S)
    return Run(StoreSource(conductor.record)).document


def shape(document):
    """What was proposed, where and in which order, without what was measured."""
    nodes = sorted(document["nodes"], key=lambda n: n["created"])
    details = document["details"]
    return [
        (
            n["target"],
            n["parent"],
            n["action"],
            details[n["id"]]["source"],
            n["verdict"] == "refused",
        )
        for n in nodes
    ]


@pytest.fixture
def recorded(stage, tmp_path):
    """A file with a run over two targets, one failed answer among its nodes; its document."""
    propose = stage.proposer.propose
    failure = Failure("the answer holds no fenced block", "no", origin={"proposer": "openai"})
    stage.proposer.propose = lambda request: (
        failure if len(stage.proposer.requests) == 2 and not stage.failed else propose(request)
    )
    stage.failed = []
    kept = stage.proposer.propose

    def once(request):
        found = kept(request)
        if found is failure:
            stage.failed.append(request)
        return found

    stage.proposer.propose = once
    stage.judge.ratios = [1.1, 1.5, 0.9, 1.3, 1.2, 1.6, 1.0, 1.1, 1.7, 1.4]
    conductor = stage.conductor(name="first", budget=10, targets=2)
    document = finish(conductor)
    path = Run(StoreSource(conductor.record)).save(tmp_path / "first.kforge.json")
    return path, document


def replaying(stage, path, **options):
    """A conductor that plays a recording."""
    writer = make_writer(OptimizeOptions.of({"proposer": "replay", "recording": str(path)}))
    stage.tools = lambda: Tools(stage.judge.session, writer.proposer, stage.guard, {"name": "test"})
    return stage.conductor(**{"targets": 2, "budget": 50, **options})


def test_a_run_is_played_again_node_by_node(stage, recorded):
    """With other timings the same candidates come in the same places and the same order."""
    path, document = recorded
    assert len(stage.failed) == 1
    stage.judge.judged.clear()
    stage.judge.ratios = [0.7, 2.5, 1.2]
    again = finish(replaying(stage, path, name="again"))

    assert shape(again) == shape(document)
    assert PLAYED in again["state_reason"]
    assert sum(refused for *_, refused in shape(again)) == 1


def test_late_verdicts_keep_their_recorded_places(stage, recorded, monkeypatch):
    """Of two candidates at once the second is judged first, and the order stays the recording's."""
    path, document = recorded
    evaluate, started, ended = FakeBench.evaluate, itertools.count(), defaultdict(threading.Event)

    def second_first(bench, candidate, stop=None):
        place = next(started)
        if place % 2 == 0 and ended[place + 1].wait(0.3):
            threading.Event().wait(0.3)  # the other one can have landed, if it may
        found = evaluate(bench, candidate, stop)
        ended[place].set()
        return found

    monkeypatch.setattr(FakeBench, "evaluate", second_first)
    again = finish(replaying(stage, path, name="again"))
    assert shape(again) == shape(document)
    assert ended[1].is_set()


def test_a_budget_ends_a_replay_early_and_resume_goes_on(stage, recorded):
    """What was played is not played again, and the rest follows in its order."""
    path, document = recorded
    conductor = replaying(stage, path, name="again", budget=4)
    assert shape(finish(conductor)) == shape(document)[:4]
    options = OptimizeOptions.of({**conductor.options.to_document(), "budget": 50})
    works = works_of(conductor.record)
    for work in works:
        work.set("searching")
    again = Conductor(conductor.record, works, options, "here", stage.tools())

    assert shape(finish(again)) == shape(document)


def test_a_transcript_is_read_again_by_todays_rules(stage, tmp_path):
    """Answers become candidates or failures anew; a mended answer stands for the broken one."""
    target = target_of(0)
    common = {"target": "softmax", "fingerprint": target.fingerprint, "language": "cpp"}
    common |= {"version": "1", "prompt": "d", "characters": 9}
    first = good("out0[i] = in0[i];", "copy")
    parent = ReplayProposer(
        Transcript("paste", entries=[Entry(**common, action="draft", answer=first)])
    )
    digest = parent.steps(target)[0].digest
    entries = [
        Entry(**common, action="draft", answer="no block", problem="no fenced block"),
        Entry(**common, action="draft", answer=first, repaired=True),
        Entry(**common, action="draft", answer="nor here"),
        Entry(**common, action="optimise", answer=good("out0[i] = 2 * in0[i];"), parent=digest),
    ]
    path = tmp_path / "talk.json"
    Transcript("paste", "some-model", entries=entries).save(path)
    stage.judge.ratios = [1.3]
    document = finish(replaying(stage, path, targets=1))

    nodes = document["nodes"]
    assert [n["verdict"] for n in nodes] == ["accepted", "refused", "accepted"]
    assert [n["parent"] for n in nodes] == [None, None, nodes[0]["id"]]
    assert nodes[0]["title"] == "copy"


@pytest.mark.parametrize(
    "limit", ["store.document.LARGEST_BYTES", "proposers.transcript.MAX_BYTES"]
)
def test_a_recording_that_is_too_large_is_not_read(tmp_path, monkeypatch, limit):
    """Size is looked at before anything is taken apart, and the message names the limit."""
    path = tmp_path / "large.json"
    Transcript("paste").save(path)
    assert read_recording(path).entries == []
    monkeypatch.setattr(f"kforge_nb.{limit}", 10)
    with pytest.raises(DocumentError, match=r"above 10 bytes|is larger than"):
        read_recording(path)


def test_halves_of_characters_in_a_recording_are_replaced():
    """A recorded answer is offered as text that a store can hold."""
    target = target_of(0)
    entry = Entry("t", target.fingerprint, "cpp", "draft", "1", "d", 1, "no kernel \ud83d")
    (step,) = ReplayProposer(Transcript("paste", entries=[entry])).steps(target)
    assert step.proposal.text == "no kernel \ufffd"


def test_what_is_no_recording_is_said(tmp_path):
    """A missing file, another JSON and a missing option each have their message."""
    with pytest.raises(BadInput, match="--recording PATH"):
        make_writer(OptimizeOptions.of({"proposer": "replay"}))
    with pytest.raises(BadInput, match="there is no recording"):
        read_recording(tmp_path / "none.json")
    for text in ("[1]", "{", json.dumps({"schema": "kforge.transcript/9"})):
        path = tmp_path / "other.json"
        path.write_text(text)
        with pytest.raises(DocumentError):
            read_recording(path)
