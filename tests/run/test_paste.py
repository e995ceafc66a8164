"""A run whose kernels come from a chat window, through the handle and across a restart."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from kforge_nb.errors import BadInput, StoreError
from kforge_nb.options import OptimizeOptions
from kforge_nb.proposers import paste as proposing
from kforge_nb.run.conductor import Conductor, Tools
from kforge_nb.run.handle import Run
from kforge_nb.run.reload import works_of
from kforge_nb.run.source import StoreSource
from kforge_nb.run.writers import make_writer

PATIENCE_S = 30
SOURCE = """#include <cstdint>
extern "C" void mine(const float* in0, float* out0, int64_t n, int32_t nthreads) {
  for (int64_t i = 0; i < n; ++i) out0[i] = in0[i]; // NUMBER
}"""
PLAN = '{"kernels": [{"name": "mine", "args": ["in0", "out0", "i64:numel(in0)", "i32:nthreads"]}]}'


def answer(number):
    """A good answer, another one for each number."""
    return f"```cpp\n{SOURCE.replace('NUMBER', str(number))}\n```\n```json\n{PLAN}\n```"


@pytest.fixture
def paste(stage):
    """A stage whose runs ask two prompts at once."""
    writer = make_writer(OptimizeOptions.of({"proposer": "paste", "parallel": 2}))
    stage.tools = lambda: Tools(
        stage.judge.session,
        writer.proposer,
        stage.guard,
        {"name": "test"},
        writer.parallel,
        writer.opened,
    )
    return stage


def waiting(run, count):
    """The run's prompts, once there are so many."""
    deadline = time.monotonic() + PATIENCE_S
    while len(run.prompts) != count:
        assert time.monotonic() < deadline, f"{len(run.prompts)} prompts instead of {count}"
        time.sleep(0.01)
    return run.prompts


def test_answers_are_judged_and_counted(paste):
    """Two prompts wait, their answers join the tree, and the cost is told as nothing."""
    conductor = paste.conductor(budget=2)
    conductor.start()
    run = Run(StoreSource(conductor.record))
    first, second = waiting(run, 2)
    assert conductor.compact()["progress"]["prompts"] == 2
    assert "%%kforge answer" in repr(run.prompts)
    run.answer(second.id, answer(1))
    run.answer(first.id, answer(2))

    assert conductor.join(PATIENCE_S)
    nodes = run.document["details"]
    assert {answer(1), answer(2)} == {d["answer"] for d in nodes.values()}
    assert [c["usd"] for c in run.document["costs"]] == [0.0, 0.0]
    assert all(c["estimated"] for c in run.document["costs"])
    assert run.prompts == []


def test_stopping_a_target_takes_its_prompts_back_at_once(paste):
    """Where its prompts fill all the room there is, it ends all the same and makes room."""
    conductor = paste.conductor(budget=4, targets=2)
    conductor.wishes.pause(1)
    conductor.start()
    run = Run(StoreSource(conductor.record))
    assert [p.target for p in waiting(run, 2)] == [0, 0]

    run.resume(target=1)
    run.stop(target=0)
    deadline = time.monotonic() + PATIENCE_S
    while run.document["targets"][0]["state"] != "done":
        assert time.monotonic() < deadline, "the stopped target does not end"
        time.sleep(0.01)
    assert run.document["targets"][0]["state_reason"] == "stopped by the user"
    assert [p.target for p in waiting(run, 2)] == [1, 1]
    run.stop()


def test_a_prompt_that_comes_up_after_the_stop_of_its_target_is_taken_back(paste, monkeypatch):
    """A prompt may still be in the making when its target is stopped; nobody must answer it."""
    made, render = threading.Event(), proposing.render

    def slowly(*given):
        assert made.wait(PATIENCE_S)
        return render(*given)

    monkeypatch.setattr(proposing, "render", slowly)
    conductor = paste.conductor(budget=4)
    conductor.start()
    run = Run(StoreSource(conductor.record))
    (work,) = conductor.works
    deadline = time.monotonic() + PATIENCE_S
    while work.tree.root.pending < 2:
        assert time.monotonic() < deadline, "two prompts are not in the making"
        time.sleep(0.01)
    run.stop(target=0)
    while not work.closing:
        assert time.monotonic() < deadline, "the stop is not acted on"
        time.sleep(0.01)
    made.set()

    assert conductor.join(PATIENCE_S)
    assert run.document["targets"][0]["state_reason"] == "stopped by the user"


def test_an_answer_that_cannot_be_stored_is_a_warning(paste, monkeypatch, caplog):
    """What a user typed into the view is not lost in silence when the disk is full."""
    conductor = paste.conductor(budget=1)
    conductor.start()
    run = Run(StoreSource(conductor.record))
    (prompt,) = waiting(run, 1)

    def full(*_args, **_fields):
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "kforge_nb.run"):
        patch.setattr(conductor.proposer, "answer", full)
        conductor._command({"name": "answer", "id": prompt.id, "text": answer(1)})
    run.stop()
    assert "was not taken: the disk is full" in caplog.text


def test_an_answer_survives_a_restart(paste):
    """Prompts are made again after a kernel is gone, and an answer that was given is not lost."""
    conductor = paste.conductor(budget=2)
    paste.judge.gate.clear()
    conductor.start()
    run = Run(StoreSource(conductor.record))
    first, _ = waiting(run, 2)
    run.answer(first.id, answer(1))
    assert paste.judge.began.wait(PATIENCE_S)
    run.stop()
    assert paste.store.nodes(conductor.record.id) == []

    paste.judge.gate.set()
    again = Conductor(
        conductor.record, works_of(conductor.record), conductor.options, "here", paste.tools()
    )
    again.start()
    (left,) = waiting(run, 1)
    run.answer(left.id, answer(2))
    assert again.join(PATIENCE_S)
    assert len(paste.store.nodes(conductor.record.id)) == 2
    assert {answer(1), answer(2)} <= {d["answer"] for d in run.document["details"].values()}


def test_prompts_end_with_a_run_that_fails(paste, monkeypatch):
    """What fails the run takes the prompts back that still wait, and says so in the record."""
    conductor = paste.conductor(budget=2)
    conductor.start()
    run = Run(StoreSource(conductor.record))
    first, second = waiting(run, 2)
    proposer = conductor.proposer

    def failing(*_args):
        raise StoreError("the disk is full")

    monkeypatch.setattr(conductor.record, "add_node", failing)
    run.answer(first.id, answer(1))
    assert conductor.join(PATIENCE_S)
    assert conductor.record.run["state"] == "failed"
    deadline = time.monotonic() + PATIENCE_S
    while proposer.prompts:
        assert time.monotonic() < deadline, "a prompt of a failed run still waits"
        time.sleep(0.01)
    (left,) = [c for c in run.document["costs"] if c["node"] == second.id]
    assert (left["state"], left["problem"]) == ("done", "taken back: the search has ended")


def test_runs_that_ask_nothing_say_so(stage):
    """An answer to a run of another proposer, or one that has ended, is told why it is refused."""
    conductor = stage.conductor()
    stage.judge.gate.clear()
    conductor.start()
    run = Run(StoreSource(conductor.record))
    with pytest.raises(BadInput, match="--proposer paste"):
        run.answer("0.0", "text")
    assert repr(run.prompts) == "no prompt of run r waits for an answer"
    stage.judge.gate.set()
    assert conductor.join(PATIENCE_S)
    with pytest.raises(BadInput, match="has ended"):
        run.answer("0.0", "text")


def test_the_views_box_answers_and_its_button_pauses(paste):
    """What a page sends reaches the run: an answer its prompt, Pause the search, both at once."""
    conductor = paste.conductor(budget=1)
    conductor.start()
    run = Run(StoreSource(conductor.record))
    (prompt,) = waiting(run, 1)
    conductor._command({"name": "pause"})
    assert conductor.compact()["progress"]["paused"]
    conductor._command({"name": "resume"})
    assert not conductor.compact()["progress"]["paused"]
    conductor._command({"name": "answer", "id": "9.9", "text": "too late"})
    conductor._command({"name": "answer", "id": prompt.id, "text": answer(1)})

    assert conductor.join(PATIENCE_S)
    assert len(paste.store.nodes(conductor.record.id)) == 1
