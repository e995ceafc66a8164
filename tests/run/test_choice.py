"""Which targets a run takes, in which order, and what it says of the others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kforge_nb.errors import BadInput
from kforge_nb.options import OptimizeOptions
from kforge_nb.run.choice import choose_targets


@dataclass
class Row:
    """A line of a profile."""

    index: int
    name: str = "n"
    family: str = "softmax"
    vendor: bool = False
    share: float | None = 0.1
    headroom: float = 2.0
    calls: int = 1
    fingerprint: str = ""

    @property
    def mean_us(self):
        return 1000.0 * self.share

    @property
    def roofline_us(self):
        return self.mean_us / self.headroom


ROWS = [
    Row(0, share=0.10, headroom=2.0),
    Row(1, family="vendor:linear", vendor=True, share=0.5, headroom=1.5),
    Row(2, family="gelu", share=0.30, headroom=4.0),
    Row(3, family="layer_norm", share=0.001, headroom=9.0),
    Row(4, family="layer_norm", share=0.2, headroom=1.01),
]


def choose(**options):
    return choose_targets(ROWS, OptimizeOptions.of(options), lambda _index: None)


def test_the_largest_attainable_gain_comes_first():
    """Targets are taken by share × what the roofline leaves, and the others say why not."""
    found = choose()

    assert [c.index for c in found if c.taken] == [2, 0]
    reasons = {c.index: c.reason for c in found if not c.taken}
    assert "vendor" in reasons[1]
    assert "0.09%" in reasons[3]
    assert "roofline" in reasons[4]


def test_a_roofline_that_was_beaten_is_not_believed():
    """A target measured faster than its roofline is searched: its roofline does not bind it."""
    rows = [Row(0, headroom=0.6), Row(1, headroom=1.0)]

    found = choose_targets(rows, OptimizeOptions.of({}), lambda _index: None)

    assert [c.index for c in found if c.taken] == [0]


def test_small_shares_of_a_waiting_workload_are_no_reason():
    """Where the host is what takes the time, the targets are weighed against each other."""
    rows = [Row(0, share=0.0004), Row(1, share=0.0002), Row(2, share=0.0000001)]

    found = choose_targets(rows, OptimizeOptions.of({}), lambda _index: None)

    assert [c.index for c in found if c.taken] == [0, 1]


def test_targets_asked_for_are_taken_whatever_their_gain():
    """``--target`` overrules the choice: a user may know better than a threshold."""
    assert {3, 4} == {c.index for c in choose(target=(3, 4)) if c.taken}


def test_ops_and_top_narrow_the_choice():
    """``--ops`` keeps families, ``--top`` the largest gains."""
    assert [c.index for c in choose(ops=("softmax",)) if c.taken] == [0]
    assert [c.index for c in choose(top=1) if c.taken] == [2]


def test_what_the_proposer_cannot_do_is_skipped_in_its_words():
    """A target that no recipe fits is skipped with the proposer's reason."""
    found = choose_targets(ROWS, OptimizeOptions.of({}), lambda i: "no recipe" if i == 2 else None)

    assert "no recipe" in {c.index: c.reason for c in found}[2]
    assert [c.index for c in found if c.taken] == [0]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"target": (9,)}, "there is no target 9"), ({"ops": ("sofmax",)}, "did you mean 'softmax'")],
)
def test_a_target_that_does_not_exist_is_bad_input(options, words):
    """Asking for what the profile does not have is an error that lists what it has."""
    with pytest.raises(BadInput) as caught:
        choose(**options)

    assert words in str(caught.value)
