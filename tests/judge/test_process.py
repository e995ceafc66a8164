"""Ending children, also those that cannot be ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kforge_nb.judge import process
from kforge_nb.judge.process import Child

SLEEPS = [sys.executable, "-c", "import sys; sys.stdin.read()", "{reply}"]


def test_a_closed_child_is_gone():
    """Killed, reaped, and its number free again."""
    child = Child(SLEEPS, environment={}, folder=Path("/"))
    assert child.alive()
    child.close()
    child.close()
    assert not child.alive()
    assert not Path(f"/proc/{child.pid}").exists()


def test_a_child_that_a_driver_holds_is_not_waited_for_forever(monkeypatch):
    """Killed twice, then named in a warning and left to the system."""
    child = Child(SLEEPS, environment={}, folder=Path("/"))
    waited = []

    def never(seconds=None):
        waited.append(seconds)
        raise subprocess.TimeoutExpired("runner", seconds)

    with monkeypatch.context() as patch:
        patch.setattr(child.popen, "wait", never)
        patch.setattr(process, "_END_SECONDS", 0.01)
        with pytest.warns(RuntimeWarning, match=f"process {child.pid} .*driver"):
            child.close()
    assert waited == [0.01, 0.01]
    child.popen.wait(5)
