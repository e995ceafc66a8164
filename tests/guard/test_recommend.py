"""Which rest is recommended, in which words, and what the rows of the whole model are called."""

from __future__ import annotations

import random
import types

import pytest

from kforge_nb.guard import decide as deciding
from kforge_nb.guard import decider as deciding_steps
from kforge_nb.guard import measure
from kforge_nb.guard.decider import Decider
from kforge_nb.guard.fidelity import Fidelity
from kforge_nb.guard.measure import Timer
from kforge_nb.guard.report import Whole
from kforge_nb.guard.stage import Stage
from kforge_nb.guard.stats import compare, told
from kforge_nb.judge.evaluation import Comparison
from kforge_nb.view.claims import measured


def stage(rest, eager, empty=None, fidelity=None):
    """A stage with these (low, ratio, high) against eager and, with kernels, against its rest."""
    kept = frozenset({"k"}) if empty else frozenset()
    rows = [("empty", empty), ("eager", eager)] if empty else [("eager", eager)]
    whole = [
        Whole("guarded" if kept else "empty", rest, side, Comparison(side, r, low, high, 9, 1.0, r))
        for side, (low, r, high) in rows
    ]
    found = None if fidelity is None else Fidelity(fidelity, [fidelity], {"cell": 1})
    return Stage(rest, None, kept, whole, found)


def recommended(*stages, rest="auto"):
    """(rest, why) of these stages."""
    return deciding._recommend(stages, deciding._best(stages), rest, stopped=False)


SURE, CHANCE, SLOW = (1.04, 1.1, 1.2), (0.98, 1.02, 1.06), (0.9, 0.95, 0.99)


@pytest.mark.parametrize(
    "row", [CHANCE, SLOW, (0.91, 1.157, 1.411), (0.998, 1.02, 1.06), (9.5, 12.34, 130.2)]
)
def test_an_interval_is_told_as_the_views_write_it(row):
    """A page would show one interval in two forms."""
    low, ratio, high = row
    assert told(ratio, low, high) == measured({"ratio": ratio, "low": low, "high": high})


def test_a_gain_that_may_be_chance_is_not_recommended():
    """An interval that includes 1 is no gain: the model is left alone, and the figure is told."""
    rest, why = recommended(stage("eager", CHANCE), stage("inductor", CHANCE))
    assert rest == "none"
    assert "no rest is surely faster" in why
    assert "1.02× (0.98 to 1.06)" in why
    assert "chance" in why


def test_a_rest_that_was_asked_for_is_taken():
    """Whoever names a rest gets it; its figure tells what it is worth, and no gain is called so."""
    rest, why = recommended(stage("eager", CHANCE), rest="eager")
    assert rest == "eager"
    assert "1.02× (0.98 to 1.06) of the untouched model, which is no sure gain; this rest" in why
    assert "no sure gain" not in recommended(stage("eager", SURE), rest="eager")[1]


@pytest.mark.parametrize(
    ("eager", "empty", "expected"),
    [
        (CHANCE, SURE, "eager"),
        (CHANCE, CHANCE, "none"),
        (SLOW, SURE, "none"),
        (SURE, CHANCE, "eager"),
    ],
)
def test_kernels_that_surely_win_may_stay_at_equal_speed(eager, empty, expected):
    """Kernels with a sure gain over their rest stay unless the whole is slower than untouched."""
    assert recommended(stage("eager", eager, empty))[0] == expected


def test_a_sure_gain_goes_before_a_larger_guess():
    """1.1 for sure is recommended where 1.3 may be chance."""
    rest, why = recommended(stage("eager", SURE, SURE), stage("inductor", (0.9, 1.3, 1.8)))
    assert rest == "eager"
    assert "inductor 1.30× (0.90 to 1.80)" in why


def test_a_rest_without_kernels_says_so():
    """A gain of the compiler alone is not worded as one of kernels."""
    rest, why = recommended(stage("eager", CHANCE), stage("inductor", SURE))
    assert rest == "inductor"
    assert why.startswith("inductor without any kernel runs at 1.10×")
    assert "that is torch.compile(model), with nothing to apply" in why
    assert "nothing to apply" not in recommended(stage("inductor", SURE, SURE))[1]


def test_a_faster_rest_with_a_worse_output_is_named():
    """The fastest rest is not taken if its output is off, and the reason gives both figures."""
    wrong = stage("inductor", (1.5, 1.6, 1.7), SURE, fidelity=1.21)
    for taken, expected in ((SURE, "eager"), (CHANCE, "none"), (SLOW, "none")):
        rest, why = recommended(stage("eager", taken), wrong)
        assert rest == expected
        assert "inductor, 1.60× (1.50 to 1.70), is not taken: its output has 1.210×" in why
        assert "the others" not in why
    rest, why = recommended(wrong)
    assert rest == "none"
    assert "1.210×" in why


class FakeModel:
    """Runs that take random times, equal for all variants."""

    def __init__(self, rng, rest):
        self.rng = rng
        self.calls = []
        self.backend = types.SimpleNamespace(rest=rest, replaced={"k": 1})

    def run(self, enabled):
        return self.rng.lognormvariate(0, 0.25) * 1e-3


@pytest.fixture
def fake(monkeypatch):
    """``fake(seed)``: a decider and a fake model; the untouched model takes random times too."""
    monkeypatch.setattr(measure.gc, "collect", lambda: None)

    def make(seed, rest="inductor"):
        rng = random.Random(seed)
        monkeypatch.setattr(measure, "raw", lambda calls, pace: rng.lognormvariate(0, 0.25) * 1e-3)
        return Decider([], [], Timer.of(60), None, (), seed), FakeModel(rng, rest)

    return make


def test_without_kernels_a_row_is_of_the_rest_alone(fake):
    """No row is called guarded, and none is against itself, where no kernel was kept."""
    decider, model = fake(1)
    empty = Stage("inductor", model, frozenset())
    decider.weigh(empty)
    assert [(w.name, w.against) for w in empty.whole] == [("empty", "eager")]
    assert decider.against_model(empty, model, "compile").name == "empty"
    kept = Stage("inductor", model, frozenset({"k"}))
    rows = decider._rows(kept, decider._whole_samples(kept))
    assert [(w.name, w.against) for w in rows] == [("guarded", "empty"), ("guarded", "eager")]


def test_inductor_alone_is_not_measured_against_itself(fake):
    """Inductor without kernels is what torch.compile gives: there is nothing to compare."""
    decider, model = fake(1)
    alone = Stage("inductor", model, frozenset())
    decider.weigh(alone)
    deciding._against_compile(decider, [alone])
    assert {w.against for w in alone.whole} == {"eager"}


def test_intervals_hold_for_all_looks_together(fake, monkeypatch):
    """Equal sides are called different in at most 5% of the measurements that stop when settled.

    Intervals of a fixed sample size, looked at again and again, do so more than twice as often.
    """

    def wrong(trials=200):
        count = 0
        for seed in range(trials):
            decider, model = fake(seed)
            rest = Stage("inductor", model, frozenset())
            row = decider._rows(rest, decider._whole_samples(rest))[0].comparison
            count += row.low > 1 or row.high < 1
        return count / trials

    honest = wrong()
    monkeypatch.setattr(deciding_steps, "looked", compare)
    assert honest <= 0.05
    assert wrong() > 2 * honest
