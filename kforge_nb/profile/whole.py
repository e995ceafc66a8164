"""Time of the whole workload: its recorded module calls replayed, wall and device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kforge_nb.errors import BadInput
from kforge_nb.profile.device import kind_of, synchronize
from kforge_nb.profile.timing import quiet_value
from kforge_nb.workload.calls import ModuleCall
from kforge_nb.workload.capture import Workload
from kforge_nb.workload.collection import quiet_gc
from kforge_nb.workload.devices import main_device

__all__ = ["device_us", "wall_us"]


def wall_us(workload: Workload, *, seconds: float = 3.0) -> float:
    """Microseconds of all recorded calls of one run: quiet values of replays, times their counts.

    Arguments are copied outside the clock. The user's own code between the calls is not in it.
    A call that cannot be made twice (it uses up an argument) is left out of the workload with a
    note. Raises BadInput where none is left.
    """
    device = main_device(workload)
    per_call = seconds / len(workload.calls)
    total = 0.0
    for call in list(workload.calls):
        try:
            total += call.count * _call_us(call, device, per_call)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            workload.calls.remove(call)
            first = (str(error).strip().splitlines() or [""])[0][:200]
            told = (
                f"a second call of {call.module_name} with the same arguments raised "
                f"{type(error).__name__}: {first}"
            )
            if not workload.calls:
                raise BadInput(f"{told}; measuring needs calls that can be made again") from error
            workload.note(f"{told}; it is left out")
    return total


def _call_us(call: ModuleCall, device: str, seconds: float) -> float:
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    with quiet_gc(), call.grad_state.restored(), call.state_kept():
        _timed(call, device)
        while len(samples) < 3 or (time.perf_counter() < deadline and len(samples) < 20):
            samples.append(_timed(call, device))
    return quiet_value(samples)


def _timed(call: ModuleCall, device: str) -> float:
    args, kwargs = call.fresh_args()
    synchronize(device)
    start = time.perf_counter()
    call.module(*args, **kwargs)
    synchronize(device)
    return (time.perf_counter() - start) * 1e6


def device_us(workload: Workload) -> float | None:
    """Microseconds that the device computes during one run, by torch's profiler.

    On a GPU the sum of kernel times, None where the profiler cannot see any; on a CPU the
    operators' own times less what one tiny operator takes (dispatch and the profiler itself), so
    that what is left is work on data.
    """
    device = main_device(workload)
    measure = _kernels_us if kind_of(device) == "cuda" else _operators_us
    times = [(call.count, measure(call.run, device)) for call in workload.calls]
    if any(us is None for _, us in times):
        return None
    return sum(count * (us or 0.0) for count, us in times)


def _kernels_us(run: Callable[[], Any], device: str) -> float | None:
    """The time of all kernels and copies, µs; None where none was seen."""
    from torch.profiler import ProfilerActivity, profile

    run()
    synchronize(device)
    with _silent_kineto(), profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        run()
        synchronize(device)
    events = [e for e in recorded.key_averages() if str(e.device_type).endswith(".CUDA")]
    return float(sum(e.self_device_time_total for e in events)) if events else None


def _operators_us(run: Callable[[], Any], device: str) -> float:
    """Own time of all operators, µs, with the overhead taken off."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    run()
    with _silent_kineto(), profile(activities=activities) as recorded:
        run()
        synchronize(device)
    tiny = _tiny_us(profile, activities)
    events = [e for e in recorded.key_averages() if e.key.startswith("aten::")]
    return float(sum(max(e.self_cpu_time_total - tiny * e.count, 0.0) for e in events))


@contextmanager
def _silent_kineto() -> Iterator[None]:
    """Kineto writes two lines to stderr at each start unless its log level says otherwise."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "6")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


def _tiny_us(profile: Any, activities: list[Any]) -> float:
    """Own time of an operator that has next to nothing to do, under the profiler."""
    small = torch.ones(8)
    with _silent_kineto(), profile(activities=activities) as recorded:
        for _ in range(200):
            small.neg()
    events = [e for e in recorded.key_averages() if e.key.startswith("aten::")]
    return sum(e.self_cpu_time_total for e in events) / max(1, sum(e.count for e in events))
