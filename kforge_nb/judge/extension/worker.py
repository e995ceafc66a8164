"""The process that holds one torch extension: Python and torch, confined, and not trusted.

It answers the commands of :mod:`kforge_nb.judge.protocol`: LOAD, BIND (here the layouts as JSON),
RUN, BATCH, FETCH; for a GPU also UPLOAD, PREPARE, REPLAY and HOT of :class:`ExtensionOp`. torch is
imported and the CUDA context made first; then it gives everything away that it no longer needs, and
only then the extension is loaded. The expected values and the clock that decides are the parent's.

Started as ``python -I -c "…main()"`` with one JSON argument (:class:`Start` in session.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kforge_nb.judge.extension.ops import Breach, ExtensionOp
from kforge_nb.judge.protocol import MAGIC, Op

__all__ = ["Worker", "confine", "limits", "main"]

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_COMMAND = struct.Struct("<IIQqqQQ")
_REPLY = struct.Struct("<IIQQq288s")
_DEVICE_SHARE = 0.5  # of the device's memory, as far as the extension allocates by torch


def limits(start: dict[str, Any], on_gpu: bool) -> None:
    """What rlimits can take away; a GPU's address space cannot be limited."""

    def most(what: int, value: int) -> None:
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (value, value))

    most(resource.RLIMIT_CORE, 0)
    most(resource.RLIMIT_CPU, start["cpu_seconds"])
    most(resource.RLIMIT_FSIZE, (1 << 30) if on_gpu else 0)
    if not on_gpu:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        now = pages * resource.getpagesize()
        most(resource.RLIMIT_AS, now + start["memory"])
        most(resource.RLIMIT_NOFILE, 256)


def confine(
    start: dict[str, Any], last_words: int, on_gpu: bool, inputs: Sequence[tuple[int, int]] = ()
) -> int:
    """Landlock and the system-call filter; bits as kforge_confine returns them.

    ``inputs``: address and bytes of what is mapped for reading only, up to twice; a fault there is
    told as what it is.
    """
    library = ctypes.CDLL(start["confine"])
    library.kforge_confine.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int,
    ]  # fmt: skip
    library.kforge_watch.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64]
    for which, (address, size) in enumerate(inputs):
        library.kforge_watch(which, address, size)
    lines = "\n".join(start["files"]).encode()
    return int(library.kforge_confine(lines, last_words, MAGIC, int(on_gpu)))


class Worker:
    """The process's state: memory, and after LOAD the extension that is called."""

    def __init__(self, start: dict[str, Any]) -> None:
        import torch

        from kforge_nb.judge.extension.memory import Memory

        self._torch = torch
        self._start = start
        self._on_gpu = start["device"].startswith("cuda")
        torch.set_num_threads(start["threads"])
        if self._on_gpu:  # a context, and the libraries that torch loads when it first needs them
            torch.cuda.set_per_process_memory_fraction(_DEVICE_SHARE, start["device"])
            torch.zeros(1 << 20, device=start["device"]).sum().item()
        self._memory = Memory(start)
        self._stage: Any = None

    def load(self) -> int:
        """Give everything away, then load; returns the layers that hold."""
        held = 0
        if self._start["sandboxed"]:
            limits(self._start, self._on_gpu)
            memory = self._memory
            inputs = [(t.data_ptr(), t.numel()) for t in (memory.inputs, memory.timed)]
            held = confine(self._start, memory.last_words, self._on_gpu, inputs)
        self._stage = self.stage_kind()(self.forward(), self._memory)
        return held

    def stage_kind(self) -> Any:
        """How the candidate is called."""
        from kforge_nb.judge.extension import stage

        return stage.DeviceStage if self._on_gpu else stage.HostStage

    def forward(self) -> Any:
        """Load the candidate: a function from the inputs to the outputs, both in order."""
        self._torch.ops.load_library(self._start["library"])
        return self._torch.ops.kforge_candidate.forward.default

    def serve(self, op: int, a: int, b: int, payload: bytes) -> tuple[int, int]:
        """One command; ``(value, nanoseconds)``."""
        if op == Op.LOAD:
            return self.load(), 0
        if op == Op.BIND:
            self._memory.bind(json.loads(payload))
            return 0, 0
        stage = self._stage
        with self._torch.inference_mode():
            start = time.perf_counter_ns()
            if op == Op.RUN:
                stage.run()
            elif op == Op.BATCH:
                stage.batch(a, b)
            elif op == Op.FETCH:
                stage.fetch(a)
            elif op == ExtensionOp.UPLOAD:
                stage.upload(a, b)
            elif op == ExtensionOp.PREPARE:
                stage.prepare(a)
            elif op == ExtensionOp.REPLAY:
                return 0, stage.replay(a, bool(b))
            elif op == ExtensionOp.HOT:
                stage.hot(a)
            return 0, time.perf_counter_ns() - start


def _read(count: int) -> bytes | None:
    parts = []
    while count > 0:
        part = os.read(0, count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _answer(worker: Worker, reply: int) -> bool:
    head = _read(_COMMAND.size)
    if head is None:
        return False
    magic, op, seq, a, b, size, _ = _COMMAND.unpack(head)
    payload = _read(size) if size <= 1 << 20 else None
    if magic != MAGIC or payload is None or op == Op.QUIT:
        return False
    status, value, nanos, text = 0, 0, 0, b""
    try:
        value, nanos = worker.serve(op, a, b, payload)
    except Breach as breach:
        status, value, text = 1, breach.code, str(breach).encode()[:287]
    except Exception as problem:  # noqa: BLE001 - whatever the candidate raised, the judge is told
        first = str(problem).strip().split("\n", 1)[0]
        status, text = 1, f"{type(problem).__name__}: {first}".encode()[:287]
    os.write(reply, _REPLY.pack(MAGIC, status, seq, nanos, value, text))
    return True


def main(kind: type[Worker] = Worker) -> None:
    """Serve until the command pipe closes."""
    start = json.loads(sys.argv[1])
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    worker = kind(start)
    gc.disable()
    while _answer(worker, int(start["reply"])):
        pass
