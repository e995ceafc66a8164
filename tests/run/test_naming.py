"""A target is named by what stays when the model is profiled again."""

from __future__ import annotations

import pytest

from kforge_nb.errors import BadInput
from kforge_nb.options import OptimizeOptions
from kforge_nb.run.choice import choose_targets
from kforge_nb.run.naming import Called, which_target
from tests.run.test_choice import Row

ROWS = [
    Called(0, "gelu", "elementwise", "ab12cd34ef"),
    Called(1, "add_layer_norm", "layer_norm", "ab12ffff00"),
    Called(2, "softmax", "softmax", "77770000aa"),
    Called(3, "mul_add", "elementwise", "2222eeee11"),
]


@pytest.mark.parametrize(
    ("asked", "index"),
    [(1, 1), ("3", 3), ("gelu", 0), ("soft", 2), ("layer_norm", 1), ("7777", 2), ("2222", 3)],
)
def test_an_index_a_name_its_beginning_a_family_and_a_fingerprint_are_understood(asked, index):
    """Each way of naming leads to its one target; digits that are no index are a fingerprint's."""
    assert which_target(asked, ROWS, "it") == index


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (9, "no target 9; it has 0 gelu"),
        ("dropout", "no target 'dropout'; it has 0 gelu (ab12cd34), 1 add_layer_norm"),
        ("ab1", "no target"),
        ("sotfmax", "no target 'sotfmax' (did you mean 'softmax'?); it has 0 gelu"),
        ("ab12", "any of these targets: 0 gelu (ab12cd34), 1 add_layer_norm"),
        ("elementwise", "any of these targets: 0 gelu (ab12cd34), 3 mul_add"),
        ("", "no target ''"),
    ],
)
def test_no_target_or_several_is_an_error_with_the_choices(asked, words):
    """What could be meant is listed by index, name and fingerprint."""
    with pytest.raises(BadInput) as told:
        which_target(asked, ROWS, "it")
    assert words in str(told.value)


def test_options_take_numbers_and_words():
    """Digits are an index, from Python and from a magic's line; both come back from a store."""
    found = OptimizeOptions.of({"target": ["gelu,3", 4]})
    assert found.target == ("gelu", 3, 4)
    assert OptimizeOptions.of(found.to_document()).target == found.target
    with pytest.raises(BadInput, match="--target"):
        OptimizeOptions.of({"target": 1.5})
    with pytest.raises(BadInput, match="--target"):
        OptimizeOptions.of({"target": True})


def test_optimize_takes_the_target_that_was_named():
    """``--target gelu`` takes it whatever its index is, and no other."""
    rows = [Row(0), Row(1, name="gelu", family="gelu"), Row(2)]
    found = choose_targets(rows, OptimizeOptions.of({"target": "gelu"}), lambda _index: None)
    assert [c.index for c in found if c.taken] == [1]


def test_a_running_target_is_held_by_its_name(stage):
    """Pause and stop know the target by the beginning of its fingerprint, and store it."""
    conductor = stage.conductor(targets=2)
    second = conductor.works[1]
    conductor.wishes.pause(second.target.fingerprint[:12])
    conductor.wishes.stop(second.target.fingerprint[:12])
    assert second.paused
    assert second.ending
    assert stage.store.target(conductor.record.id, 1)["record"]["stopping"] is True
    with pytest.raises(BadInput, match=r"any of these targets: 0 .*, 1 "):
        conductor.wishes.pause("softmax")
