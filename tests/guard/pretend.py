"""CUDA graphs pretended on a CPU, so that every rule around a recording is tested without a GPU.

A pretended graph knows what was recorded and computes it again on each replay, from the recording's
own buffers into the very outputs that recording gave: like a real one it reads and writes the same
memory each time. Streams and pools are names.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from kforge_nb.guard import policy, replay
from kforge_nb.guard.handout import flat, storage_key

__all__ = ["pretend"]


class Stream:
    """A stream that is always done."""

    def __init__(self, device: Any = None) -> None:
        self.device = torch.device("cpu")

    def wait_stream(self, other: Stream) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Graph:
    """A recorded graph; ``body`` computes it again."""

    def __init__(self) -> None:
        self.recording = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Recording begins; a pool must not be asked for again when its last graph is gone."""
        self.recording = True
        self.pool = pool

    def capture_end(self) -> None:
        """Recording ends."""
        assert self.recording
        self.recording = False

    def replay(self) -> None:
        """Compute what was recorded."""
        self.body()


def pretend(monkeypatch: Any) -> None:
    """Let ``guard.replay`` record on the CPU for the rest of a test."""
    now = Stream()
    for name, value in {
        "CUDAGraph": Graph,
        "Stream": Stream,
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "current_stream": lambda device=None: now,
        "synchronize": lambda device=None: None,
        "graph_pool_handle": object,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "is_current_stream_capturing": lambda: False,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(policy, "graphs_possible", lambda: True)
    monkeypatch.setattr(replay, "CUDA", "cpu")
    real = replay._Recording._record
    monkeypatch.setattr(
        replay._Recording, "_record", lambda self, *given: _record(real, self, *given)
    )


def _record(real: Any, recording: Any, run: Any, lane: Any, side: Any) -> list[Any]:
    """Record as on a GPU, where nothing is computed meanwhile."""
    inputs = recording._inputs
    kept, drawn = [value.clone() for value in inputs], torch.get_rng_state()
    outputs = real(recording, run, lane, side)
    torch.set_rng_state(drawn)
    for value, before in zip(inputs, kept, strict=True):
        if not torch.equal(value, before):
            value.copy_(before)
    given = {storage_key(value) for value in inputs}

    def body() -> None:
        for old, new in zip(outputs, run(*inputs), strict=True):
            if isinstance(old, torch.Tensor) and storage_key(old) not in given:
                flat(old).copy_(flat(new))

    recording.graph.body = body
    for value in outputs:
        if isinstance(value, torch.Tensor) and storage_key(value) not in given:
            value.zero_()
    return outputs
