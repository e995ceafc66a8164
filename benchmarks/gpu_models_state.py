"""What the stages of ``gpu_models`` leave in the state folder: one JSON file a model and stage.

A child writes its file again after each step, so that a child that is stopped leaves what it had.
``done`` says that a stage came to its end; such a stage is not run again.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Body", "StageFile", "device_lock", "read_stage", "stage_path"]

Body = dict[str, Any]


def stage_path(folder: Path, name: str, stage: str) -> Path:
    """Where a stage of a model writes."""
    return Path(folder) / f"{name}.{stage}.json"


def read_stage(folder: Path, name: str, stage: str) -> Body:
    """What a stage has left, ``{}`` where it left nothing that can be read."""
    try:
        body = json.loads(stage_path(folder, name, stage).read_text())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


class StageFile:
    """The file of one stage while it is being made: steps with their seconds, and results."""

    def __init__(self, folder: Path, name: str, stage: str) -> None:
        self._path = stage_path(folder, name, stage)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.body: Body = {"model": name, "stage": stage, "done": False, "seconds": {}}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step, and leave its name in the file while it lasts."""
        start = time.perf_counter()
        self.put(step=name)
        yield
        self.body["seconds"][name] = round(time.perf_counter() - start, 2)

    def put(self, **values: Any) -> None:
        """Add results and write the file."""
        self.body.update(values)
        fresh = self._path.with_suffix(".writing")
        fresh.write_text(json.dumps(self.body) + "\n")
        fresh.replace(self._path)


@contextmanager
def device_lock(folder: Path) -> Iterator[None]:
    """Only one child of this state folder at a time measures; others may build and trace."""
    with (Path(folder) / "device.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
