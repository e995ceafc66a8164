"""The guard stage around the guard: which winners it is given, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

from kforge_nb.candidates.candidate import Candidate, LaunchPlan
from kforge_nb.run.guarding import guard_stage

PATIENCE_S = 30


def test_a_torch_extension_that_wins_is_kept_out_of_the_model(stage):
    """Host code is never installed: the decision says so, and the run is done all the same."""

    def propose(request):
        number = len(request.tried)
        return Candidate("cuda_extension", f"// {number}", LaunchPlan(()), f"e{number}")

    stage.proposer.propose = propose
    conductor = stage.conductor(budget=1)
    conductor.tools = replace(conductor.tools, guard=guard_stage)
    conductor.start()
    assert conductor.join(PATIENCE_S)

    assert conductor.record.run["state"] == "done"
    (decision,) = stage.store.decisions(conductor.record.id)
    assert decision["installed"] is False
    assert decision["node"] == "0.0"
    assert "torch extension" in decision["reason"]


def test_a_failed_target_says_what_the_judge_said(stage):
    """A message of ours stands alone; a stranger's exception comes with its class."""
    from kforge_nb.errors import BadInput

    for error, words in (
        (BadInput("cuda:0 ran out of memory"), "the judge failed: cuda:0 ran out of memory"),
        (ZeroDivisionError("x"), "the judge failed: ZeroDivisionError: x"),
    ):
        stage.judge.error = error
        conductor = stage.conductor(name=type(error).__name__, budget=1)
        conductor.start()
        assert conductor.join(PATIENCE_S)
        assert stage.store.target(conductor.record.id, 0)["record"]["state_reason"] == words
