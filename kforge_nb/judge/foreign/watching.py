"""What a candidate may not change in its own process, and which operators of torch it calls.

The clock that decides and the expected values are in another process, so a changed clock gains
nothing. It shows what the candidate is, though: an honest kernel has no reason to replace one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kforge_nb.judge.extension import memory, stage, worker
from kforge_nb.judge.foreign.stage import StreamedStage

__all__ = ["OperatorLog", "Watch"]

_MEMORY_WORDS = """
empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros zero_ full
full_like new_full ones ones_like fill_ resize_ view view_as reshape _reshape_alias as_strided slice
select narrow squeeze unsqueeze permute transpose t expand flatten contiguous detach detach_ alias
size stride numel copy_ _to_copy clone lift_fresh unbind split chunk _unsafe_view set_ is_pinned
"""
MEMORY = frozenset(_MEMORY_WORDS.split())
"""Operators of aten that move or name memory and compute nothing."""

_PLACES: tuple[tuple[Any, str], ...] = (
    *((time, n) for n in ("time", "perf_counter", "perf_counter_ns", "monotonic", "process_time")),
    *((torch.cuda, n) for n in ("synchronize", "current_stream", "default_stream", "Event")),
    (torch.cuda.Event, "elapsed_time"),
    (torch.cuda.Event, "record"),
    (torch.cuda.Event, "synchronize"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.CUDAGraph, "replay"),
    (torch._C, "_cuda_synchronize"),
    *((torch, n) for n in ("allclose", "equal", "isclose", "compile", "frombuffer", "empty_like")),
    *((torch.Tensor, n) for n in ("copy_", "equal", "__eq__", "stride", "untyped_storage")),
)
_OWN: tuple[Any, ...] = (
    stage.HostStage, stage.DeviceStage, StreamedStage, stage, memory.Memory, memory.Place,
    worker.Worker, worker,
)  # fmt: skip
"""Classes and modules that call candidates, and hand out what they return."""
_SWITCHES: dict[str, Any] = {
    "torch's default dtype": torch.get_default_dtype,
    "torch's default device": torch.get_default_device,
    "torch's number of threads": torch.get_num_threads,
    "the process's trace function": sys.gettrace,
    "the process's profile function": sys.getprofile,
    "the number of threads of Python": threading.active_count,
}


class Watch:
    """Functions and switches as they were when this was made.

    ``own`` are more classes whose functions are the judge's.
    """

    def __init__(self, own: tuple[Any, ...] = ()) -> None:
        places = [*_PLACES, *((owner, n) for owner in (*_OWN, *own) for n in _functions(owner))]
        self._functions = [(owner, name, getattr(owner, name, None)) for owner, name in places]
        self._switches = {words: read() for words, read in _SWITCHES.items()}
        self._read = dict(_SWITCHES)
        self._getattr = getattr

    def changed(self) -> str | None:
        """What is not as it was, in words; None if everything is."""
        for owner, name, was in self._functions:
            if self._getattr(owner, name, None) is not was:
                return f"it replaced {_name(owner)}.{name}"
        for words, read in self._read.items():
            now = read()
            if now != self._switches[words]:
                return f"it changed {words} from {self._switches[words]} to {now}"
        return None


def _functions(owner: Any) -> list[str]:
    return [name for name, value in vars(owner).items() if isinstance(value, FunctionType)]


def _name(owner: Any) -> str:
    module = getattr(owner, "__module__", "")
    name = str(getattr(owner, "__name__", owner))
    return f"{module}.{name}" if module and "." not in name else name


class OperatorLog(TorchDispatchMode):
    """Counts the operators of aten that compute something, by name without overload."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and go on."""
        name = str(getattr(func, "_schema", func)).split("(")[0].split("::")[-1].split(".")[0]
        if name not in MEMORY and str(func).startswith("aten"):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))
