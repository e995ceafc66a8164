"""The guard stage around the guard, and what is said where judging or measuring fails."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kforge_nb.errors import BadInput
from kforge_nb.run import guarding
from kforge_nb.run.guarding import guard_stage

PATIENCE_S = 30


def test_a_failed_target_says_what_the_judge_said(stage):
    """A message of ours stands alone; a stranger's exception comes with its class."""
    for error, words in (
        (BadInput("cuda:0 ran out of memory"), "the judge failed: cuda:0 ran out of memory"),
        (ZeroDivisionError("x"), "the judge failed: ZeroDivisionError: x"),
    ):
        stage.judge.error = error
        conductor = stage.conductor(name=type(error).__name__, budget=1)
        conductor.start()
        assert conductor.join(PATIENCE_S)
        assert stage.store.target(conductor.record.id, 0)["record"]["state_reason"] == words


def test_a_gpu_that_is_full_costs_the_target_and_not_the_run(stage):
    """Out of memory while one target is judged: it says so, and the run ends as any other."""
    stage.judge.error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    conductor = stage.conductor(targets=2, budget=4)
    conductor.start()
    assert conductor.join(PATIENCE_S)

    assert conductor.record.run["state"] == "done"
    for index in (0, 1):
        found = stage.store.target(conductor.record.id, index)["record"]
        assert found["state"] == "failed"
        assert "CUDA out of memory" in found["state_reason"]


def test_a_gpu_that_is_full_in_the_model_fails_the_run_with_what_to_do(stage, monkeypatch):
    """The guard runs out of memory: the message says what to free, and what was judged is kept."""
    from kforge_nb.guard import decide

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(decide, "decide", full)
    monkeypatch.setattr(guarding, "build_for_model", lambda candidate, target: "library")
    conductor = stage.conductor(budget=2)
    conductor.tools = replace(conductor.tools, guard=guard_stage)
    conductor.start()
    assert conductor.join(PATIENCE_S)

    run = conductor.record.run
    assert run["state"] == "failed"
    assert "did not suffice for measuring the model" in run["state_reason"]
    assert "empty_cache" in run["state_reason"]
    assert len(stage.store.nodes(conductor.record.id)) == 2


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["wrong", "slower", "slower"], "no candidate was accepted (2 slower, 1 wrong"),
        ([], "no candidate was accepted (none judged"),
        (
            ["accepted"] * 5 + ["undecided"] * 7,
            "5 candidates were accepted in the search, none was confirmed when the best were timed "
            "again in other processes (the others: 7 undecided",
        ),
        (
            ["accepted"],
            "1 candidate was accepted in the search, none was confirmed when the best were timed "
            "again in other processes (no others",
        ),
    ],
)
def test_a_target_without_a_winner_says_whether_any_was_accepted(verdicts, said):
    """Accepted in the search and confirmed are two things, and the reason tells them apart."""
    nodes = [SimpleNamespace(evaluation=SimpleNamespace(verdict=v)) for v in verdicts]
    row = {"index": 0, "fingerprint": "f", "record": {"state": "done", "state_reason": "the end"}}
    told = guarding._verdicts(SimpleNamespace(tree=nodes))
    decision = guarding._decision(row, {}, {}, (told, ""))
    assert decision["reason"] == f"kept original: {said}; the end)"
