"""The judge's end of the baseline worker."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from kforge_nb.errors import KForgeError, MissingTool
from kforge_nb.judge.process import Child, Gone, TooSlow
from kforge_nb.judge.regions import Region
from kforge_nb.judge.runner_handle import PYTHON_SPINS, timing_environment
from kforge_nb.settings import open_environment

__all__ = ["BaselineWorker", "OutOfDeviceMemory"]

_START_SECONDS = 120.0


class OutOfDeviceMemory(KForgeError):
    """The worker's device has no room for what was asked."""


class BaselineWorker:
    """A long-lived Python process with torch. One request at a time; errors are raised."""

    def __init__(self, folder: Path, threads: int, extra: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._files = ours
        self._lock = threading.Lock()
        self._log = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - lives as long as self
        package_home = str(Path(__file__).resolve().parents[2])
        environment = {**open_environment(), **timing_environment(threads, PYTHON_SPINS)}
        environment |= extra or {}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [package_home, os.environ.get("PYTHONPATH")])
        )
        # Its own: a worker killed while it compiles may leave half a file behind.
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        command = [sys.executable, "-m", "kforge_nb.judge.baseline_worker"]
        try:
            self.child = Child(
                [*command, "{reply}", str(theirs.fileno())],
                environment=environment,
                folder=folder,
                pass_fds=(theirs.fileno(),),
                log=self._log.fileno(),
            )
        finally:
            theirs.close()

    def open(
        self, key: str, folder: Path, region: Region, slots: int, given: int | None = None
    ) -> None:
        """Load the target in ``folder`` (``target.json``) and map its timed inputs.

        Inputs from number ``given`` on are weights: every call gets those of the first slot.
        """
        request: dict[str, Any] = {"key": key, "folder": str(folder), "bytes": region.bytes}
        request["given"] = given
        self._tell(_START_SECONDS, region, op="open", slots=slots, **request)

    def prepare(self, key: str, baseline: str, seconds: float = 600.0) -> float:
        """Make a baseline (``eager``, ``compile``, ``max_autotune``) ready and warm; seconds."""
        return self._ask(seconds, op="prepare", key=key, baseline=baseline)

    def ping(self) -> float:
        """Seconds of an empty round trip."""
        return self._ask(_START_SECONDS, op="ping")

    def batch(
        self, key: str, baseline: str, first: int, calls: int, seconds: float = 120.0,
        warm: bool = False,
    ) -> float:  # fmt: skip
        """Seconds of a batch on the judge's clock; ``warm``: every call on the same inputs."""
        request: dict[str, Any] = {"key": key, "baseline": baseline, "warm": warm}
        return self._ask(seconds, op="batch", first=first, calls=calls, **request)

    def forget(self, key: str) -> None:
        """Unmap a target."""
        self._ask(_START_SECONDS, op="close", key=key)

    def let_go(self, key: str) -> None:
        """Forget a target where the process still runs; that it does not is no matter here."""
        if self.child.alive():
            with suppress(KForgeError):
                self.forget(key)

    def close(self) -> None:
        """Kill and reap the process."""
        self.child.close()
        self._files.close()
        self._log.close()

    def upload(self, key: str, first: int, slots: int, seconds: float = 120.0) -> None:
        """Have a GPU target's slots copied from shared memory to the device."""
        self._ask(seconds, op="upload", key=key, first=first, slots=slots)

    def refresh(
        self, key: str, stretches: Sequence[tuple[int, int]], seconds: float = 120.0
    ) -> None:
        """Have parts of a GPU target's slots copied, as (offset, bytes) in the shared memory."""
        self._ask(seconds, op="refresh", key=key, stretches=list(stretches))

    def graph(self, key: str, baseline: str, calls: int, seconds: float = 120.0) -> str:
        """Make the replay of ``calls`` calls, each after a flush, ready; how, in words.

        ``graph`` is a CUDA graph, ``stream: ...`` means calls on a stream, and why.
        """
        answer = self._tell(seconds, op="graph", key=key, baseline=baseline, calls=calls)[1]
        return str(answer["result"])

    def replay(
        self, key: str, baseline: str, calls: int, replays: int, empty: bool, seconds: float = 120.0
    ) -> tuple[float, float]:
        """Seconds of that many replays on the judge's clock, and on the device's events."""
        request: dict[str, Any] = {"key": key, "baseline": baseline, "calls": calls, "empty": empty}
        wall, answer = self._tell(seconds, op="replay", replays=replays, **request)
        return wall, float(answer["result"])

    def hot(self, key: str, baseline: str, calls: int, seconds: float = 120.0) -> float:
        """Seconds of one call as the host sees it, calls made one after the other."""
        answer = self._tell(seconds, op="hot", key=key, baseline=baseline, calls=calls)[1]
        return float(answer["result"])

    def _ask(self, limit: float, **request: Any) -> float:
        return self._tell(limit, **request)[0]

    def _tell(
        self, limit: float, region: Region | None = None, **request: Any
    ) -> tuple[float, dict[str, Any]]:
        data = json.dumps(request).encode()
        with self._lock:
            try:
                if region is not None:  # its request takes it, no other one may come between
                    socket.send_fds(self._files, [b"f"], [region.read_only])
                start = perf_counter()
                self.child.send(struct.pack("<I", len(data)) + data)
                head = self.child.receive(4, limit)
                body = self.child.receive(struct.unpack("<I", head)[0], 10.0)
                wall = perf_counter() - start
            except (Gone, TooSlow, OSError) as problem:
                raise MissingTool(
                    f"the baseline worker failed at {request['op']!r}: {problem}. "
                    f"Its last words: {self._tail()}"
                ) from problem
        answer = json.loads(body)
        if not answer["ok"]:
            words = f"the baseline worker could not {request['op']}: {answer['error']}"
            raise OutOfDeviceMemory(words) if answer.get("memory") else KForgeError(words)
        return wall, answer

    def _tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), 2000, max(0, size - 2000))
        return text.decode("utf-8", "replace").strip() or "none"
