"""How an extension's worker calls ``forward``: on the CPU, and on a GPU.

The checked call runs with torch's fresh memory poisoned, so that an element that was never written
shows. Timed calls take the slots in turn; the outputs of the last few stay to be asked for.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from kforge_nb.judge.extension.memory import Memory
from kforge_nb.judge.extension.ops import NotCapturable, WrongOutput
from kforge_nb.judge.protocol import HELD_CALLS

__all__ = ["DeviceStage", "HostStage"]

Forward = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
_L2_TIMES = 3


@contextmanager
def _poisoned() -> Iterator[None]:
    """Have torch fill what it allocates with NaN (or the largest integer).

    ``torch.use_deterministic_algorithms`` would import half of Inductor first, which a confined
    process may not.
    """
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._C._set_deterministic_algorithms(False, warn_only=False)


class HostStage:
    """Calls on the CPU, on the shared memory itself."""

    def __init__(self, forward: Forward, memory: Memory) -> None:
        self._forward = forward
        self._memory = memory
        self._slots: list[list[torch.Tensor]] = []
        self._held: deque[Sequence[torch.Tensor]] = deque()

    def run(self) -> None:
        """One checked call."""
        inputs = self._memory.views(self._memory.inputs)
        with _poisoned():
            outputs = self._forward(inputs)
        self._memory.check(outputs, inputs)
        self._memory.keep(outputs)

    def batch(self, first: int, calls: int) -> None:
        """Timed calls on the slots from ``first`` on."""
        memory = self._memory
        if not self._slots:
            self._slots = [
                memory.views(memory.timed, i * memory.slot_stride) for i in range(memory.slots)
            ]
        forward, slots, held, count = self._forward, self._slots, self._held, memory.slots
        for i in range(first, first + calls):
            if len(held) >= HELD_CALLS:
                held.popleft()
            held.append(forward(slots[i % count]))

    def fetch(self, age: int) -> None:
        """The outputs of the timed call before the last ``age`` ones."""
        self._memory.keep(self._held[-1 - age])


class DeviceStage:
    """Calls on a GPU: inputs are uploaded outside the clock, timed calls are a CUDA graph."""

    def __init__(self, forward: Forward, memory: Memory) -> None:
        self._forward = forward
        self._memory = memory
        self._device = memory.device
        self._slots: list[list[torch.Tensor]] = []
        self._timed: torch.Tensor | None = None
        self._held: deque[Sequence[torch.Tensor]] = deque(maxlen=HELD_CALLS)
        self._graphs: list[torch.cuda.CUDAGraph] = []
        facts = torch.cuda.get_device_properties(self._device)
        self._cache = torch.zeros(_L2_TIMES * facts.L2_cache_size // 4, device=self._device)

    def run(self) -> None:
        """One checked call; raises WrongOutput if it wrote to its inputs."""
        flat = self._memory.inputs.to(self._device)
        kept = flat.clone()
        inputs = self._memory.views(flat)
        with _poisoned():
            outputs = self._forward(inputs)
        torch.cuda.synchronize(self._device)
        if not torch.equal(flat, kept):
            raise WrongOutput("it wrote to its inputs, or between them")
        self._memory.check(outputs, inputs)
        self._memory.keep(outputs)

    def upload(self, first: int, count: int) -> None:
        """Copy ``count`` slots from ``first`` on to the device."""
        memory = self._memory
        if self._timed is None:
            self._timed = torch.zeros_like(memory.timed, device=self._device)
            self._slots = [
                memory.views(self._timed, i * memory.slot_stride) for i in range(memory.slots)
            ]
        for slot in {(first + i) % memory.slots for i in range(count)}:
            start = slot * memory.slot_stride
            end = start + memory.slot_stride
            self._timed[start:end].copy_(memory.timed[start:end])
        torch.cuda.synchronize(self._device)

    def _flush(self) -> None:
        """Read more than the cache holds, so that calls find their inputs in memory."""
        self._cache.sum()

    def prepare(self, calls: int) -> None:
        """Capture ``calls`` calls, and the flushes alone."""
        self._graphs = []
        self._held.clear()
        stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            for inputs in self._slots[:2]:  # what allocates or loads at the first call
                self._flush()
                self._forward(inputs)
        torch.cuda.synchronize(self._device)
        for empty in (False, True):
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=stream):
                    for i in range(calls):
                        self._flush()
                        if not empty:
                            self._held.append(self._forward(self._slots[i % len(self._slots)]))
            except RuntimeError as problem:
                raise NotCapturable(
                    "its calls cannot be captured in a CUDA graph: launch on torch's current "
                    "stream, allocate by torch, and do not wait for the device "
                    f"({str(problem).splitlines()[0][:120]})"
                ) from problem
            self._graphs.append(graph)

    def replay(self, count: int, empty: bool) -> int:
        """Replay one of the two graphs; nanoseconds on the device."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph = self._graphs[int(empty)]
        start.record()
        for _ in range(count):
            graph.replay()
        end.record()
        torch.cuda.synchronize(self._device)
        return int(start.elapsed_time(end) * 1e6)

    def batch(self, first: int, calls: int) -> None:
        """An empty exchange; on a GPU the timed calls are replays."""

    def hot(self, calls: int) -> None:
        """Calls from the host, one by one, waited for once."""
        for i in range(calls):
            self._forward(self._slots[i % len(self._slots)])
        torch.cuda.synchronize(self._device)

    def fetch(self, age: int) -> None:
        """The outputs of the last replay's call before the last ``age`` ones."""
        torch.cuda.synchronize(self._device)
        self._memory.keep(self._held[-1 - age])
