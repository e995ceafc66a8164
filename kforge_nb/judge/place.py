"""The seam between the judge and the device that a target lives on.

The order of the stages, the verdicts and their reasons are the bench's, and the same everywhere.
A *place* knows the rest: which language candidates are written in, how one is compiled, loaded,
called and timed, how fast the hardware can be, and who has to wait while something is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import fx

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.candidates.plan import ResolvedPlan
    from kforge_nb.judge.baseline import BaselineWorker
    from kforge_nb.judge.cases import Case
    from kforge_nb.judge.evaluation import Comparison
    from kforge_nb.judge.policy import Finding
    from kforge_nb.judge.session import Checked
    from kforge_nb.judge.shelf import Shelf
    from kforge_nb.judge.slots import TimedInputs
    from kforge_nb.judge.timing import Plan, Session
    from kforge_nb.profile.calibration import Calibration
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["Compiled", "Loaded", "Place"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A candidate's binary (a shared library, a cubin), the compiler's log, and its resources."""

    file: Path
    log: str
    resources: dict[str, Any] = field(default_factory=dict)


class Loaded(Protocol):
    """One candidate in a process of its own; a context manager. Methods may raise RunnerFailed."""

    def __enter__(self) -> Any:
        """Itself."""

    def __exit__(self, *ended: Any) -> None:
        """End the process and give its memory back."""

    def check(self, cases: Iterable[Case]) -> Checked:
        """Run every case on poisoned memory and compare."""

    def fetch(self, age: int) -> list[torch.Tensor]:
        """Copies of the outputs of a timed call (0: the last one)."""


class Place(Protocol):
    """A device as the judge needs it."""

    language: str
    """What candidates are written in here."""
    where: str
    """The device in words, for reasons."""
    worker: BaselineWorker
    calibration: Calibration
    call_seconds: float
    """The least time limit of one call."""

    def working(self) -> AbstractContextManager[None]:
        """Hold the device for work that nobody times."""

    def timing(self) -> AbstractContextManager[None]:
        """Hold the device alone."""

    def compiling(self) -> AbstractContextManager[None]:
        """Hold what a compiler needs."""

    def accept(self, target: Target) -> None:
        """Raise BadInput, in words, for a target that cannot be judged here."""

    def make_case(self, graph: fx.GraphModule, name: str, inputs: Sequence[torch.Tensor]) -> Case:
        """Eager and float64 on one input set (from anywhere), on this device."""

    def cases(self, target: Target, known: Shelf | None = None) -> Shelf:
        """Captured, redrawn and hard input sets with what is expected, from a secret seed.

        ``known``: cases of the same target, of which the captured ones are taken as they are.
        """

    def timed(self, specs: Sequence[TensorSpec], seen: list[torch.Tensor]) -> TimedInputs:
        """Slots of inputs for timed calls."""

    def scan(self, candidate: Candidate) -> list[Finding]:
        """What the source may not contain, gravest first."""

    def build(self, candidate: Candidate) -> Compiled:
        """Compile; raises Ended where that fails, ContractBreach, MissingTool."""

    def inspect(self, built: Compiled, candidate: Candidate) -> list[Finding]:
        """What the binary may not contain, gravest first."""

    def start(
        self, target: Target, plan: ResolvedPlan, built: Compiled, timed: TimedInputs, limit: float
    ) -> Loaded:
        """A new process for the candidate; one call may take ``limit`` seconds."""

    def ahead(self, target: Target, timed: TimedInputs, limit: float, count: int) -> None:
        """So many processes will be started next: have them ready where that takes long."""

    def load(self, loaded: Any) -> dict[str, Any]:
        """Have the candidate loaded and bound; what there is to say goes into the resources."""

    def time(
        self, loaded: Any, key: str, baseline: str, timed: TimedInputs, plan: Plan,
        stop: Callable[[], bool], limit: float,
    ) -> tuple[Session, dict[str, Any]]:  # fmt: skip
        """Interleaved timing against one baseline, and figures for the resources.

        ``limit`` is the time limit of one call of the candidate, seconds.
        """

    def call_time(self, loaded: Any, key: str, baseline: str) -> Comparison | None:
        """A further figure: on a GPU a call as the host sees it, on a CPU one with a warm cache."""

    def one_call(self, key: str, baseline: str) -> float:
        """About how many seconds one call of a baseline takes."""

    def floor_seconds(self, target: Target, timed: TimedInputs) -> float:
        """Seconds below which one call would be faster than physics."""

    def trouble(self, problem: Exception) -> str | None:
        """Words for an exception that is the device's doing (out of memory), else None."""

    def sanitize(
        self, target: Target, plan: ResolvedPlan, built: Compiled, timed: TimedInputs, case: Case
    ) -> dict[str, str]:
        """What slow tools find in one call of a winner, by tool; empty where there are none."""

    def release(self, key: str, timed: TimedInputs) -> None:
        """Let go of what is held for a target whose bench closes."""

    def close(self) -> None:
        """End every process. Safe to call twice."""
