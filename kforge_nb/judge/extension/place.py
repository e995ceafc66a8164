"""Where torch extensions are judged: beside the place of the same device, in workers of their own.

Cases, baselines, clocks and rules are those of the device's place. What differs is what a candidate
is (a whole extension), how it is built and called, and how little its process can be trusted: that
is said in every evaluation, in ``resources["host_code"]`` and in the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from kforge_nb.compilers.cuda_extension import OBJECT_NAME, CompileFailed, build_extension
from kforge_nb.judge.bench import Bench
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.judge.extension.policy import inspect_extension, scan_extension
from kforge_nb.judge.extension.session import ExtensionCandidate
from kforge_nb.judge.place import Compiled
from kforge_nb.judge.runner_handle import Limits
from kforge_nb.judge.stages import Ended, Stages, compile_failed
from kforge_nb.settings import cache_dir

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.candidates.plan import ResolvedPlan
    from kforge_nb.judge.place import Place
    from kforge_nb.judge.policy import Finding
    from kforge_nb.judge.slots import TimedInputs
    from kforge_nb.targets.target import Target

__all__ = ["HOST_CODE", "REFUSAL", "ExtensionBench", "ExtensionPlace"]

HOST_CODE = "host code: the weakest kind of check"
REFUSAL = (
    "it is a torch extension, whose host code can do anything that its process may; allow it with "
    "--allow-host-code (allow_host_code=True) if you trust where it comes from"
)


class ExtensionPlace:
    """A device as the judge needs it for torch extensions (:class:`kforge_nb.judge.place.Place`).

    What is not here is asked of ``place``, the device's own.
    """

    language = "cuda_extension"

    def __init__(self, place: Place, device: str, threads: int) -> None:
        self._place = place
        self._device = device
        self._threads = threads
        self.stop: Callable[[], bool] | None = None

    def __getattr__(self, name: str) -> Any:
        """What an extension shares with every other candidate on the device."""
        return getattr(self._place, name)

    def scan(self, candidate: Candidate) -> list[Finding]:
        """The text of the source."""
        return scan_extension(candidate.source)

    def build(self, candidate: Candidate) -> Compiled:
        """A torch extension; raises Ended where that fails."""
        built = build_extension(
            candidate.source, self._device, cache=cache_dir() / "extensions", stop=self.stop
        )
        if isinstance(built, CompileFailed):
            if built.stopped:
                raise Ended(Verdict.UNDECIDED, "stopped while it was built")
            raise compile_failed(built.distilled, built.timed_out)
        resources: dict[str, Any] = {"compiler": built.compiler}
        if built.resources:
            resources["kernels"] = {n: asdict(entry) for n, entry in built.resources.items()}
        return Compiled(built.library, built.log, resources)

    def inspect(self, built: Compiled, _candidate: Candidate) -> list[Finding]:
        """The symbols of the library."""
        return inspect_extension(built.file.with_name(OBJECT_NAME), built.file)

    def start(
        self, target: Target, _plan: ResolvedPlan, built: Compiled, timed: TimedInputs, limit: float
    ) -> ExtensionCandidate:
        """A worker with Python and torch, confined."""
        return ExtensionCandidate(
            target,
            timed,
            library=built.file,
            threads=self._threads,
            limits=Limits(call_seconds=limit),
        )

    def ahead(self, *_: Any) -> None:
        """A worker is started for one extension, when it is built."""

    def load(self, loaded: ExtensionCandidate) -> dict[str, Any]:
        """Which layers of the sandbox hold."""
        return {"sandbox": loaded.layers()}

    def sanitize(self, *_: Any) -> dict[str, str]:
        """The tools are run over the runner of device code, which cannot load an extension."""
        return {}


class ExtensionBench(Bench):
    """A bench as torch extensions see it: the same cases, baselines and slots, other workers."""

    def __init__(self, bench: Bench) -> None:
        self.__dict__.update(bench.__dict__)
        threads = bench._judge.threads
        self._extensions = ExtensionPlace(bench._place, bench.target.device, threads)
        self._place = self._extensions

    def _admit(
        self, candidate: Candidate, stopped: Callable[[], bool], record: Stages
    ) -> tuple[ResolvedPlan, Compiled]:
        """As ever; a build takes half a minute, so it can be stopped too."""
        self._extensions.stop = stopped
        return super()._admit(candidate, stopped, record)

    def _judged(self, candidate: Candidate, *rest: Any) -> Evaluation:
        """As ever, and marked."""
        if not self._judge.allow_host_code:
            return Evaluation(Verdict.REFUSED, REFUSAL, resources={"host_code": True})
        found = super()._judged(candidate, *rest)
        return replace(
            found,
            reason=f"{found.reason} ({HOST_CODE})",
            resources={**found.resources, "host_code": True},
        )
