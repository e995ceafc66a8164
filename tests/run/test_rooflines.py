"""A roofline that cannot be, or that was measured on a busy machine, ends nothing."""

from __future__ import annotations

import pytest

from kforge_nb.options import OptimizeOptions
from kforge_nb.run import facts
from kforge_nb.run.choice import choose_targets
from kforge_nb.run.reload import works_of
from kforge_nb.search import allocate
from tests.run.test_choice import Row

PATIENCE_S = 30


@pytest.mark.parametrize("rough", [False, True])
def test_near_a_rough_roofline_a_target_is_taken_all_the_same(rough):
    """Only a roofline of a quiet machine is a reason to leave a target alone."""
    rows = [Row(0, share=0.2, headroom=1.01)]
    (choice,) = choose_targets(rows, OptimizeOptions.of({}), lambda _index: None, rough=rough)
    assert choice.taken is rough
    assert (choice.gain > 0.05) is rough


@pytest.mark.parametrize(
    ("headroom", "rough", "ends"),
    [(1.02, False, True), (1.02, True, False), (0.1, False, False), (None, False, False)],
)
def test_only_a_quiet_roofline_that_holds_ends_a_search(stage, headroom, rough, ends):
    """At a quiet roofline nothing is left; above a rough or a beaten one there always is."""
    (work,) = stage.conductor().works
    work.headroom, work.rough = headroom, rough
    picked = allocate.next_target([facts.state_of(work)])
    assert isinstance(picked, allocate.Stop) is ends
    assert (facts.rules_of(work, 12).roofline > 1) is (rough or headroom is None)


def test_a_run_with_an_impossible_roofline_uses_its_budget_and_says_so(stage):
    """Kernels ten times as fast as the roofline: it is given up, told once, and ends nothing."""
    conductor = stage.conductor(budget=5)
    (work,) = conductor.works
    work.headroom, work.roofline_us = 1.25, 100.0  # the judge's kernels take 10 µs
    conductor.record.set_target(0, roofline_us=100.0, headroom=1.25, ceiling=1.1)
    stage.judge.ratios = [1.3]

    conductor.start()
    assert conductor.join(PATIENCE_S)

    assert "budget of 5" in conductor.record.run["state_reason"]
    entry = stage.store.target(conductor.record.id, 0)["record"]
    assert (entry["roofline_us"], entry["headroom"], entry["ceiling"]) == (None, None, None)
    notes = [n for n in conductor.record.run["workload"]["notes"] if "roofline" in n]
    assert len(notes) == 1
    assert "100 µs" in notes[0]


def test_a_resumed_run_still_knows_that_its_rooflines_are_rough(stage):
    """What was calibrated on a busy machine is not believed after a restart either."""
    conductor = stage.conductor()
    stage.store.update_run(conductor.record.id, device={"name": "x", "calibrated_busy": True})
    assert [work.rough for work in works_of(conductor.record)] == [True]
