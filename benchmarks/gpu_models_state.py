"""What the stages of ``gpu_models`` leave: one JSON file a model and stage, and larger things.

A child writes its file again after each step, so that a child that is stopped leaves what it had.
``done`` says that a stage came to its end; such a stage is not run again. Stores of runs and caches
of compilers are in a folder of their own, which need not be kept with the results.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Body", "Places", "StageFile", "waited"]

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Places:
    """``state`` holds the results, ``work`` stores and caches."""

    state: Path
    work: Path

    def file(self, name: str, stage: str) -> Path:
        """Where a stage of a model writes."""
        return self.state / f"{name}.{stage}.json"

    def log(self, name: str, stage: str) -> Path:
        """What the child of a stage says."""
        return self.state / f"{name}.{stage}.log.txt"

    def store(self, name: str) -> Path:
        """The store of a model's run."""
        return self.work / f"{name}.store"

    def cache(self, name: str, stage: str) -> Path:
        """Inductor's cache folder of a stage."""
        return self.work / f"{name}.{stage}.inductor"

    def read(self, name: str, stage: str) -> Body:
        """What a stage has left, ``{}`` where it left nothing that can be read."""
        try:
            body = json.loads(self.file(name, stage).read_text())
        except (OSError, ValueError):
            return {}
        return body if isinstance(body, dict) else {}

    @contextmanager
    def device(self) -> Iterator[None]:
        """Only one child at a time measures; others may build and compile."""
        with (self.work / "device.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def waited(body: Body) -> float:
    """Seconds that a stage has waited for the device so far, also while it waits.

    ``waiting_since`` is of the clock that all processes of a machine share.
    """
    since = body.get("waiting_since")
    done = float((body.get("seconds") or {}).get("wait", 0.0))
    return done + (max(0.0, time.monotonic() - since) if since is not None else 0.0)


class StageFile:
    """The file of one stage while it is being made: steps with their seconds, and results."""

    def __init__(self, places: Places, name: str, stage: str) -> None:
        self.places = places
        self._path = places.file(name, stage)
        self.body: Body = {"model": name, "stage": stage, "done": False, "seconds": {}}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step, and leave its name in the file while it lasts."""
        start = time.perf_counter()
        self.put(step=name)
        yield
        self.body["seconds"][name] = round(time.perf_counter() - start, 2)

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """A step that has the device to itself; waiting for it is a step of its own."""
        start = time.monotonic()
        self.put(step=f"wait for {name}", waiting_since=start)
        with self.places.device():
            before = self.body["seconds"].get("wait", 0)
            self.body["seconds"]["wait"] = round(before + time.monotonic() - start, 2)
            self.body.pop("waiting_since")
            with self.step(name):
                yield

    def put(self, **values: Any) -> None:
        """Add results and write the file."""
        self.body.update(values)
        fresh = self._path.with_suffix(".writing")
        fresh.write_text(json.dumps(self.body) + "\n")
        fresh.replace(self._path)
