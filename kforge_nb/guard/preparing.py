"""Rests made ready for measuring: traced, compiled, recorded, each by steps that there is time for.

Dynamo traces the workload once, for the eager rest. Inductor compiles these graphs, with what
processes of its own have compiled ahead, and CUDA graphs record what either of the two runs. Only
graphs whose sizes vary, or that need gradients, are traced again for Inductor.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from kforge_nb.guard import measure
from kforge_nb.guard.ahead import Ahead, NotFinished
from kforge_nb.guard.measure import Model, Pace, Timer, one_sample
from kforge_nb.guard.policy import RECORDS, TRACED
from kforge_nb.guard.report import isolated_comparison
from kforge_nb.guard.spending import COMPILES, Spending
from kforge_nb.guard.stage import Late, Unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.guard.switch import Site
    from kforge_nb.workload.calls import ModuleCall

__all__ = ["Preparing"]

WARM_UPS = 2


class Preparing(Spending):
    """The models of a decision, by rest, and what was compiled ahead for them."""

    def __init__(
        self,
        calls: Sequence[ModuleCall],
        accepted: Sequence[Accepted],
        timer: Timer,
        progress: Callable[[str, float], None] | None,
    ) -> None:
        super().__init__(timer)
        self.calls = calls
        self.accepted = {kernel.target_fingerprint: kernel for kernel in accepted}
        self.progress = progress
        self.notes: list[str] = []
        self.pace = Pace()
        self.ahead = Ahead()
        self.sites: list[Site] = []
        self.models: dict[str, Model] = {}

    def say(self, text: str) -> None:
        """Tell the progress and give Stop a chance."""
        self.timer.check()
        if self.progress is not None:
            self.progress(text, min(1.0, 1.0 - self.timer.left / self.total))

    def prepare(self, rest: str, kernels: Sequence[Accepted], *early: frozenset[str]) -> Model:
        """Compile and warm up, outside every clock; ``early`` are sets of kernels to try as well.

        Raises:
            Unusable: no graph could be recorded, where the rest is to record CUDA graphs, or the
                time does not suffice for a step that cannot be broken off.
            OutOfMemory: a GPU's memory did not suffice.
        """
        self.say(f"compiling the model with rest={rest}")
        start = time.monotonic()
        base = self._to_record(rest)
        model = self._shared(rest, kernels) or self._traced(rest, kernels, early)
        every = frozenset(model.backend.handles)
        if "inductor" in rest and base is None and model.backend.traced is not model.backend:
            self._compile(model, every, frozenset[str](), *early)
        for enabled in (frozenset[str](), every):
            for _ in range(WARM_UPS):
                name = f"rest={rest} {'with' if enabled else 'without'} kernels"
                self.run_seconds = one_sample(name, partial(model.run, enabled))
        if rest == "eager":
            self.sites = model.backend.sites
            self.trace_seconds = time.monotonic() - start
            self.compile_reserve = 2 * self.trace_seconds
        self._look_at_recordings(model)
        self.models[rest] = model
        return model

    def _shared(self, rest: str, kernels: Sequence[Accepted]) -> Model | None:
        """The model over graphs that another rest has traced; None where there are none."""
        if torch._inductor.config.triton.cudagraphs:  # what Inductor compiled has its own
            return None
        if rest in RECORDS:
            below = self._to_record(rest) or self._shared(RECORDS[rest], kernels)
            return below and below.recorded(kernels, rest)
        traced = self.models.get(TRACED.get(rest, ""))
        if traced is None or not traced.backend.fixed:
            return None
        return traced.fused(kernels, rest)

    def _to_record(self, rest: str) -> Model | None:
        """The model whose graphs this rest records, where it is there already."""
        if torch._inductor.config.triton.cudagraphs:
            return None
        return self.models.get(RECORDS.get(rest, ""))

    def _traced(
        self, rest: str, kernels: Sequence[Accepted], early: Sequence[frozenset[str]]
    ) -> Model:
        """The model with a trace of its own, in which Inductor compiles all variants at once."""
        compiles = (COMPILES + len(early)) * self.compile_reserve if "inductor" in rest else 0.0
        if self.trace_seconds and self.timer.left < self.trace_seconds + compiles:
            raise Late(self.over())
        return Model.of(self.calls, kernels, rest, self.pace, early)

    def _compile(self, model: Model, *sets: frozenset[str]) -> None:
        """Compile these variants here, one step after the other, each only if there is time."""
        for count, enabled in enumerate(dict.fromkeys(sets), 1):
            if self.timer.left < self.compile_reserve:
                raise Late(self.over())
            self.say(f"taking over compile {count} of {len(set(sets))}, rest={model.backend.rest}")
            start = time.monotonic()
            model.backend.build(enabled)
            self.compile_reserve = time.monotonic() - start

    def time_for(self, rest: str) -> bool:
        """Whether there is time to try one more rest."""
        needed = self.measuring()
        if self._to_record(rest) is None:
            needed += COMPILES * self.compile_reserve
        return self.timer.left >= needed

    def leave_out(self, rest: str) -> None:
        """Say that a rest is not measured for want of time."""
        self.late[rest] = self.over()
        self.notes.append(f"rest={rest} was not tried: {self.late[rest]}")

    def begin_ahead(self, kept: frozenset[str]) -> None:
        """Let processes compile for Inductor beside what comes next, where there are cores."""
        self.ahead.begin(self.sites, kept, self.for_compile(share=1.0), self._strong(kept))

    def compile_ahead(self, rest: str, kept: frozenset[str], *more: frozenset[str]) -> None:
        """Fill Inductor's cache from a process that Stop and the time limit can kill.

        Raises:
            Late: it did not finish.
            Stopped: Stop was pressed.
        """
        if "inductor" not in rest:
            return
        self.reserve = 0.0
        timer = self.for_compile()
        limit = f"for up to {timer.left:.0f} s"
        self.say(f"compiling ahead for rest={rest}, in a process of its own, {limit}")
        try:
            why = self.ahead.compile(self.sites, kept, timer, *more)
        except NotFinished as problem:
            raise Late(f"compiling it {problem}; {self.over()}") from None
        if why:
            self.notes.append(f"rest={rest} was compiled here, where Stop has to wait: {why}")

    def _look_at_recordings(self, model: Model) -> None:
        compiler = model.backend.compile_rest
        why = compiler.unrecorded
        if why and not any(replay.recorded for replay in compiler.replays):
            raise Unusable(f"no graph could be recorded: {'; '.join(why)}")
        if why:
            self.notes.append(f"rest={compiler.name}: some graphs run plain: {'; '.join(why)}")

    def learn_pace(self) -> None:
        """How long do untouched calls on a GPU take, and so how often does a sample make each?"""
        for call in filter(measure.gpus, self.calls):
            for _ in range(WARM_UPS):
                plain = partial(measure.timed, call, call.module._call_impl)
                seconds = one_sample("the untouched model", plain)
            self.pace.learn(call, seconds)

    def _strong(self, kept: frozenset[str]) -> frozenset[str]:
        return frozenset(f for f in kept if self._beats_compiler(f))

    def _beats_compiler(self, fingerprint: str) -> bool:
        found = isolated_comparison(self.accepted[fingerprint], "compile")
        return found is None or found.ratio > 1.0
