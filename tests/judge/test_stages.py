"""What an evaluation says of its seconds: each of them once, and where it went."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from kforge_nb.judge import stages
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.stages import Stages


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only where a test lets them."""
    now = [0.0]
    monkeypatch.setattr(stages, "perf_counter", lambda: now[0])

    def passing(seconds: float) -> None:
        now[0] += seconds

    return passing


def test_a_stage_that_comes_again_adds_up_also_where_it_fails(clock):
    """Each process of a confirmation is timed under the same names."""
    record = Stages()
    for seconds in (1.0, 2.0):
        with record.stage("timing"):
            clock(seconds)

    def breaks():
        with record.stage("timing"):
            clock(4.0)
            raise ValueError("it broke")

    with pytest.raises(ValueError, match="broke"):
        breaks()
    assert record.seconds == {"timing": 7.0}


def test_waiting_for_a_lock_is_a_stage_of_its_own(clock):
    """What is done while it is held is not: that has names of its own."""

    @contextmanager
    def lock():
        clock(3.0)
        yield
        clock(0.5)

    record = Stages()
    for _ in range(2):
        with record.waiting(lock()), record.stage("timing"):
            clock(1.0)
    assert record.seconds == {"wait": 6.0, "timing": 2.0}


def test_a_part_of_a_stage_is_no_longer_among_its_seconds(clock):
    """A part that was measured a little longer than its whole leaves nothing below zero."""
    record = Stages()
    with record.stage("timing"):
        clock(5.0)
    record.part("timing", "look", 2.0)
    record.part("timing", "look", 1.0)
    assert record.seconds == {"timing": 2.0, "timing look": 3.0}
    record.part("timing", "renew", 2.5)
    assert record.seconds["timing"] == 0.0


def test_what_is_in_no_stage_is_told_as_other(clock):
    """Also of stages that ended after the evaluation was made; ``total`` is not one of them."""
    record = Stages()
    with record.stage("timing"):
        clock(5.0)
        found = record.evaluation(Verdict.WRONG, "off")
    with record.stage("end"):
        clock(1.0)
    record.close(found, 8.0)
    assert found.seconds == {"timing": 5.0, "end": 1.0, "other": 2.0, "total": 8.0}
    short = record.evaluation(Verdict.WRONG, "off")
    record.close(short, 5.5)
    assert short.seconds["other"] == 0.0
