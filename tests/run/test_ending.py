"""What comes after the search is announced, with a guess of how long it takes."""

from __future__ import annotations

import pytest

from kforge_nb.run import ending
from kforge_nb.run.handle import Run
from kforge_nb.run.source import StoreSource

PATIENCE_S = 30


@pytest.fixture
def told(stage, monkeypatch):
    """Runs a search and gives all of its progress, in order."""

    def run(**options):
        conductor = stage.conductor(**options)
        found = []
        record = conductor.record
        set_progress = record.set_progress
        monkeypatch.setattr(
            record, "set_progress", lambda **p: found.append(p) or set_progress(**p)
        )

        def guard(conductor):
            conductor.say("guarding", "with kernel 1")
            return "0 of 1 targets are replaced"

        stage.guard = guard
        conductor.tools = stage.tools()
        conductor.start()
        assert conductor.join(PATIENCE_S)
        return [p for p in found if p.get("message")]

    return run


def test_after_its_limit_a_search_says_what_comes_and_how_long(told):
    """Winner and guard are announced with seconds; nobody reads that 0:00 is left."""
    progress = told(budget=3, guard_time=90.0, targets=2)
    place, end = next(
        (i, p) for i, p in enumerate(progress) if p["message"].startswith("search ended")
    )
    assert "the budget of 3 candidates is used up" in end["message"]
    assert "again, then the guard: about " in end["message"]
    assert end["eta_s"] > 80
    again = [p for p in progress[place:] if p["message"].startswith("timing the winner of target")]
    assert again
    assert all("then the guard: about" in p["message"] and p["eta_s"] > 60 for p in again)
    assert {p["phase"] for p in progress[:place]} == {"searching"}
    assert {p["phase"] for p in again} == {"confirming"}
    guarding = [p for p in progress if p["phase"] == "guarding"]
    assert "up to about 90 s (--guard-time" in guarding[0]["message"]
    assert all(60 < p["eta_s"] <= 90 for p in guarding)


def test_without_a_kernel_no_guard_is_announced(told, stage):
    """Where nothing was accepted there is nothing to wait for."""
    stage.judge.ratios = [0.9]
    progress = told(budget=2)
    end = next(p for p in progress if p["message"].startswith("search ended"))
    assert "nothing to measure in the model" in end["message"]
    assert end["eta_s"] is None


def test_a_guess_that_was_too_short_is_dropped(stage, monkeypatch):
    """When the guessed time is over nobody knows how much is left, so nothing is said of it."""
    now = [0.0]
    conductor = stage.conductor(guard_time=50.0, baseline="eager")
    monkeypatch.setattr(ending.Ending, "_accepted", staticmethod(lambda _work: True))
    found = ending.Ending(conductor.works, conductor.options, "why", 5.0, lambda: now[0])
    assert found.left == 55.0
    now[0] = 54.0
    assert found.left == 1.0
    now[0] = 60.0
    assert found.left is None


def test_status_says_what_the_guard_does_and_how_long_it_may_still_take(stage):
    """Its steps take minutes on large models; a person, or a log, sees which one and how long."""
    conductor = stage.conductor(guard_time=90.0)
    run, said = Run(StoreSource(conductor.record)), []

    def guard(conductor):
        conductor.say("guarding", "taking over compile 1 of 2")
        said.append(run.status())
        conductor._guard_ends -= 95.0
        said.append(run.status())
        return "0 of 1 targets are replaced"

    stage.guard = guard
    conductor.tools = stage.tools()
    conductor.start()
    assert conductor.join(PATIENCE_S)
    during, late = said
    assert "measuring in the model" in during
    assert "taking over compile 1 of 2, at most about " in during
    assert during.endswith(" s left")
    assert "taking over compile 1 of 2" in late
    assert "left" not in late
    assert "left" not in run.status()
