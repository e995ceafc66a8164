"""Time and operations of each target, alone, on the inputs it was captured with.

On a CPU the targets are timed interleaved, since other work disturbs all of them alike. On a GPU
each is timed after the other with a cold cache, so that only one target's inputs are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kforge_nb.profile.cold import ColdTimer
from kforge_nb.profile.cost import flops_of
from kforge_nb.profile.device import kind_of
from kforge_nb.profile.timing import interleaved_us
from kforge_nb.targets.target import Target

__all__ = ["Measured", "measure"]

_GPU_LEAST_S = 0.005


@dataclass(slots=True)
class Measured:
    """One target alone: µs of a call (None where it could not be timed) and its operations."""

    mean_us: float | None = None
    flops: int = 0


def measure(
    targets: Sequence[Target], note: Callable[[str], None], seconds: float
) -> list[Measured]:
    """Times and operations, in the order of ``targets``; what went wrong goes to ``note``."""
    found = [Measured() for _ in targets]
    with torch.no_grad():
        _on_cpu(targets, found, note, seconds)
        for device in sorted({t.device for t in targets if kind_of(t.device) == "cuda"}):
            here = [i for i, t in enumerate(targets) if t.device == device and _has_inputs(t)]
            _on_gpu(device, here, targets, found, note, seconds)
    return found


def _has_inputs(target: Target) -> bool:
    return target.captured is not None and len(target.captured) > 0


def _first_inputs(target: Target) -> list[torch.Tensor]:
    return target.captured.sets()[0] if target.captured is not None else []


def _on_cpu(
    targets: Sequence[Target],
    found: list[Measured],
    note: Callable[[str], None],
    seconds: float,
) -> None:
    calls: dict[int, Callable[[], Any]] = {}
    for i, target in enumerate(targets):
        if kind_of(target.device) != "cpu" or not _has_inputs(target):
            continue
        inputs = _first_inputs(target)
        try:
            target.graph.forward(*inputs)
        except RuntimeError as error:
            note(f"{target.name} could not be run alone: {str(error)[:200]}")
            continue
        calls[i] = partial(target.graph.forward, *inputs)
        found[i].flops = _flops(target, inputs, note)
    if calls:
        for i, us in interleaved_us(calls, "cpu", seconds=seconds).items():
            found[i].mean_us = us


def _on_gpu(
    device: str,
    places: Sequence[int],
    targets: Sequence[Target],
    found: list[Measured],
    note: Callable[[str], None],
    seconds: float,
) -> None:
    if not places:
        return
    timer = ColdTimer(device)
    each = max(seconds / len(places), _GPU_LEAST_S)
    for i in places:
        target = targets[i]
        try:
            inputs = _first_inputs(target)
            call = partial(target.graph.forward, *inputs)
            found[i].mean_us = timer.us(call, seconds=each)
            del call
            found[i].flops = _flops(target, inputs, note)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            note(f"{target.name} was not timed: the memory of {device} did not suffice")
        except RuntimeError as error:
            note(f"{target.name} could not be run alone: {str(error)[:200]}")
        inputs = []


def _flops(target: Target, inputs: list[torch.Tensor], note: Callable[[str], None]) -> int:
    try:
        return flops_of(target, inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        note(f"operations of {target.name} could not be counted: {str(error)[:200]}")
        return 0
