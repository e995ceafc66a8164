"""Runs that are alive beside the one that is asked about."""

from __future__ import annotations

import pytest

from kforge_nb.run import live


@pytest.fixture
def two(stage):
    """Two runs that are alive in this process, the first of them paused."""
    made = stage.conductor(name="first"), stage.conductor(name="second")
    for conductor in made:
        live.add(conductor)
    made[0].control.pause()
    yield made
    for conductor in made:
        live.remove(conductor)


def test_a_forgotten_run_is_named_with_what_to_do(two):
    """Asked about the newest run, the paused one before it is told, with how it goes on or ends."""
    first, second = two
    told = live.beside(second.record.id)
    assert "first (paused)" in told
    assert "second" not in told
    assert "%kforge resume first" in told
    assert f"second ({second.record.run['state']})" in live.beside(first.record.id)
    assert "first (paused), second" in live.beside()
    live.remove(first)
    assert live.beside(second.record.id) == ""
