"""The sides of a measurement: samplers of variants, their memory, and when samples suffice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.guard import launch
from kforge_nb.guard.measure import free_memory, one_sample
from kforge_nb.guard.stats import looked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kforge_nb.guard.measure import Model
    from kforge_nb.judge.evaluation import Comparison

__all__ = [
    "absence",
    "at_place",
    "idle",
    "name_of",
    "peak_of",
    "reserved",
    "sample_of",
    "settled",
]


def sample_of(model: Model, enabled: frozenset[str]) -> Callable[[], float]:
    """A sampler of one variant, in microseconds."""
    return lambda: 1e6 * model.run(enabled)


def reserved() -> int:
    """Bytes of the current GPU that torch holds and somebody may use, 0 without a GPU."""
    if not torch.cuda.is_initialized():
        return 0
    free_memory()
    return torch.cuda.memory_reserved()


def peak_of(name: str, sample: Callable[[], float]) -> int:
    """Take a sample that warms up; the peak of memory on the current GPU, 0 without one."""
    if not torch.cuda.is_initialized():
        one_sample(name, sample)
        return 0
    torch.cuda.reset_peak_memory_stats()
    one_sample(name, sample)
    return torch.cuda.max_memory_allocated()


def name_of(kept: frozenset[str]) -> str:
    """What a model with these kernels is called; without any it is the rest alone."""
    return "guarded" if kept else "empty"


def absence(model: Model) -> str:
    """Why a target was not found in the graphs of the live model."""
    problems = sorted({site.problem for site in model.backend.sites if site.problem})
    return "; ".join(["it does not occur in the graphs of the live model", *problems])


def at_place(samples: Mapping[str, list[Mapping[str, float]]], fingerprint: str) -> Comparison:
    """A kernel against its original, from samples of seconds at all places of each target."""
    ours = [1e6 * max(s.get(fingerprint, 0.0), 1e-9) for s in samples["kernel"]]
    theirs = [1e6 * max(s.get(fingerprint, 0.0), 1e-9) for s in samples["original"]]
    return looked("original", ours, theirs)


def idle(handle: int, before: Mapping[str, Any]) -> str:
    """Why a kernel's original ran wherever it was timed; empty where the kernel ran.

    ``before``: its counters before the timing. Two runs of the original look like a kernel without
    gain.
    """
    now = launch.counters(handle)
    if now["launches"] > before["launches"]:
        return ""
    rose = [r for r, n in now["fallbacks"].items() if n > before["fallbacks"].get(r, 0)]
    return f"its kernel never ran at its place ({', '.join(rose) or 'it was not called'})"


def settled(found: Comparison, width: float = 0.05) -> bool:
    """Whether more samples would change nothing that matters."""
    narrow = found.high / found.low - 1 < width if found.low > 0 else False
    return found.n >= 8 and (found.low > 1.02 or found.high < 0.98 or narrow)
