"""A run read back from its store goes on where it was, and judges nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge_nb.api import resume
from kforge_nb.errors import BadInput, StoreError
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.run.conductor import Conductor
from kforge_nb.run.record import Record, open_store
from kforge_nb.run.reload import target_of, works_of

PATIENCE_S = 30


def stopped_after(stage, count: int) -> Record:
    """A run that was stopped once ``count`` candidates were judged."""
    conductor = stage.conductor(budget=count)
    conductor.start()
    assert conductor.join(PATIENCE_S)
    record = conductor.record
    stage.store.update_target(record.id, 0, state="searching")
    return record


def test_trees_come_back_as_they_were(stage):
    """Nodes, verdicts, values and candidates of the first session are those of the second."""
    stage.judge.ratios = [1.2, 1.6, 0.8]
    record = stopped_after(stage, 3)

    again = works_of(Record(open_store(stage.store_path), record.id))

    assert len(again) == 1
    tree = again[0].tree
    assert len(tree) == 3
    assert tree.best().evaluation.verdict is Verdict.ACCEPTED
    assert again[0].candidate("0.0").title == "c1"
    assert again[0].target.inputs[0].shape == (2, 4)


def test_a_resumed_run_judges_only_what_is_left(stage):
    """Of a budget of 5 with 3 spent, 2 are judged, as new candidates."""
    record = stopped_after(stage, 3)
    conductor = stage.conductor(name="other", budget=5)
    resumed = Conductor(record, works_of(record), conductor.options, "here", stage.tools())

    resumed.start()

    assert resumed.join(PATIENCE_S)
    nodes = stage.store.nodes(record.id)
    assert len(nodes) == 5
    assert len({n["digest"] for n in nodes}) == 5


def test_a_run_that_is_done_is_not_gone_on_with(stage):
    """Resuming it would only measure the same again: it is refused, and stays as it was."""
    stage.guard = decide
    conductor = stage.conductor()
    conductor.start()
    assert conductor.join(PATIENCE_S)

    with pytest.raises(BadInput, match="run r is done"):
        resume("r", lambda: None, store=stage.store_path)

    assert conductor.record.run["state"] == "done"


def test_a_done_run_with_a_new_winner_may_go_on(stage):
    """A kernel from a cell that became the winner since still has to be measured in the model."""
    stage.guard = decide
    conductor = stage.conductor()
    conductor.start()
    assert conductor.join(PATIENCE_S)
    record = conductor.record
    record.set_target(0, best="0.0" if conductor.works[0].confirmed != "0.0" else "0.1")

    with pytest.raises(BadInput, match=r"called no torch\.nn\.Module"):
        resume("r", lambda: None, store=stage.store_path)


def decide(conductor):
    """A guard that decides about the confirmed winner without measuring."""
    work, record = conductor.works[0], conductor.record
    decision = {"target": 0, "fingerprint": work.target.fingerprint, "node": work.confirmed}
    decision |= {"installed": False, "reason": "for the test"}
    decision |= dict.fromkeys(("isolated", "in_model", "fidelity"))
    record.store.set_decision(record.id, 0, decision)
    return "0 of 1 targets are replaced"


def test_a_run_of_a_live_process_cannot_be_taken_over(stage):
    """Two processes never work on one run: the second is told who does."""
    record = stage.conductor().record
    with stage.store.transaction() as c:
        c.execute("UPDATE runs SET pid = 1, started = '0' WHERE id = ?", (record.id,))
        pid_one = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
        c.execute("UPDATE runs SET started = ? WHERE id = ?", (pid_one, record.id))

    with pytest.raises(StoreError) as caught:
        record.store.claim(record.id)

    assert "process 1" in str(caught.value)


def test_a_run_of_a_dead_process_shows_as_interrupted(stage):
    """A run whose process is gone is marked when the store is opened, and may be claimed."""
    record = stage.conductor().record
    with stage.store.transaction() as c:
        c.execute("UPDATE runs SET pid = 999999999 WHERE id = ?", (record.id,))

    again = open_store(stage.store_path)

    assert again.run(record.id)["state"] == "interrupted"
    again.claim(record.id)


def test_asking_for_a_target_the_run_has_not(stage):
    """A wrong target index is bad input that lists the right ones."""
    record = stage.conductor(targets=2).record

    with pytest.raises(BadInput) as caught:
        target_of(record, 7)

    assert "[0, 1]" in str(caught.value)
