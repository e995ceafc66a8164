"""The GPU's part of the baseline worker: slots on the device, replays of graphs, and host time.

A batch is some replays of a CUDA graph of ``calls`` times flush and call, call i on slot
``i % slots``; the same graph without the calls is replayed beside it, to be taken off. Flush and
order are those of the candidate's runner. A target that no graph can hold (it waits for the device,
say) is called on a stream instead, and that is said.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kforge_nb.errors import KForgeError
from kforge_nb.judge.baseline_worker import compiled
from kforge_nb.judge.cuda.pinned import Pinned
from kforge_nb.judge.regions import InputLayout
from kforge_nb.targets.target import Target

__all__ = ["FLUSH_VARIABLE", "CudaOpened", "Flush", "views"]

FLUSH_VARIABLE = "KFORGE_FLUSH_CUBIN"
"""Where the worker finds the flush kernel; without one it writes over memory instead."""
_TIMES_L2 = 3
_WARM_UP = 3


class _Driver:
    """The few driver calls that load and launch a cubin in torch's context."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise KForgeError(f"{name} of the CUDA driver failed with status {status}")


class Flush:
    """Reads three times as much as the second-level cache holds, on torch's current stream."""

    def __init__(self, device: torch.device, cubin: Path | None) -> None:
        properties = torch.cuda.get_device_properties(device)
        size = _TIMES_L2 * max(int(getattr(properties, "L2_cache_size", 64 << 20)), 1 << 20)
        self._memory = torch.full((size + 64,), 0x5A, dtype=torch.uint8, device=device)
        self._blocks = 8 * int(properties.multi_processor_count)
        self._function = ctypes.c_void_p()
        if cubin is None:
            return
        self._driver = _Driver()
        self._module = ctypes.c_void_p()
        self._driver.call("cuModuleLoadData", ctypes.byref(self._module), cubin.read_bytes())
        self._driver.call(
            "cuModuleGetFunction", ctypes.byref(self._function), self._module, b"flush"
        )
        start = self._memory.data_ptr()
        self._values = (
            ctypes.c_uint64(start + 64), ctypes.c_uint64(start), ctypes.c_uint64(size // 16)
        )  # fmt: skip
        pointers = [ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in self._values]
        self._parameters = (ctypes.c_void_p * 3)(*pointers)

    def __call__(self) -> None:
        """Launch it; also while a graph is being captured."""
        if not self._function:
            self._memory.fill_(0x5A)
            return
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, block = (self._blocks, 1, 1), (256, 1, 1)
        shared = ctypes.c_uint(0)
        self._driver.call(
            "cuLaunchKernel", self._function, *grid, *block, shared, stream, self._parameters, None
        )


def views(flat: torch.Tensor, target: Target, layout: InputLayout) -> list[torch.Tensor]:
    """The target's inputs as strided views of one slot's bytes."""
    tensors = []
    for spec, buffer in zip(target.inputs, layout.buffers, strict=True):
        raw = flat[buffer.offset : buffer.offset + buffer.bytes].view(getattr(torch, spec.dtype))
        tensors.append(raw.as_strided(spec.shape, spec.stride))
    return tensors


class CudaOpened:
    """A target on a device: its slots, the baselines prepared so far, and their graphs."""

    def __init__(self, target: Target, mapping: mmap.mmap, slots: int) -> None:
        self.target = target
        self.device = torch.device(target.device)
        torch.cuda.set_device(self.device)
        layout = InputLayout(target.inputs)
        self._stride, self._slots = layout.stride, slots
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the memory is read-only here, and meant to be
            self._host = torch.frombuffer(mapping, dtype=torch.uint8)
        self._memory = torch.empty(layout.stride * slots, dtype=torch.uint8, device=self.device)
        rows = self._memory.view(slots, layout.stride)
        self.inputs = [views(rows[i], target, layout) for i in range(slots)]
        self.functions: dict[str, Callable[..., Any]] = {"eager": target.graph}
        self._flush = _flush(self.device)
        self._graphs: dict[tuple[str, int], Any] = {}
        self._why: dict[str, str] = {}
        address, size = self._host.data_ptr(), self._host.numel()
        self._pinned = Pinned(address, size, self.device, read_only=True)
        self.upload(0, slots)

    def upload(self, first: int, slots: int) -> None:
        """Copy slots from shared memory, ``first`` and those after it, in turn."""
        at, left = first % self._slots, min(slots, self._slots)
        while left > 0:
            run = min(left, self._slots - at)
            start, end = at * self._stride, (at + run) * self._stride
            self._memory[start:end].copy_(self._host[start:end])
            at, left = 0, left - run
        torch.cuda.synchronize(self.device)

    def refresh(self, stretches: Sequence[Sequence[int]]) -> None:
        """Copy parts of the shared memory, as (offset, bytes)."""
        for start, count in stretches:
            part = slice(start, start + count)
            self._memory[part].copy_(self._host[part], non_blocking=True)
        torch.cuda.synchronize(self.device)

    def prepare(self, name: str) -> None:
        """Make a baseline and call it until it is warm."""
        if name not in self.functions:
            self.functions[name] = compiled(self.target, name)
        for _ in range(_WARM_UP):
            self.functions[name](*self.inputs[0])
        torch.cuda.synchronize(self.device)

    def graph(self, name: str, calls: int) -> str:
        """Capture ``calls`` calls and as many flushes alone; how it will be timed, in words."""
        for key in [k for k in self._graphs if k[1] != calls and k[0] in (name, "")]:
            del self._graphs[key]
        if ("", calls) not in self._graphs:
            self._graphs["", calls] = self._capture(None, calls)
        if (name, calls) not in self._graphs and name not in self._why:
            try:
                self._graphs[name, calls] = self._capture(self.functions[name], calls)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as problem:
                torch.cuda.synchronize(self.device)
                self._why[name] = str(problem).strip().split("\n", 1)[0][:200]
        return f"stream: {self._why[name]}" if name in self._why else "graph"

    def _capture(self, function: Callable[..., Any] | None, calls: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            self._loop(function, min(calls, 2))  # its first calls are not part of any graph
            torch.cuda.synchronize(self.device)
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._loop(function, calls)
            finally:
                graph.capture_end()
        graph.replay()
        torch.cuda.synchronize(self.device)
        return graph

    def _loop(self, function: Callable[..., Any] | None, calls: int) -> None:
        for i in range(calls):
            self._flush()
            if function is not None:
                function(*self.inputs[i % self._slots])

    def replay(self, name: str, calls: int, replays: int, empty: bool) -> float:
        """So many replays, waited for; seconds by the device's events."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        key = "" if empty else name
        graph = None if name in self._why else self._graphs[key, calls]
        start.record()
        for _ in range(replays):
            if graph is not None:
                graph.replay()
            else:
                self._loop(None if empty else self.functions[name], calls)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def hot(self, name: str, calls: int) -> float:
        """Seconds a call, made one after the other from the host and waited for once."""
        function, inputs = self.functions[name], self.inputs
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for i in range(calls):
            function(*inputs[i % self._slots])
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - start) / calls

    def close(self) -> None:
        """Give the device's memory back."""
        self._graphs.clear()
        self.functions.clear()
        self.inputs.clear()
        self._pinned.release()
        del self._memory
        gc.collect()
        torch.cuda.empty_cache()


_FLUSHES: dict[torch.device, Flush] = {}


def _flush(device: torch.device) -> Flush:
    """One flush a device for all targets."""
    if device not in _FLUSHES:
        path = os.environ.get(FLUSH_VARIABLE)
        _FLUSHES[device] = Flush(device, Path(path) if path else None)
    return _FLUSHES[device]
