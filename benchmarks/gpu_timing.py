"""Device time of a call on a GPU with a cold cache: replays of CUDA graphs, compared by rounds.

A graph holds several repetitions of flush and call. The flush reads more than the second-level
cache holds, so that what the call reads comes from memory, and what it wrote has to go there. A
graph of flushes alone is replayed beside the others, and what it takes is subtracted. Every round
replays each graph once, in random order; only figures of one round are compared with each other.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Comparison, compare
from kforge_nb.compilers.cupy_raw import torch_stream

__all__ = ["Flush", "against", "capture", "copy_bandwidth", "quick_us", "rounds"]

Call = Callable[[], object]

_FLUSH = """
extern "C" __global__ void flush(const uint4* x, unsigned* sink, long long n) {
  unsigned s = 0;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
       i += (long long)gridDim.x * blockDim.x) {
    const uint4 q = x[i];
    s ^= q.x ^ q.y ^ q.z ^ q.w;
  }
  if (s == 0x9e3779b9u) *sink = s;
}
"""


class Flush:
    """Reads three times as much as the second-level cache holds."""

    def __init__(self, cache: Path) -> None:
        import cupy
        import numpy as np

        from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda

        properties = torch.cuda.get_device_properties("cuda")
        size = 3 * int(getattr(properties, "L2_cache_size", 64 << 20))
        self.buffer = torch.ones(size // 4, dtype=torch.int32, device="cuda")
        self.sink = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.blocks = 8 * int(properties.multi_processor_count)
        built = build_cuda(_FLUSH, ("flush",), cache=cache)
        assert isinstance(built, CudaBuilt), built
        module = cupy.cuda.function.Module()
        module.load(built.cubin.read_bytes())
        self._function = module.get_function("flush")
        self._args = (
            np.uint64(self.buffer.data_ptr()),
            np.uint64(self.sink.data_ptr()),
            np.int64(self.buffer.numel() // 4),
        )

    def __call__(self) -> None:
        """Launch on torch's current stream."""
        self._function((self.blocks,), (256,), self._args, 0, stream=torch_stream())


def capture(call: Call | None, flush: Flush, repeats: int) -> torch.cuda.CUDAGraph:
    """A graph of ``repeats`` times flush and call (no call: flushes alone)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            flush()
            if call is not None:
                call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Not torch.cuda.graph(), which collects garbage and empties the cache for every one of the
    # thousands of graphs here; but nothing may be collected while a graph is being captured.
    gc.disable()
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            for _ in range(repeats):
                flush()
                if call is not None:
                    call()
            graph.capture_end()
    finally:
        gc.enable()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def rounds(
    graphs: Mapping[str, torch.cuda.CUDAGraph], repeats: int, count: int, seed: int = 0
) -> dict[str, list[float]]:
    """Seconds per repetition of every graph, one figure a round, in random order."""
    order, rng = list(graphs), random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(count):
        rng.shuffle(order)
        marks = []
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            marks.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in marks:
            samples[name].append(start.elapsed_time(end) * 1e-3 / repeats)
    return samples


def against(samples: Mapping[str, list[float]], ours: str, other: str) -> Comparison:
    """The comparison of two graphs' figures with the empty flushes taken off."""
    empty = statistics.median(samples["empty"])
    least = 2e-7  # a difference below 0.2 µs is the clock's
    mine = [max(s - empty, least) for s in samples[ours]]
    theirs = [max(s - empty, least) for s in samples[other]]
    return compare(mine, theirs)


def quick_us(graph: torch.cuda.CUDAGraph, repeats: int, empty: float, count: int = 5) -> float:
    """Microseconds of one repetition, the flush taken off: for choosing, never for reporting."""
    found = rounds({"x": graph}, repeats, count)["x"]
    return (statistics.median(found) - empty) * 1e6


def copy_bandwidth(gigabytes: float = 2.0) -> float:
    """GB/s of a device-to-device copy, bytes read plus bytes written, best of 10."""
    source: Any = torch.empty(int(gigabytes * 2**30), dtype=torch.uint8, device="cuda").random_()
    to = torch.empty_like(source)
    best = 0.0
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        to.copy_(source)
        end.record()
        torch.cuda.synchronize()
        best = max(best, 2 * source.numel() / (start.elapsed_time(end) * 1e-3) / 1e9)
    return best
