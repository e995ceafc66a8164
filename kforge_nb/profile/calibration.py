"""What this device can do at best: a copy and a matrix product, measured once and cached."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kforge_nb.errors import BadInput
from kforge_nb.profile.device import facts, kind_of
from kforge_nb.profile.remembered import merged, recall, remember
from kforge_nb.profile.timing import ForeignLoad, interleaved_us, sample_us
from kforge_nb.settings import cache_dir

__all__ = ["Calibration", "calibrate"]

SCHEMA = "kforge.calibration/2"
BUSY_CORES = 0.3
_AGREE = 0.9  # of the better of two readings of a GPU, for the other one
_MEASURED: dict[str, Calibration] = {}
_CUDA_SIZES = (1 << 20, 1 << 23, 1 << 26, 1 << 29, 1 << 31)
_SIZES = (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 28)
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured limits of one device.

    ``bandwidth_gbs``: bytes read plus written by a copy far larger than the caches, GB/s; on a GPU
    the best of all sizes.
    ``bandwidth_by_bytes``: the same by bytes moved in a call; on a CPU small data stays in caches,
    on a GPU it was measured with a cold cache, as calls are timed there.
    ``flops_gflops``: GFLOP/s of a matrix product by dtype. ``overhead_us``: one call of a tiny op.
    """

    device: str
    identity: str
    bandwidth_gbs: float
    bandwidth_by_bytes: dict[int, float] = field(default_factory=dict)
    flops_gflops: dict[str, float] = field(default_factory=dict)
    overhead_us: float = 0.0

    def bandwidth_at(self, moved: int) -> float:
        """GB/s for a call that moves ``moved`` bytes (between the measured sizes, by logarithm)."""
        sizes = sorted(self.bandwidth_by_bytes)
        if not sizes or moved >= sizes[-1]:
            return self.bandwidth_gbs
        if moved <= sizes[0]:
            return self.bandwidth_by_bytes[sizes[0]]
        above = next(s for s in sizes if s >= moved)
        below = max(s for s in sizes if s < above)
        part = (math.log(moved) - math.log(below)) / (math.log(above) - math.log(below))
        low, high = self.bandwidth_by_bytes[below], self.bandwidth_by_bytes[above]
        return low + (high - low) * part

    def roofline_us(self, moved: int, flops: int, dtype: str = "float32") -> float:
        """The least time of one call that moves these bytes and does these operations, µs.

        Memory or arithmetic, whichever is longer, plus what any call costs here.
        """
        memory = moved / (self.bandwidth_at(moved) * 1e3)
        peak = self.flops_gflops.get(dtype, self.flops_gflops.get("float32", 0.0))
        return max(memory, flops / (peak * 1e3) if peak else 0.0) + self.overhead_us


def calibrate(device: str = "cpu", *, fresh: bool = False) -> Calibration:
    """The limits of ``device``, from the cache of this machine where they are known.

    The first call takes a second or two. ``fresh`` measures again. Threads are torch's own. What
    was measured while other processes kept a core busy is good for some minutes only
    (:mod:`kforge_nb.profile.remembered`), then measured again.
    """
    identity = _identity({**facts(device), "driver": _driver(device)})
    path = cache_dir() / "calibration" / f"{identity}.json"
    if not fresh:
        found = _read(path, identity)
        if found is not None:
            return found
    if not fresh and identity in _MEASURED:
        return _MEASURED[identity]
    busy = path.with_suffix(".busy.json")
    recalled = None if fresh else recall(busy, identity)
    if recalled is None:
        with ForeignLoad() as load:
            measured = _settled(device, identity)
        if load.cores >= BUSY_CORES:  # good for some minutes only, also in this process
            return remember(busy, measured)
        _write(path, measured)
        _MEASURED[identity] = recalled = measured
    return recalled


def _identity(known: dict[str, Any]) -> str:
    body = json.dumps([SCHEMA, known], sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _driver(device: str) -> str:
    """The version of a GPU's driver, where the system tells; copies differ between them."""
    if kind_of(device) != "cuda":
        return ""
    try:
        return Path("/proc/driver/nvidia/version").read_text().split("\n", 1)[0]
    except OSError:
        return ""


def _settled(device: str, identity: str) -> Calibration:
    """A measurement; on a GPU, where nobody sees who else uses it, two that agree.

    If they do not, a third is taken. The best of each figure counts.
    """
    found = _measure(device, identity)
    if kind_of(device) != "cuda":
        return found
    again = _measure(device, identity)
    low, high = sorted((found.bandwidth_gbs, again.bandwidth_gbs))
    best = merged(found, again)
    return best if low > _AGREE * high else merged(best, _measure(device, identity))


def _measure(device: str, identity: str) -> Calibration:
    import torch

    with torch.inference_mode():
        if kind_of(device) == "cuda":
            overhead, by_bytes = _cuda_memory(device)
        else:
            overhead = _overhead_us(device)
            by_bytes = {size: _copy_gbs(device, size, overhead) for size in _SIZES}
        flops = {dtype: _matmul_gflops(device, dtype) for dtype in _DTYPES}
    far = by_bytes[max(by_bytes)] if kind_of(device) == "cpu" else max(by_bytes.values())
    return Calibration(device, identity, far, by_bytes, flops, overhead)


def _overhead_us(device: str) -> float:
    import torch

    tiny = torch.ones(8, device=device)
    return interleaved_us({0: lambda: tiny.copy_(tiny)}, device, seconds=0.1)[0]


def _copy_gbs(device: str, moved: int, overhead: float) -> float:
    import torch

    source = torch.ones(moved // 8, device=device)
    target = torch.empty_like(source)
    best = _best_us(lambda: target.copy_(source), device)
    return moved / (max(best - overhead, best / 2) * 1e3)


def _cuda_memory(device: str) -> tuple[float, dict[int, float]]:
    """Microseconds of a launch in a graph, and GB/s of copies by bytes moved.

    A kernel that reads and writes as much, because copies of large memory go to copy engines that
    are slower than kernels. It takes its buffers in turn, so many that together they are far larger
    than the second-level cache: what a call finds when it is timed with a cold cache.
    """
    import torch

    with torch.cuda.device(device):
        properties = torch.cuda.get_device_properties(device)
        cache = int(getattr(properties, "L2_cache_size", 64 << 20))
        tiny = torch.zeros(8, device=device)
        launch = _graph_us([lambda: tiny.add_(1)] * 256)
        found = {}
        for moved in _CUDA_SIZES:
            count = max(2, -(-4 * cache // moved))
            if count * moved > torch.cuda.mem_get_info()[0] // 4:
                continue
            flat = torch.ones(count, 2, moved // 8, device=device)
            took = _graph_us([partial(torch.neg, pair[0], out=pair[1]) for pair in flat])
            found[moved] = moved / (max(took - launch, took / 2) * 1e3)
            del flat
        torch.cuda.empty_cache()
    if not found:
        raise BadInput(f"{device} has too little free memory to be calibrated; free some of it")
    return launch, found


def _graph_us(calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds of one of many calls in a CUDA graph: the fastest of nine replays."""
    import torch

    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        for call in calls:
            call()
        graph.capture_end()
    best = math.inf
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / len(calls))
    return best


def _matmul_gflops(device: str, dtype: str) -> float:
    import torch

    size = 4096 if kind_of(device) == "cuda" else 1024
    try:
        one = torch.randn(size, size, device=device).to(getattr(torch, dtype))
        two = torch.randn(size, size, device=device).to(getattr(torch, dtype))
        best = _best_us(lambda: one @ two, device)
    except RuntimeError:
        return 0.0
    return 2 * size**3 / (best * 1e3)


def _best_us(call: Any, device: str) -> float:
    """The fastest of several samples: a limit is what is reached when nothing disturbs."""
    call()
    once = sample_us(call, device)
    number = max(1, min(50, int(500 / max(once, 0.1))))
    samples = 3 if once > 50_000 else 9
    return min(once, *(sample_us(call, device, number) for _ in range(samples)))


def _read(path: Path, identity: str) -> Calibration | None:
    try:
        body = json.loads(path.read_text())
        sizes = {int(k): float(v) for k, v in body["bandwidth_by_bytes"].items()}
        found = Calibration(**{**body, "bandwidth_by_bytes": sizes})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.identity == identity and found.bandwidth_gbs > 0 else None


def _write(path: Path, measured: Calibration) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".calibration-")
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(measured), file)
    Path(name).replace(path)
