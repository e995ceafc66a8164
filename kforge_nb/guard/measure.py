"""In-model measurement: the workload's recorded calls, interleaved variants, paired samples.

A sample is the time of all recorded calls once, each weighted by how often the workload makes it;
short calls on a GPU are made many times for one sample. The clock stops when the devices are done.
Arguments that a call may change are copied before the clock starts; grad, inference and autocast
state are those of the recording. Samples of all sides are taken next to each other in random order,
so that drift and foreign load meet every side alike.
"""

from __future__ import annotations

import gc
import math
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.guard.entry import fresh_entry
from kforge_nb.guard.policy import dynamic_for
from kforge_nb.guard.switch import SwitchBackend
from kforge_nb.judge.statistics import next_look
from kforge_nb.workload.calls import signature, tensors_of
from kforge_nb.workload.collection import quiet_gc
from kforge_nb.workload.fixed_sizes import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.workload.calls import ModuleCall

__all__ = [
    "Model",
    "OutOfMemory",
    "Pace",
    "Stopped",
    "Timer",
    "free_memory",
    "gpus",
    "interleave",
    "one_sample",
    "raw",
]

FLOOR = 3
SAMPLE_SECONDS = 0.005
MOST_REPEATS = 50


class Stopped(Exception):
    """Stop was pressed, or the time is over."""


class OutOfMemory(Exception):
    """A GPU's memory did not suffice for one side of a measurement; ``side`` is its name."""

    def __init__(self, side: str, problem: BaseException) -> None:
        first = (str(problem).strip().splitlines() or [""])[0].split(". ")[0]
        super().__init__(f"out of memory while running {side} ({first[:160]})")
        self.side = side


def free_memory() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Pace:
    """How often each call is made for one sample: once, but short calls on a GPU many times.

    Synchronising costs tens of microseconds, and a call that its host holds up varies by as much.
    """

    def __init__(self) -> None:
        self._repeats: dict[int, int] = {}

    def learn(self, call: ModuleCall, seconds: float) -> None:
        """Take these seconds for the time of one call."""
        wanted = math.ceil(SAMPLE_SECONDS / max(seconds, 1e-6)) if gpus(call) else 1
        self._repeats[id(call)] = max(1, min(MOST_REPEATS, wanted))

    def repeats(self, call: ModuleCall) -> int:
        """Calls for one sample."""
        return self._repeats.get(id(call), 1)


@dataclass
class Timer:
    """How long measuring may go on; ``check`` raises Stopped when it is over."""

    deadline: float
    stop: Any = None

    @classmethod
    def of(cls, seconds: float, stop: Any = None) -> Timer:
        """A timer that ends ``seconds`` from now; ``stop`` is a ``threading.Event`` or None."""
        return cls(time.monotonic() + seconds, stop)

    def part(self, share: float) -> Timer:
        """A timer over this share of what is left."""
        return Timer.of(max(0.0, self.left * share), self.stop)

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether Stop was pressed."""
        return self.stop is not None and bool(self.stop.is_set())

    def check(self) -> None:
        """Raise Stopped if Stop was pressed."""
        if self.stopped:
            raise Stopped


@dataclass
class Model:
    """The workload's calls through one switchable backend; the live modules stay as they are."""

    calls: Sequence[ModuleCall]
    backend: SwitchBackend
    entries: dict[int, Callable[..., Any]] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)

    @classmethod
    def of(
        cls,
        calls: Sequence[ModuleCall],
        accepted: Sequence[Accepted],
        rest: str,
        pace: Pace | None = None,
        early: Iterable[frozenset[str]] = (),
    ) -> Model:
        """Compile entries for the modules of these calls; nothing runs yet.

        ``early`` are sets of kernels to compile beside all and none, see ``SwitchBackend``.
        """
        backend = SwitchBackend(accepted, rest, early)
        model = cls(calls, backend, pace=pace or Pace())
        for module in {id(c.module): c.module for c in calls}.values():
            own = [signature(c.args, c.kwargs) for c in calls if c.module is module]
            entry = fresh_entry(type(module).__name__)
            model.entries[id(module)] = compiled(entry, backend, dynamic_for(own))
        return model

    def recorded(self, accepted: Sequence[Accepted], rest: str) -> Model:
        """The same calls with this model's graphs as CUDA graphs; nothing is traced anew.

        ``accepted`` are kernels that this model has as well.
        """
        return Model(self.calls, self.backend.recorded(accepted, rest), self.entries, self.pace)

    def fused(self, accepted: Sequence[Accepted], rest: str) -> Model:
        """The same calls with this model's graphs compiled by a rest; nothing is traced anew.

        Compiled is what runs, or what ``backend.build`` is asked for. ``accepted`` as above; the
        model's backend must be ``fixed``.
        """
        return Model(self.calls, self.backend.fused(accepted, rest), self.entries, self.pace)

    def runner(self, call: ModuleCall) -> Callable[..., Any]:
        """What to call instead of the call's module."""
        entry, module = self.entries[id(call.module)], call.module

        def run(*args: Any, **kwargs: Any) -> Any:
            self.backend.act()
            return entry(module, args, kwargs)

        return run

    def run(self, enabled: frozenset[str]) -> float:
        """Run every call once in a variant; weighted seconds."""
        self.backend.enabled, self.backend.timing = enabled, False
        return sum(c.count * timed(c, self.runner(c), self.pace.repeats(c)) for c in self.calls)

    def run_timed(self, kernels: bool) -> dict[str, float]:
        """Run every call once; seconds spent at each target's places, kernels or originals."""
        self.backend.timing = True
        spent: dict[str, float] = {}
        try:
            for call in self.calls:
                self.backend.clock.restart(kernels)
                timed(call, self.runner(call))
                for key, ns in self.backend.clock.read().items():
                    spent[key] = spent.get(key, 0.0) + call.count * ns * 1e-9
        finally:
            self.backend.timing = False
        return spent


def timed(call: ModuleCall, run: Callable[..., Any], repeats: int = 1) -> float:
    """Seconds of one call on fresh arguments under its recorded state; buffers are put back.

    The mean of ``repeats`` calls, between which nothing but the arguments is copied.
    """
    devices, spent = gpus(call), 0.0
    with call.grad_state.restored(), call.state_kept():
        for _ in range(repeats):
            args, kwargs = call.fresh_args()
            _wait(devices)
            start = time.perf_counter()
            result = run(*args, **kwargs)
            _wait(devices)
            spent += time.perf_counter() - start
            del result, args, kwargs
    return spent / repeats


def _wait(devices: Sequence[torch.device]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)


def gpus(call: ModuleCall) -> list[torch.device]:
    """The GPUs that a call computes on."""
    if not torch.cuda.is_initialized():
        return []
    tensors = tensors_of(call.module, call.args, call.kwargs)
    return list({t.device: None for t in tensors if t.is_cuda})


def raw(calls: Sequence[ModuleCall], pace: Pace | None = None) -> float:
    """Every call once in plain eager, whatever is installed or compiled; weighted seconds."""
    return sum(
        c.count * timed(c, c.module._call_impl, pace.repeats(c) if pace else 1) for c in calls
    )


def interleave(
    sides: Mapping[str, Callable[[], Any]],
    timer: Timer,
    *,
    rounds: int,
    least: int = 5,
    rng: random.Random,
    enough: Callable[[Mapping[str, list[Any]]], bool] | None = None,
) -> dict[str, list[Any]]:
    """Samples of every side, taken round by round in random order.

    Args:
        sides: what to sample, by name; each returns one sample.
        timer: no round starts after it is over, except for the first three.
        rounds: at most so many.
        least: at least so many before ``enough`` is asked.
        rng: order within rounds.
        enough: asked every few rounds whether the samples suffice.

    Raises:
        Stopped: Stop was pressed.
        OutOfMemory: a side did not fit into a GPU's memory.
    """
    samples: dict[str, list[Any]] = {name: [] for name in sides}
    names = list(sides)
    look = least
    gc.collect()
    with quiet_gc():
        for done in range(rounds):
            timer.check()
            if timer.left <= 0 and done >= min(least, FLOOR):
                break
            if enough is not None and done == look:
                if enough(samples):
                    break
                look = next_look(done)
            rng.shuffle(names)
            for name in names:
                timer.check()
                samples[name].append(one_sample(name, sides[name]))
    return samples


def one_sample(name: str, side: Callable[[], Any]) -> Any:
    """A sample of one side; raises OutOfMemory with its name where memory did not suffice."""
    try:
        return side()
    except torch.OutOfMemoryError as problem:
        shortage = OutOfMemory(name, problem)
    raise shortage  # outside the handler, so that no traceback holds the side's memory
