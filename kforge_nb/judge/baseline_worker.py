"""The process that runs the baselines: trusted, long-lived, and never near a candidate.

Started as ``python -m kforge_nb.judge.baseline_worker REPLY_FD SOCKET_FD``. Requests come on
descriptor 0 and replies go to REPLY_FD, each as a 4-byte length and JSON; memory files come as
descriptors over the socket. Requests: ``open`` (a target in a folder, its timed inputs),
``prepare`` (a baseline: ``eager``, ``compile`` or ``max_autotune``), ``batch``, ``ping``,
``close``; for targets on a GPU also ``upload``, ``refresh``, ``graph``, ``replay`` and ``hot``, see
:mod:`kforge_nb.judge.cuda.worker`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import signal
import socket
import struct
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kforge_nb.judge.protocol import HELD_CALLS
from kforge_nb.judge.regions import InputLayout
from kforge_nb.profile.device import kind_of
from kforge_nb.targets.document import target_from_document
from kforge_nb.targets.target import Target

__all__ = ["compiled", "main"]

_PR_SET_PDEATHSIG = 1
_MODES: dict[str, dict[str, Any]] = {
    "compile": {},
    "max_autotune": {"mode": "max-autotune-no-cudagraphs"},
}


def compiled(target: Target, name: str) -> Callable[..., Any]:
    """The target's graph through torch.compile, by the baseline's name; ValueError if unknown."""
    if name not in _MODES:
        raise ValueError(f"{name!r} is no baseline; there are eager, {', '.join(_MODES)}")
    return torch.compile(target.graph, dynamic=False, **_MODES[name])


class _Opened:
    """A target with its slots as tensors and the baselines prepared so far."""

    def __init__(self, target: Target, mapping: mmap.mmap, slots: int) -> None:
        layout = InputLayout(target.inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the memory is read-only here, and meant to be
            flat = torch.frombuffer(mapping, dtype=torch.uint8)
        self.target = target
        self.inputs = [self._slot(flat, layout, i * layout.stride) for i in range(slots)]
        self.functions: dict[str, Callable[..., Any]] = {"eager": target.graph}
        self.held: deque[Any] = deque()

    def _slot(self, flat: torch.Tensor, layout: InputLayout, base: int) -> list[torch.Tensor]:
        tensors = []
        for spec, buffer in zip(self.target.inputs, layout.buffers, strict=True):
            start = base + buffer.offset
            raw = flat[start : start + buffer.bytes].view(getattr(torch, spec.dtype))
            tensors.append(raw.as_strided(spec.shape, spec.stride))
        return tensors

    def prepare(self, name: str) -> None:
        if name not in self.functions:
            self.functions[name] = compiled(self.target, name)
        function = self.functions[name]
        for _ in range(3):
            function(*self.inputs[0])

    def close(self) -> None:
        """Memory goes with the object."""

    def batch(self, name: str, first: int, calls: int, warm: bool) -> None:
        """Timed calls; ``warm``: all on the first slot."""
        function, inputs, held = self.functions[name], self.inputs, self.held
        slots = 1 if warm else len(inputs)
        for i in range(first, first + calls):
            if len(held) >= HELD_CALLS:
                held.popleft()
            held.append(function(*inputs[i % slots]))


class _Worker:
    def __init__(self, reply: int, files: socket.socket) -> None:
        self._reply = reply
        self._files = files
        self._opened: dict[str, Any] = {}

    def open(self, key: str, folder: str, bytes: int, slots: int, given: int | None = None) -> None:
        _, descriptors, _, _ = socket.recv_fds(self._files, 1, 1)  # first: it must not stay there
        try:
            mapping = mmap.mmap(descriptors[0], bytes, prot=mmap.PROT_READ)
        finally:
            os.close(descriptors[0])
        document = json.loads((Path(folder) / "target.json").read_text())
        target = target_from_document(document, None)
        if kind_of(target.device) == "cuda":
            from kforge_nb.judge.cuda.worker import CudaOpened

            self._opened[key] = CudaOpened(target, mapping, slots)
        else:
            self._opened[key] = _Opened(target, mapping, slots)
        if given is not None:
            slots_of = self._opened[key].inputs
            slots_of[:] = [row[:given] + slots_of[0][given:] for row in slots_of]

    def prepare(self, key: str, baseline: str) -> None:
        self._opened[key].prepare(baseline)

    def batch(self, key: str, baseline: str, first: int, calls: int, warm: bool = False) -> None:
        self._opened[key].batch(baseline, first, calls, warm)

    def upload(self, key: str, first: int, slots: int) -> None:
        self._opened[key].upload(first, slots)

    def refresh(self, key: str, stretches: list[list[int]]) -> None:
        self._opened[key].refresh(stretches)

    def graph(self, key: str, baseline: str, calls: int) -> str:
        return str(self._opened[key].graph(baseline, calls))

    def replay(self, key: str, baseline: str, calls: int, replays: int, empty: bool) -> float:
        return float(self._opened[key].replay(baseline, calls, replays, empty))

    def hot(self, key: str, baseline: str, calls: int) -> float:
        return float(self._opened[key].hot(baseline, calls))

    def ping(self) -> None:
        """Answer, nothing else."""

    def close(self, key: str) -> None:
        opened = self._opened.pop(key, None)
        if opened is not None:
            opened.close()
        del opened
        gc.collect()

    def serve(self) -> None:
        while True:
            head = _read(4)
            if head is None:
                return
            body = _read(struct.unpack("<I", head)[0])
            if body is None:
                return
            request = json.loads(body)
            operation = request.pop("op")
            start = time.perf_counter()
            try:
                with torch.no_grad():
                    answer: dict[str, Any] = {"result": getattr(self, operation)(**request)}
                answer["ok"] = True
            except torch.OutOfMemoryError as problem:
                answer = {"ok": False, "memory": True, "error": str(problem)[:300]}
                gc.collect()
                torch.cuda.empty_cache()
            except Exception as problem:  # noqa: BLE001 - whatever it is, the judge is told
                answer = {"ok": False, "error": f"{type(problem).__name__}: {problem}"[:2000]}
            answer["seconds"] = time.perf_counter() - start
            data = json.dumps(answer).encode()
            os.write(self._reply, struct.pack("<I", len(data)) + data)


def _read(count: int) -> bytes | None:
    parts = []
    while count > 0:
        part = os.read(0, count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def main() -> None:
    """Serve until the command pipe closes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    files = socket.socket(fileno=int(sys.argv[2]))
    gc.disable()
    _Worker(int(sys.argv[1]), files).serve()


if __name__ == "__main__":
    main()
