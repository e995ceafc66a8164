"""The runs that this process works on, so that any handle finds them and exit ends them tidily.

A run goes on when its handle is forgotten; what ends it is its own rules, Stop, or the process. The
last few that ended are remembered, as they hold the workload that ``apply`` and ``resume`` need.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from kforge_nb.view import words

if TYPE_CHECKING:
    from kforge_nb.run.conductor import Conductor

__all__ = ["add", "beside", "find", "latest", "remembered", "remove", "stop_all"]

EXIT_PATIENCE_S = 5.0
REMEMBERED = 4

_lock = threading.Lock()
_live: dict[str, Conductor] = {}
_ended: deque[Conductor] = deque(maxlen=REMEMBERED)
_begun: list[tuple[Path, str]] = []
_registered = False


def add(conductor: Conductor) -> None:
    """Registers a run whose thread is about to start."""
    global _registered
    with _lock:
        if not _registered:
            atexit.register(stop_all)
            _registered = True
        _live[conductor.record.id] = conductor
        _begun.append((conductor.record.store.path, conductor.record.id))


def remove(conductor: Conductor) -> None:
    """A run's thread has ended."""
    with _lock:
        if _live.pop(conductor.record.id, None) is not None:
            _ended.append(conductor)


def find(run_id: str) -> Conductor | None:
    """The conductor of a run that is live in this process."""
    with _lock:
        return _live.get(run_id)


def latest(store: Path) -> list[str]:
    """Ids of the runs of a store that began or went on in this process, the latest first."""
    with _lock:
        return [run_id for path, run_id in reversed(_begun) if path == store]


def remembered(run_id: str) -> Conductor | None:
    """The conductor of a run that is live here, or that was one of the last to end here."""
    with _lock:
        found = (c for c in reversed(_ended) if c.record.id == run_id)
        return _live.get(run_id) or next(found, None)


def beside(run_id: str = "") -> str:
    """In words, which other runs are alive in this process and how they stand; empty if none."""
    with _lock:
        others = [c for key, c in _live.items() if key != run_id]
    if not others:
        return ""
    found = [
        f"{c.record.name} ({'paused' if c.control.paused else words.doing(c.record.run)})"
        for c in others
    ]
    first = others[0].record.name
    return (
        f"also alive in this process: {', '.join(found)}; %kforge status {first} says more, "
        f"%kforge resume {first} lets a paused run go on, %kforge stop {first} ends it"
    )


def stop_all() -> None:
    """Stops every live run and waits a little, so that workers end and states are written."""
    with _lock:
        conductors = list(_live.values())
    for conductor in conductors:
        conductor.control.request_stop("the process that ran it ended")
    for conductor in conductors:
        conductor.join(EXIT_PATIENCE_S)
