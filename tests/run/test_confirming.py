"""torch.compile is timed only for winners that stand, and for a bounded number of them."""

from __future__ import annotations

import pytest

from kforge_nb.run import confirming

PATIENCE_S = 30
BOTH = ("eager", "compile")


def searched(stage, **options):
    """Runs a search to its end; the conductor."""
    conductor = stage.conductor(**options)
    conductor.start()
    assert conductor.join(PATIENCE_S)
    assert conductor.record.run["state"] == "done"
    return conductor


@pytest.mark.parametrize("baseline", ["eager", "compile"])
def test_a_clear_winner_is_timed_against_both_at_once(stage, baseline):
    """One session serves both baselines; with baseline=eager nothing is compiled."""
    searched(stage, budget=1, baseline=baseline)

    assert stage.judge.against == [BOTH if baseline == "compile" else ("eager",)]


def test_a_marginal_winner_must_stand_against_eager_first(stage):
    """Compiling takes long, so it waits until fresh samples agree that there is a gain."""
    stage.judge.ratios = [1.05]
    stage.judge.confirm_ratio = 1.0
    searched(stage, name="falls", budget=1)
    assert stage.judge.against == [("eager",)]

    stage.judge.against.clear()
    stage.judge.confirm_ratio = 1.06
    conductor = searched(stage, name="stands", budget=1)

    assert stage.judge.against == [("eager",), BOTH]
    first, second = stage.judge.standing[-2:]
    assert first is None
    assert second is not None, "what eager's fresh samples said is not measured anew"
    assert conductor.works[0].confirmed == "0.0"


def test_a_winner_that_falls_beside_compile_is_none(stage):
    """The last samples count: one that loses its gain there is not installed."""
    stage.judge.ratios = [1.05]
    fresh = iter([1.06, 0.9])
    stage.judge.confirm = lambda candidate: next(fresh)

    assert searched(stage, budget=1).works[0].confirmed is None


@pytest.mark.parametrize(
    ("name", "value"), [("COMPILE_AT_MOST", 2), ("COMPILE_S", 0.0), ("COMPILE_NODES", 0)]
)
def test_beyond_the_limit_only_eager_is_timed_and_it_is_said(stage, monkeypatch, name, value):
    """A run with many winners ends in time; a note counts those without the figure."""
    monkeypatch.setattr(confirming, name, value)
    stage.judge.ratios = [1.3]
    conductor = searched(stage, targets=3, budget=6)

    left = 3 - (2 if name == "COMPILE_AT_MOST" else 0)
    assert stage.judge.against.count(BOTH) == 3 - left
    assert all(work.confirmed for work in conductor.works)
    (note,) = conductor.record.run["workload"]["notes"]
    assert note.startswith(f"winners timed against eager only: {left}; ")


def test_no_time_to_time_winners_again_leaves_them_to_the_guard(stage, monkeypatch):
    """After a search with a time limit its end is in sight; what was not timed again is told."""
    monkeypatch.setattr(confirming, "AGAIN_LEAST_S", 0.0)
    monkeypatch.setattr(confirming, "AGAIN_SHARE", 0.0)
    conductor = searched(stage, targets=2, budget=4, time_limit=600.0)

    assert stage.judge.against == []
    assert all(work.confirmed == work.tree.best().id for work in conductor.works)
    (note,) = conductor.record.run["workload"]["notes"]
    assert note.startswith("winners that were not timed again: 2; ")


def test_without_a_time_limit_all_winners_are_timed_again(stage, monkeypatch):
    """Who sets no limit waits for every figure."""
    monkeypatch.setattr(confirming, "AGAIN_LEAST_S", 0.0)
    conductor = searched(stage, targets=2, budget=4)

    assert set(stage.judge.against) == {BOTH}
    assert not conductor.record.run["workload"].get("notes")


def test_the_winner_that_saves_most_is_timed_again_first(stage):
    """Where the time ends, what matters least is left."""
    conductor = stage.conductor(targets=2, budget=4, time_limit=600.0)
    conductor.works[0].share, conductor.works[1].share = 0.1, 0.6
    conductor.start()
    assert conductor.join(PATIENCE_S)

    assert [w.state for w in conductor.works] == ["done", "done"]
    works = {c.digest: work.index for work in conductor.works for c in work.candidates.values()}
    order = dict.fromkeys(works[candidate.digest] for candidate in stage.judge.confirmed)
    assert list(order) == [1, 0]
