"""Which kernels are given up when the model's output is too far from float64 with all of them."""

from __future__ import annotations

import threading

import pytest

from kforge_nb.guard.blame import give_up
from kforge_nb.guard.decider import Decider
from kforge_nb.guard.fidelity import Fidelity
from kforge_nb.guard.measure import Timer
from kforge_nb.guard.report import Whole
from kforge_nb.guard.stage import Stage
from kforge_nb.guard.stats import compare


def found(ratio):
    """A fidelity with this ratio on one input."""
    return Fidelity(ratio, [] if ratio is None else [ratio], {"cell": 1})


class Sums:
    """The errors of kernels add up; remembers which sets were checked."""

    def __init__(self, errors):
        self.errors = errors
        self.asked = []

    def __call__(self, kept, least):
        self.asked.append(kept)
        return found(1.0 + sum(self.errors[f] for f in kept))

    def drop(self, gain=lambda f: 0.0, hurry=False):
        """What stays of all kernels."""
        kept = frozenset(self.errors)
        return give_up(kept, self(kept, 8), self, gain=gain, hurry=lambda: hurry)


def test_one_kernel_less_may_be_enough():
    """Each is right alone and all together are not: the one with the largest error goes, alone."""
    left = Sums({"a": 0.02, "b": 0.04, "c": 0.02}).drop()
    assert left.kept == {"a", "c"}
    assert left.fidelity.ratio == pytest.approx(1.04)
    assert left.reasons.keys() == {"b"}
    assert "right alone, with 1.040×" in left.reasons["b"]
    assert "all 3 kernels together: 1.080×" in left.reasons["b"]


def test_each_dropped_kernel_names_the_figure_it_was_dropped_for():
    """The second one to go is told what was left with it, not what the first one was told."""
    left = Sums({"a": 0.05, "b": 0.04, "c": 0.03, "d": 0.02}).drop()
    assert left.kept == {"c", "d"}
    assert "all 4 kernels together: 1.140×" in left.reasons["a"]
    assert "all 3 kernels together: 1.090×" in left.reasons["b"]
    assert "1.040×" in left.reasons["b"]


def test_of_equal_errors_the_least_gain_goes():
    """Where errors do not tell kernels apart, the one that wins least is given up."""
    gains = {"a": 9.0, "b": 1.0, "c": 5.0}
    left = Sums(dict.fromkeys("abc", 0.02)).drop(gain=gains.__getitem__)
    assert left.kept == {"a", "c"}


def test_what_spoils_alone_goes_first():
    """Kernels that are wrong by themselves go, and nothing else where that is enough."""
    left = Sums({"a": 0.5, "b": 0.01, "c": float("inf")}).drop()
    assert left.kept == {"b"}
    assert left.fidelity.good
    assert "with it alone: 1.500×" in left.reasons["a"]
    assert "with it alone: an error where eager has none" in left.reasons["c"]


def test_a_kernel_that_only_more_inputs_show_wrong_goes():
    """The last kernel left can be wrong too, with the figure of the longer check."""
    left = give_up(
        frozenset({"a"}), found(1.2), lambda kept, least: found(1.01), gain=len, hurry=bool
    )
    assert (left.kept, left.fidelity) == (frozenset(), None)
    assert "1.200×" in left.reasons["a"]
    assert "1.010×" in left.reasons["a"]


def test_out_of_time_halves_go():
    """With many kernels and no time left, a handful of checks must do."""
    sums = Sums({f"k{i}": 0.049 for i in range(32)})
    left = sums.drop(hurry=True)
    assert len(left.kept) == 1
    assert len(sums.asked) == 1 + 32 + 5


def stage_of(rest, kept, monkeypatch, decider, fidelity):
    """A stage whose samples and fidelity are given; its rows say that the kernels win."""
    stage = Stage(rest, None, frozenset(kept))

    def weigh(again):
        again.whole = [Whole("guarded", rest, "empty", compare("empty", [1.0] * 9, [2.0] * 9))]

    monkeypatch.setattr(decider, "weigh", weigh)
    monkeypatch.setattr(decider, "_fidelity", lambda stage, kept, least=8: fidelity(kept, least))
    return stage


@pytest.fixture
def decider():
    """A decider without kernels, of a workload without calls."""
    return Decider([], [], Timer.of(60, threading.Event()), None, (), 0)


def test_the_decision_keeps_what_is_right_together(decider, monkeypatch):
    """The stage goes on with the kernels that stay, and its reasons are those of the ones gone."""
    stage = stage_of("eager", "abc", monkeypatch, decider, Sums({"a": 0.02, "b": 0.04, "c": 0.02}))
    decider.verify(stage)
    assert stage.kept == {"a", "c"}
    assert stage.right
    assert stage.fidelity.ratio == pytest.approx(1.04)
    assert stage.reasons.keys() == {"b"}
    assert decider.reasons == {}


def test_kernels_are_not_blamed_for_their_rest(decider, monkeypatch):
    """Where the compiler alone is too far off, the rest is wrong and no kernel is tried alone."""
    sums = Sums({"a": 0.01, "b": 0.01})
    stage = stage_of(
        "inductor", "ab", monkeypatch, decider, lambda k, n: found(sums(k, n).ratio + 1)
    )
    decider.verify(stage)
    assert not stage.right
    assert stage.reasons == {}
    assert stage.fidelity.ratio == pytest.approx(2.0)
    assert sums.asked == [{"a", "b"}, frozenset()]


def test_what_weighing_drops_afterwards_is_verified_again(decider, monkeypatch):
    """The fidelity that is told is always that of the kernels that stay."""
    sums = Sums({"a": 0.02, "b": 0.04, "c": 0.03})
    stage = stage_of("eager", "abc", monkeypatch, decider, sums)

    def weigh(again):
        again.kept -= {"c"}

    monkeypatch.setattr(decider, "weigh", weigh)
    decider.verify(stage)
    assert stage.kept == {"a"}
    assert stage.fidelity.ratio == pytest.approx(1.02)
