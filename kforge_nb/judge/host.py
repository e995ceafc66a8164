"""The CPU as a place to judge on: C++ candidates, the cores for a device, batches of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import fx

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import ResolvedPlan
from kforge_nb.compilers.cpp import CompileFailed, build
from kforge_nb.errors import BadInput
from kforge_nb.judge import policy
from kforge_nb.judge.baseline import BaselineWorker
from kforge_nb.judge.binary import library_folder, runner_binary
from kforge_nb.judge.cases import CAPTURED, Case, build_cases, make_case, secret_generator
from kforge_nb.judge.cores import CORES
from kforge_nb.judge.evaluation import Comparison, Verdict
from kforge_nb.judge.leaks import leak
from kforge_nb.judge.physics import floor_seconds
from kforge_nb.judge.place import Compiled
from kforge_nb.judge.ruling import paired
from kforge_nb.judge.runner_handle import Limits
from kforge_nb.judge.session import LoadedCandidate
from kforge_nb.judge.shelf import Shelf
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.stages import Ended, compile_failed
from kforge_nb.judge.timing import BaselineSide, Plan, RunnerSide, Session, run_session
from kforge_nb.profile.calibration import calibrate
from kforge_nb.settings import cache_dir
from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["HostPlace"]

_BATCH_SECONDS = 20.0
_WARM_CALLS, _WARM_PAIRS = 4096, 22
_WARM_SECONDS = 4e-3
_SPARE_CORES = 0.25  # for the thread that speaks on the pipe


class HostPlace:
    """See :class:`kforge_nb.judge.place.Place`; ``threads`` is what candidates may use."""

    language = "cpp"
    where = "the CPU"
    call_seconds = 3.0

    def __init__(self, folder: Path, threads: int) -> None:
        self.binary = runner_binary()
        self.library_folder = library_folder()
        self.threads = threads
        self.builds = cache_dir() / "cpp"
        self.calibration = calibrate("cpu")
        self.worker = BaselineWorker(folder, threads)

    def working(self) -> AbstractContextManager[None]:
        """Many may work at once."""
        return CORES.work()

    def timing(self) -> AbstractContextManager[None]:
        """The cores alone."""
        return CORES.timing()

    def compiling(self) -> AbstractContextManager[None]:
        """A compiler works on the cores like everybody else."""
        return CORES.work()

    def accept(self, target: Target) -> None:
        """Every tensor must be on the CPU."""
        elsewhere = {s.device for s in (*target.inputs, *target.outputs)} - {"cpu"}
        if elsewhere:
            raise BadInput(
                f"target {target.name} lives on the CPU and on {', '.join(sorted(elsewhere))}; "
                "move the model to one device"
            )

    def make_case(self, graph: fx.GraphModule, name: str, inputs: Sequence[torch.Tensor]) -> Case:
        """Eager and float64, here."""
        return make_case(graph, name, inputs)

    def cases(self, target: Target, known: Shelf | None = None) -> Shelf:
        """All of them in memory."""
        shelf = Shelf("cpu")
        captured = known.named(CAPTURED) if known is not None else ()
        made = build_cases(target, secret_generator(), make=shelf.make, captured=captured)
        return shelf.fill(made)

    def timed(self, specs: Sequence[TensorSpec], seen: list[torch.Tensor]) -> TimedInputs:
        """Slots that together are larger than the near caches."""
        return TimedInputs(specs, seen, secret_generator())

    def scan(self, candidate: Candidate) -> list[policy.Finding]:
        """The C++ source."""
        return policy.scan_source(candidate.source)

    def build(self, candidate: Candidate) -> Compiled:
        """A shared library."""
        built = build(candidate.source, candidate.plan.kernels[0].name, cache=self.builds)
        if isinstance(built, CompileFailed):
            raise compile_failed(built.distilled, built.timed_out)
        return Compiled(built.library, built.log)

    def inspect(self, built: Compiled, candidate: Candidate) -> list[policy.Finding]:
        """The symbols and sections of the library."""
        return policy.inspect_library(built.file, candidate.plan.kernels[0].name)

    def start(
        self, target: Target, plan: ResolvedPlan, built: Compiled, timed: TimedInputs, limit: float
    ) -> LoadedCandidate:
        """A runner without Python and without torch."""
        return LoadedCandidate(
            target,
            plan,
            timed,
            binary=self.binary,
            library=built.file,
            threads=self.threads,
            limits=Limits(call_seconds=limit),
            library_folder=self.library_folder,
        )

    def ahead(self, *_: Any) -> None:
        """A runner starts in milliseconds."""

    def load(self, loaded: LoadedCandidate) -> dict[str, Any]:
        """Whether the strict system-call filter holds."""
        return {"strict_filter": loaded.load()}

    def time(
        self, loaded: LoadedCandidate, key: str, baseline: str, timed: TimedInputs, plan: Plan,
        stop: Callable[[], bool], limit: float,
    ) -> tuple[Session, dict[str, Any]]:  # fmt: skip
        """Batches of calls on the judge's clock."""
        ours = RunnerSide(loaded.runner, max(_BATCH_SECONDS, 4 * limit), self.threads)
        against = BaselineSide(self.worker, key, baseline)
        session = run_session(ours, against, timed, plan, loaded.fetch, stop)
        if kept := leak(ours.grown):
            words = f"it asks for memory that it never gives back, {kept:.0f} bytes in each call"
            raise Ended(Verdict.REFUSED, words)
        if session.cores > self.threads + _SPARE_CORES:
            session.disagreement = (
                f"it kept {session.cores:.2f} cores busy, where it and the baseline were given "
                f"{self.threads}"
            )
        return session, {
            "threads": self.threads,
            "calls_in_a_batch": session.calls,
            "calls_looked_at": len(session.screened),
            "foreign_load": round(session.foreign, 3),
            "cores": round(session.cores, 2),
            "runner_reading_share": round(sorted(ours.own)[len(ours.own) // 2], 3),
        }

    def call_time(self, loaded: Any, key: str, baseline: str) -> Comparison:
        """Both sides with a warm cache: called on the same inputs again and again.

        What decides is timed on inputs that come from memory as far as the caches allow; this is
        the figure of a benchmark that knows one set of inputs, told beside it.
        """
        loaded.bind(slots=1)
        try:
            one = max(min(loaded.runner.batch(0, 1)[0] for _ in range(3)), 1e-6)
            calls = max(1, min(_WARM_CALLS, round(_WARM_SECONDS / one)))
            pairs = [
                (
                    loaded.runner.batch(0, calls)[0] / calls,
                    self.worker.batch(key, baseline, 0, calls, warm=True) / calls,
                )
                for _ in range(_WARM_PAIRS)
            ]
        finally:
            loaded.bind()
        ours, theirs = zip(*pairs[1:], strict=True)
        return paired("warm", ours, theirs)

    def one_call(self, key: str, baseline: str) -> float:
        """One batch of one call."""
        return self.worker.batch(key, baseline, 0, 1)

    def floor_seconds(self, target: Target, timed: TimedInputs) -> float:
        """By the calibrated copy."""
        return floor_seconds(target, timed.region.bytes, self.calibration)

    def trouble(self, problem: Exception) -> None:
        """Nothing here is the device's doing."""

    def sanitize(self, *_: Any) -> dict[str, str]:
        """Guard zones and a process of its own have to do."""
        return {}

    def release(self, key: str, timed: TimedInputs) -> None:  # noqa: ARG002
        """Only the worker knows the target."""
        self.worker.let_go(key)

    def close(self) -> None:
        """End the baseline worker."""
        self.worker.close()
