"""What this device can do at best: a copy and a matrix product, measured once and cached.

On a busy machine even the best of many samples may be far too low. Such a calibration says so
(``busy``): it is a bound from below, good for showing and for no decision that ends a search.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kforge_nb.errors import BadInput
from kforge_nb.profile.device import facts, kind_of
from kforge_nb.profile.reached import fastest_us, implausible, monotone, suspect
from kforge_nb.profile.remembered import RETRY_S, keep, merged, recall, remember
from kforge_nb.profile.timing import ForeignLoad, sample_us
from kforge_nb.settings import cache_dir

__all__ = ["Calibration", "calibrate"]

SCHEMA = "kforge.calibration/3"
BUSY_CORES = 0.3
_AGREE = 0.9  # of the better of two readings of a GPU, for the other one
_MEASURED: dict[str, Calibration] = {}
_CUDA_SIZES = (1 << 20, 1 << 23, 1 << 26, 1 << 29, 1 << 31)
_SIZES = (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 28)
_DTYPES = ("float32", "bfloat16", "float16")
_ALL_S, _AGAIN_S, _AGAIN = 1.0, 0.3, 2  # seconds of all samples; of those of odd sizes; how often
_PRODUCT = 1024  # rows and columns of a matrix product on a CPU
_LOOK_S = 0.25  # seconds for which the machine is looked at before it is measured again


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured limits of one device.

    ``bandwidth_gbs``: bytes read plus written by a copy far larger than the caches, GB/s; on a GPU
    the best of all sizes.
    ``bandwidth_by_bytes``: the same by bytes moved in a call; on a CPU small data stays in caches,
    on a GPU it was measured with a cold cache, as calls are timed there.
    ``flops_gflops``: GFLOP/s of a matrix product by dtype. ``overhead_us``: one call of a tiny op.
    ``busy``: measured beside other work (or the figures contradict each other), so the device may
    be faster than all of this: for these figures alone nothing may be ended or called impossible.
    """

    device: str
    identity: str
    bandwidth_gbs: float
    bandwidth_by_bytes: dict[int, float] = field(default_factory=dict)
    flops_gflops: dict[str, float] = field(default_factory=dict)
    overhead_us: float = 0.0
    busy: bool = False

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
    was measured while other processes kept a core busy is marked so and is good for some minutes
    only (:mod:`kforge_nb.profile.remembered`); it is measured again as soon as a later call finds
    the machine quiet.
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
    recalled = None if fresh else _still_good(busy, identity)
    if recalled is not None:
        return recalled
    with ForeignLoad() as load:
        measured = _settled(device, identity)
    if load.cores >= BUSY_CORES or measured.busy:  # for some minutes only, also in this process
        # A GPU is timed by its own clock, in graphs: what the host is busy with does not slow it.
        return remember(busy, replace(measured, busy=kind_of(device) != "cuda"))
    keep(path, asdict(measured))
    _MEASURED[identity] = measured
    return measured


def _still_good(path: Path, identity: str) -> Calibration | None:
    """What a busy machine gave a moment ago, or some minutes ago if it is busy still."""
    recalled = recall(path, identity)
    if recalled is None or recall(path, identity, within=RETRY_S) is not None:
        return recalled
    return recalled if _foreign_cores() >= BUSY_CORES else None


def _foreign_cores() -> float:
    """Cores that other processes keep busy now."""
    with ForeignLoad() as load:
        time.sleep(_LOOK_S)
    return load.cores


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
        if kind_of(device) != "cuda":
            return _measure_cpu(device, identity)
        overhead, by_bytes = _cuda_memory(device)
        flops = {dtype: _matmul_gflops(device, dtype) for dtype in _DTYPES}
    return Calibration(device, identity, max(by_bytes.values()), by_bytes, flops, overhead)


def _measure_cpu(device: str, identity: str) -> Calibration:
    """All figures from samples in turn; sizes that contradict larger ones are taken again."""
    calls = {"overhead": _copy(device, 64)}
    calls |= {f"copy {size}": _copy(device, size) for size in _SIZES}
    calls |= {f"product {d}": call for d in _DTYPES if (call := _product(device, d)) is not None}
    took = fastest_us(calls, partial(_sample, device), _ALL_S)
    by_bytes = {size: _gbs(size, took) for size in _SIZES}
    for _ in range(_AGAIN):
        odd = [f"copy {size}" for size in implausible(by_bytes)]
        if not odd:
            break
        again = fastest_us({key: calls[key] for key in odd}, partial(_sample, device), _AGAIN_S)
        took |= {key: min(took[key], us) for key, us in again.items()}
        by_bytes = {size: _gbs(size, took) for size in _SIZES}
    flops = {d: _gflops(took.get(f"product {d}"), _PRODUCT) for d in _DTYPES}
    curve = monotone(by_bytes)
    far, overhead = curve[max(curve)], took["overhead"]
    return Calibration(device, identity, far, curve, flops, overhead, suspect(by_bytes))


def _sample(device: str, call: Callable[[], Any], number: int) -> float:
    return sample_us(call, device, number)


def _copy(device: str, moved: int) -> Callable[[], Any]:
    """A copy that reads and writes ``moved`` bytes in all."""
    import torch

    source = torch.ones(moved // 8, device=device)
    return partial(torch.empty_like(source).copy_, source)


def _gbs(moved: int, took: dict[str, float]) -> float:
    """GB/s of a copy, without what any call costs."""
    us = took[f"copy {moved}"]
    return moved / (max(us - took["overhead"], us / 2) * 1e3)


def _product(device: str, dtype: str, size: int = _PRODUCT) -> Callable[[], Any] | None:
    """A product of two square matrices; None where this device has none for the dtype."""
    import torch

    try:
        one = torch.randn(size, size, device=device).to(getattr(torch, dtype))
        call = partial(torch.matmul, one, one.clone())
        call()
    except RuntimeError:
        return None
    return call


def _gflops(us: float | None, size: int) -> float:
    return 2 * size**3 / (us * 1e3) if us else 0.0


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
    size = 4096
    call = _product(device, dtype, size)
    return _gflops(_best_us(call, device) if call is not None else None, size)


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
