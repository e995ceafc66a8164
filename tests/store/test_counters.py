"""Run-time counters find their way into the document."""

from __future__ import annotations

import pytest

from kforge_nb.store import Store, document
from kforge_nb.store.counters import with_counters
from tests.store.filling import fill
from tests.store.make_example import example as make

COUNTED = {
    "launches": 40,
    "replayed": 2,
    "copies": 1,
    "shadowed": 3,
    "fallbacks": {"another shape": 5},
    "calls": {"calls": 20, "compiled": 19, "bypassed": 1, "hooked": 0},
}


def counters_of(fingerprint):
    """What the guard gives for one applied kernel."""
    kernel = {key: COUNTED[key] for key in ("launches", "replayed", "copies", "shadowed")}
    named = {"name": "gelu", "fingerprint": fingerprint, "note": ""}
    return {**COUNTED, "kernels": [{**kernel, **named, "fallbacks": COUNTED["fallbacks"]}]}


def test_a_kernels_counters_stand_with_its_decision_and_the_sums_beside():
    """The decision of that target has them, others none, and the result is a valid document."""
    data = make()
    first = data["decisions"][0]
    found = document.validate(with_counters(data, counters_of(first["fingerprint"])))

    assert found["decisions"][0]["counters"]["fallbacks"] == {"another shape": 5}
    assert "counters" not in found["decisions"][1]
    assert found["counters"] == COUNTED
    assert "counters" not in first


@pytest.mark.parametrize("counters", [None, {}, {"launches": 3}, {"kernels": None}])
def test_without_kernels_the_document_keeps_what_it_says(counters):
    """A model that nothing was applied to has no new figures."""
    assert with_counters(make(), counters) == make()


@pytest.mark.parametrize("kernels", [["x"], [{}], [{"fingerprint": 3, "fallbacks": None}]])
def test_counters_of_another_shape_are_no_error(kernels):
    """A store that another version wrote still makes a document."""
    document.validate(with_counters(make(), {"kernels": kernels}))


def test_counters_in_the_store_are_in_the_document(tmp_path):
    """What was counted before undo() is told by every later session."""
    with Store(tmp_path / "store.db") as store:
        run = fill(store, make())
        store.update_run(run, counters=counters_of(make()["decisions"][0]["fingerprint"]))
        data = document.validate(document.build(store, run))
    assert data["decisions"][0]["counters"]["launches"] == 40
    assert data["counters"]["calls"]["compiled"] == 19
