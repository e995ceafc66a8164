"""Stop, pause and handed-in candidates, from any thread."""

from __future__ import annotations

import threading

import pytest

from kforge_nb.errors import BadInput
from kforge_nb.run.control import Control, Handed, Stopped


def test_a_paused_run_waits_and_goes_on():
    """A held run passes no checkpoint until it is resumed."""
    control, passed = Control(), threading.Event()
    held = threading.Event()
    control.pause()

    def thread():
        control.checkpoint(on_pause=held.set)
        passed.set()

    worker = threading.Thread(target=thread, daemon=True)
    worker.start()
    assert held.wait(10)
    assert not passed.is_set()
    control.resume()

    assert passed.wait(10)
    assert control.paused_for > 0


def test_stop_frees_a_paused_run():
    """Stop ends a held run too, and the first reason given is kept."""
    control, ended = Control(), []
    held = threading.Event()
    control.pause()

    def thread():
        try:
            control.checkpoint(on_pause=held.set)
        except Stopped as signal:
            ended.append(str(signal))

    worker = threading.Thread(target=thread, daemon=True)
    worker.start()
    assert held.wait(10)
    control.request_stop("by the button")
    control.request_stop("by exit")
    worker.join(10)

    assert ended == ["by the button"]


def test_a_pause_after_stop_holds_nothing():
    """Stop is not lost when Pause follows it before the run has looked: the run still ends."""
    control, ended = Control(), threading.Event()
    control.request_stop("by the button")
    control.pause()

    def thread():
        try:
            control.checkpoint()
        except Stopped:
            ended.set()

    threading.Thread(target=thread, daemon=True).start()
    assert ended.wait(10)
    assert not control.paused


def test_nothing_is_taken_after_the_search_has_ended():
    """A candidate handed in too late is refused at once instead of never being answered."""
    control = Control()
    early = Handed(0, object())
    control.hand_in(early)

    assert [early] == control.close_inbox()
    with pytest.raises(BadInput):
        control.hand_in(Handed(0, object()))
