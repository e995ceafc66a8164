"""Torch extensions in a run: judged by opt-in, shown, and never installed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kforge_nb.errors import BadInput
from kforge_nb.run.guarding import guard_stage
from kforge_nb.run.hand_in import judge_source

PATIENCE_S = 30
FORWARD = "std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs) { return inputs; }"


def _marked(stage) -> None:
    """Every evaluation of the fake judge is one of host code."""
    opened = stage.judge.open

    def open_marked(target):
        bench = opened(target)
        plain = bench.evaluate

        def evaluate(candidate, stop=None):
            found = plain(candidate, stop)
            host_code = candidate.language == "cuda_extension"
            return replace(found, resources={"host_code": True} if host_code else {})

        bench.evaluate = evaluate
        return bench

    stage.judge.open = open_marked


def _propose(stage, languages) -> None:
    """The fake proposer's candidates are in these languages, in turn."""
    plain = stage.proposer.propose

    def propose(request):
        found = plain(request)
        language = languages[min(len(stage.proposer.requests), len(languages)) - 1]
        return replace(found, language=language)

    stage.proposer.propose = propose


def _ended(stage, budget):
    conductor = stage.conductor(budget=budget)
    conductor.tools = replace(conductor.tools, guard=guard_stage)
    conductor.start()
    assert conductor.join(PATIENCE_S)
    return conductor


def test_an_accepted_extension_is_kept_out_of_the_model(stage):
    """It wins on the bench; the decision says that host code is not installed, and what is."""
    _marked(stage)
    _propose(stage, ["cuda_extension"])
    conductor = _ended(stage, 1)

    assert conductor.record.run["state"] == "done"
    (decision,) = stage.store.decisions(conductor.record.id)
    assert decision["installed"] is False
    assert decision["reason"].startswith("kept original: host code is not installed (0.0, a torch")
    assert "1.50 times eager's speed" in decision["reason"]
    assert "launch plan" in decision["reason"]


def test_an_extension_does_not_stand_in_the_way_of_a_kernel(stage):
    """With a faster extension in the tree, the winner is the best that can be installed."""
    _marked(stage)
    _propose(stage, ["cuda_extension", "cpp"])
    stage.judge.ratios = [2.0, 1.3]
    conductor = stage.conductor(budget=2)
    conductor.start()
    assert conductor.join(PATIENCE_S)

    assert [c.language for c in stage.judge.confirmed] == ["cpp"]


def test_a_cell_with_host_code_needs_the_opt_in(stage):
    """Without the option nothing is judged, and the message names it."""
    conductor = _ended(stage, 1)
    judged = len(stage.judge.judged)
    with pytest.raises(BadInput, match="--allow-host-code"):
        judge_source(conductor.record, None, 0, FORWARD, backend="cuda_extension")

    assert len(stage.judge.judged) == judged


def test_a_search_without_the_option_is_not_given_host_code(stage):
    """While a run that was begun without it searches, a cell's extension has to wait."""
    stage.judge.gate.clear()
    conductor = stage.conductor(budget=1)
    conductor.start()
    assert stage.judge.began.wait(PATIENCE_S)
    try:
        with pytest.raises(BadInput, match="begun without --allow-host-code"):
            judge_source(
                conductor.record,
                conductor,
                0,
                FORWARD,
                backend="cuda_extension",
                allow_host_code=True,
            )
    finally:
        stage.judge.gate.set()
        assert conductor.join(PATIENCE_S)


def test_a_search_with_the_option_judges_a_cell_with_host_code(stage):
    """A run that was begun with it takes the extension between two of its own candidates."""
    stage.judge.gate.clear()
    conductor = stage.conductor(budget=1, allow_host_code=True)
    conductor.start()
    assert stage.judge.began.wait(PATIENCE_S)
    opt_in = {"backend": "cuda_extension", "allow_host_code": True}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(judge_source, conductor.record, conductor, 0, FORWARD, **opt_in)
        deadline = time.monotonic() + PATIENCE_S
        while conductor.control._inbox.empty() and time.monotonic() < deadline:
            time.sleep(0.01)
        stage.judge.gate.set()
        verdict = asked.result(PATIENCE_S)
    assert conductor.join(PATIENCE_S)

    assert verdict.target == 0
    assert "cuda_extension" in {c.language for c in stage.judge.judged}
