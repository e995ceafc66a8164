"""The conductor: stages in order, store first, and one well-told end whatever happens."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from kforge_nb.errors import BadInput, MissingTool, StoreError
from kforge_nb.run.conductor import Conductor
from kforge_nb.run.flights import AT_ONCE
from kforge_nb.run.handle import Run
from kforge_nb.run.reload import works_of
from kforge_nb.run.source import StoreSource

PATIENCE_S = 30


def finish(conductor):
    """Starts the thread and waits for the end."""
    conductor.start()
    assert conductor.join(PATIENCE_S)
    return conductor.record.run


def test_a_run_searches_confirms_guards_and_is_done(stage):
    """The whole way: budget used, winner confirmed with the figure shown, guard called once."""
    stage.judge.ratios = [1.1, 1.5, 0.9, 1.3, 1.2, 1.2]
    conductor = stage.conductor()

    run = finish(conductor)

    assert run["state"] == "done"
    assert "budget of 6" in run["state_reason"]
    assert [conductor] == stage.guarded
    nodes = {n["id"]: n for n in stage.store.nodes(conductor.record.id)}
    assert len(nodes) == 6
    target = stage.store.target(conductor.record.id, 0)["record"]
    winner = nodes[target["best"]]
    assert winner["evaluation"]["timings"][0]["ratio"] == stage.judge.confirm_ratio
    assert target["state"] == "done"


def test_evaluations_are_stored_before_the_next_begins(stage):
    """What was judged is on disk at once: another reader sees it while the next is judged."""
    conductor = stage.conductor()
    stage.judge.gate.clear()
    conductor.start()
    assert stage.judge.began.wait(PATIENCE_S)
    assert stage.store.nodes(conductor.record.id) == []

    stage.judge.gate.set()
    assert conductor.join(PATIENCE_S)

    assert len(stage.store.nodes(conductor.record.id)) == 6


def test_several_candidates_are_under_way_at_once(stage):
    """While one is judged the next is begun, as another one, and never beyond the budget."""
    conductor = stage.conductor(budget=2)
    stage.judge.gate.clear()
    conductor.start()

    deadline = time.monotonic() + PATIENCE_S
    while len(stage.judge.judged) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    stage.judge.gate.set()
    assert conductor.join(PATIENCE_S)

    assert len(stage.judge.judged) == 2
    assert len({c.digest for c in stage.judge.judged}) == 2


def test_a_seed_means_the_same_search(stage):
    """Two runs of one seed ask for the same candidates in the same order of the same parents."""
    stage.judge.ratios = [1.1, 1.5, 0.9, 1.3, 1.2, 1.6, 1.0, 1.1]
    trees = []
    for name in ("one", "two"):
        stage.judge.judged.clear()
        stage.proposer.requests.clear()
        conductor = stage.conductor(name=name, budget=8, seed=3)
        finish(conductor)
        rows = stage.store.nodes(conductor.record.id)
        trees.append([(n["id"], n["parent"], n["action"], n["digest"]) for n in rows])

    assert trees[0] == trees[1]


def test_stop_ends_a_run_in_the_middle_of_an_evaluation(stage):
    """Stop cuts the evaluation short; it is not stored as judged, and the run says why it ended."""
    conductor = stage.conductor()
    stage.judge.gate.clear()
    conductor.start()
    assert stage.judge.began.wait(PATIENCE_S)

    Run(StoreSource(conductor.record)).stop()

    run = conductor.record.run
    assert run["state"] == "stopped"
    assert run["state_reason"].startswith("stopped by the user; what was found is kept")
    assert stage.store.nodes(conductor.record.id) == []
    assert stage.guarded == []
    assert all(bench.closed for bench in stage.judge.benches)


def test_after_stop_no_target_looks_as_if_somebody_were_at_work(stage):
    """The document says of each target that the run was stopped; resuming takes them up again."""
    conductor = stage.conductor(targets=2)
    stage.judge.gate.clear()
    conductor.start()
    assert stage.judge.began.wait(PATIENCE_S)
    run = Run(StoreSource(conductor.record))

    run.stop()

    rows = run.document["targets"]
    assert [row["state"] for row in rows] == ["stopped", "stopped"]
    assert rows[0]["state_reason"] == "the run was stopped before a candidate was judged"
    assert run.status().startswith("run r: stopped by the user; what was found is kept")
    with pytest.raises(BadInput) as caught:
        run.apply()
    assert "kforge_nb.resume('r', fn)" in str(caught.value)
    assert "wait" not in str(caught.value)
    stage.judge.gate.set()
    again = Conductor(
        conductor.record, works_of(conductor.record), conductor.options, "here", stage.tools()
    )
    assert finish(again)["state"] == "done"
    assert [row["state"] for row in run.document["targets"]] == ["done", "done"]


def test_a_winner_that_does_not_hold_up_is_not_accepted(stage):
    """The luckiest of many noisy candidates loses its verdict when fresh samples deny it."""
    stage.judge.confirm_ratio = 0.95
    conductor = stage.conductor(budget=2)

    finish(conductor)

    verdicts = [n["evaluation"]["verdict"] for n in stage.store.nodes(conductor.record.id)]
    assert verdicts == ["slower", "slower"]
    assert conductor.works[0].confirmed is None


def test_a_runner_up_that_looks_better_is_timed_again_too(stage):
    """Only confirmed figures count: an unconfirmed higher one is confirmed before it may win."""
    stage.judge.ratios = [2.0, 1.9]
    fresh = iter([1.5, 1.7])
    stage.judge.confirm = lambda candidate: next(fresh)
    conductor = stage.conductor(budget=2)

    finish(conductor)

    work = conductor.works[0]
    second = work.tree.find(stage.judge.judged[1].digest)
    assert len(stage.judge.confirmed) == 2
    assert work.confirmed == second.id
    assert stage.store.target(conductor.record.id, 0)["record"]["best"] == second.id


def test_an_exhausted_proposer_ends_the_search(stage):
    """When there is nothing more to propose the run goes on to the guard instead of spinning."""
    stage.proposer.limit = 2

    run = finish(stage.conductor(budget=50))

    assert run["state"] == "done"
    assert len(stage.proposer.requests) == 2


def test_the_budget_goes_to_all_targets(stage):
    """Two targets of equal share both get candidates."""
    conductor = stage.conductor(targets=2, budget=8)

    finish(conductor)

    assert {0, 1} == {n["target"] for n in stage.store.nodes(conductor.record.id)}


def test_a_large_target_leaves_drafts_for_the_others(stage):
    """Of twelve candidates the two small targets get one each, whatever the large one brings."""
    stage.judge.ratios = [1.1 + 0.1 * n for n in range(20)]
    conductor = stage.conductor(targets=3, budget=12)
    for work, share in zip(conductor.works, (0.8, 0.05, 0.05), strict=True):
        work.share, work.headroom = share, 30.0

    finish(conductor)

    tried = Counter(n["target"] for n in stage.store.nodes(conductor.record.id))
    assert tried[0] > tried[1] >= 1
    assert tried[2] >= 1


@pytest.mark.parametrize(
    "error", [MissingTool("no compiler; apt install g++"), StoreError("the disk is full")]
)
def test_what_stops_every_target_fails_the_run_with_its_message(stage, error):
    """A missing compiler or a full disk ends the run as failed, in the error's own words."""
    stage.judge.error = error

    run = finish(stage.conductor())

    assert run["state"] == "failed"
    assert str(error) in run["state_reason"]


def test_a_judge_that_fails_on_one_target_does_not_end_the_run(stage):
    """One target's broken bench is that target's state; the others go on."""
    stage.judge.error = RuntimeError("worker died")
    conductor = stage.conductor(targets=2)

    run = finish(conductor)

    assert run["state"] == "done"
    assert {w.state for w in conductor.works} == {"failed"}
    assert "worker died" in stage.store.target(conductor.record.id, 0)["record"]["state_reason"]


def test_a_bug_in_the_run_thread_is_told_not_lost(stage):
    """An unexpected exception ends as failed with its type and place; nothing waits for ever."""
    stage.guard = lambda conductor: 1 / 0
    conductor = stage.conductor()

    run = finish(conductor)

    assert run["state"] == "failed"
    assert "ZeroDivisionError" in run["state_reason"]
    assert len(stage.store.nodes(conductor.record.id)) == 6


def test_a_paused_run_judges_nothing_more_until_resumed(stage):
    """Pause holds the run after the candidates under way; resume lets it finish."""
    conductor = stage.conductor(budget=30)
    stage.judge.gate.clear()
    conductor.start()
    assert stage.judge.began.wait(PATIENCE_S)
    run = Run(StoreSource(conductor.record))

    run.pause()
    stage.judge.gate.set()

    assert not conductor.join(0.5)
    assert len(stage.judge.judged) <= AT_ONCE
    assert "(paused)" in run.status()
    run.resume()
    assert run.wait(PATIENCE_S).state == "done"


def test_without_a_workload_the_guard_waits_for_one(stage):
    """A run resumed without its cell ends after the search, saying what it waits for."""
    run = finish(stage.conductor(workload=None))

    assert run["state"] == "interrupted"
    assert "%%kforge resume r" in run["state_reason"]


def test_the_time_limit_counts_earlier_sessions(stage):
    """Seconds of an earlier session count, so that resuming is no way around the limit."""
    conductor = stage.conductor(time_limit=5.0)
    conductor._seconds_before = 6.0

    run = finish(conductor)

    assert "time limit" in run["state_reason"]
    assert stage.judge.judged == []
