"""The judge's end of a foreign candidate: its worker, what it wants built, what it says of itself.

Cases, comparison and timing are those of every isolated candidate. Two things are added. Weights:
a class is built with the reference's seed and given the reference's weights where it has them under
the same names; one more case changes them, and one that fails it alone keeps copies (which is said,
not punished). And credit: what a log of torch's operators shows to be torch's own work earns none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kforge_nb.candidates.plan import ResolvedPlan
from kforge_nb.judge.cases import Case
from kforge_nb.judge.checked import Checked, IsolatedCandidate
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.extension.session import (
    START_SECONDS,
    DeviceExtensionRunner,
    HostExtensionRunner,
    inputs_away,
    layers_held,
    layout_of,
)
from kforge_nb.judge.foreign.ops import NOTES, ForeignOp, NeedsBuild, Tampered, Unfit, unpack_notes
from kforge_nb.judge.protocol import Reply
from kforge_nb.judge.regions import OutputLayout, Region
from kforge_nb.judge.runner_handle import Limits, RunnerFailed
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.stages import Ended
from kforge_nb.targets.target import Target

__all__ = ["OTHER_WEIGHTS", "ForeignCandidate", "Loading", "Wanted", "wanted_builds"]

OTHER_WEIGHTS = "other weights"
MEMORY = 4 << 30
_MAIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1])['path']; "
    "from kforge_nb.judge.foreign.worker import main; main()"
)


class Wanted(Exception):
    """Extensions that a file wants built before it can be loaded."""

    def __init__(self, requests: list[dict[str, Any]]) -> None:
        super().__init__(f"{len(requests)} extensions are to be built")
        self.requests = requests


@dataclass(frozen=True, slots=True)
class Loading:
    """What a worker is told of its file: where its text is, what it is, what is built for it."""

    source: Path
    kind: str
    entry: str
    layout: dict[str, Any]
    libraries: dict[str, str]
    launch: str = ""
    triton: bool = False
    report: bool = False
    streamed: bool = False
    cache: str = ""

    def told(self) -> dict[str, Any]:
        """For the worker's command line."""
        return {
            "foreign": {
                "source": str(self.source),
                "kind": self.kind,
                "entry": self.entry,
                "layout": self.layout,
                "libraries": self.libraries,
                "launch": self.launch,
                "triton": self.triton,
                "report": self.report,
                "streamed": self.streamed,
                "cache": self.cache,
            }
        }

    @property
    def files(self) -> tuple[str, ...]:
        """What the worker may go on reading."""
        paths = (str(self.source), *self.libraries.values(), self.cache)
        return tuple(f"r{path}" for path in paths if path)


class _Foreign:
    """What both kinds of runner do with a worker of a file (beside an extension's runner)."""

    def report(self) -> bool:
        """Have one more call made and written down; whether its weights can be set."""
        return bool(self._ask(ForeignOp.REPORT, seconds=START_SECONDS)[0].value)  # type: ignore[attr-defined]

    def notes(self) -> dict[str, Any]:
        """What the worker wrote last."""
        array = self._outputs.array  # type: ignore[attr-defined]
        return unpack_notes(array[len(array) - NOTES :].tobytes())

    def _refused(self, op: Any, reply: Reply) -> Exception:
        if reply.value == NeedsBuild.code:
            wanted = self.notes().get("wanted")
            if isinstance(wanted, list):
                return Wanted([row for row in wanted if isinstance(row, dict)])
        if reply.value == Tampered.code:
            return RunnerFailed(Verdict.SUSPICIOUS, reply.text)
        if reply.value == Unfit.code:
            return RunnerFailed(Verdict.REFUSED, reply.text)
        return super()._refused(op, reply)  # type: ignore[misc]


class _HostRunner(_Foreign, HostExtensionRunner):
    """On the CPU."""


class _DeviceRunner(_Foreign, DeviceExtensionRunner):
    """On a GPU."""


def _runner(
    loading: Loading, regions: tuple[Region, Region, Region], device: str, threads: int,
    limits: Limits,
) -> Any:  # fmt: skip
    kind = _HostRunner if device == "cpu" else _DeviceRunner
    return kind(
        loading.source, regions, device, threads, limits,
        main=_MAIN, more=loading.told(), more_files=loading.files,
    )  # fmt: skip


def wanted_builds(loading: Loading, device: str, threads: int) -> list[dict[str, Any]]:
    """What the file asks ``load_inline`` for when it is loaded, as it says; nothing is called.

    Raises:
        RunnerFailed: it broke its worker.
    """
    regions = (Region(1, "inputs"), Region(1, "timed"), Region(NOTES + (1 << 13), "outputs"))
    runner = None
    try:
        runner = _runner(loading, regions, device, threads, Limits(memory=MEMORY))
        empty = {"inputs": [], "outputs": [], "slot_stride": 0, "slots": 0}
        runner.bind_layout(empty)
        runner.load_extension()
    except Wanted as found:
        return found.requests
    finally:
        if runner is not None:
            runner.close()
        for region in regions:
            region.close()
    return []


class ForeignCandidate(IsolatedCandidate):
    """A foreign file in its worker; a context manager. Methods may raise RunnerFailed."""

    def __init__(
        self,
        target: Target,
        timed: TimedInputs,
        loading: Loading,
        threads: int,
        limits: Limits,
        weights: Sequence[torch.Tensor] = (),
        other: Case | None = None,
        no_credit: Callable[[dict[str, int]], str | None] = lambda _: None,
    ) -> None:
        layout = OutputLayout(target.outputs, ResolvedPlan([], {}))
        layout.bytes += NOTES
        super().__init__(target, timed, layout)
        self.said: dict[str, Any] = {}
        self.remarks: list[str] = []
        self._again = (loading, threads, limits)
        self._reports = loading.report
        self._weights, self._other, self._no_credit = list(weights), other, no_credit
        try:
            self.runner = _runner(loading, self.regions, target.device, threads, limits)
        except BaseException:
            self._release()
            raise

    def layers(self) -> dict[str, bool]:
        """Load and bind; which layers of the sandbox hold."""
        self.bind()
        return layers_held(self.runner.load_extension())

    def bind(self, slots: int | None = None) -> None:
        """Say where tensors lie; with the first slots alone where there is a number."""
        layout = layout_of(self.target, self._in_layout, self._out_layout, self._timed)
        self.runner.bind_layout({**layout, "slots": slots or layout["slots"]})

    def restart_streamed(self) -> None:
        """A new worker whose calls are made on a stream, on the same memory."""
        loading, threads, limits = self._again
        self.runner.close()
        again = replace(loading, report=False, streamed=True)
        self.runner = _runner(again, self.regions, self.target.device, threads, limits)
        self.layers()

    def check(self, cases: Iterable[Case], stop_early: bool = True) -> Checked:
        """Every case, then credit, then the case with other weights, which is only told.

        Raises:
            Ended: it is right, and torch does its work.
        """
        checked = super().check(cases, stop_early)
        if checked.wrong is not None or not self._reports:
            return checked
        self._reports = False
        settable = self.runner.report()
        self.said = self.runner.notes() or {"operators": {}}
        words = self._no_credit(self.operators())
        if words is not None:
            raise Ended(Verdict.WRAPPER, words, errors=tuple(checked.errors))
        if self._other is not None:
            self._try_other_weights(settable)
        return checked

    def _try_other_weights(self, settable: bool) -> None:
        if not settable:
            self.remarks.append(
                "its weights have other names than the reference's: they are those that its "
                "constructor draws with the reference's seed"
            )
        elif super().check([self._other] if self._other else []).wrong is not None:
            self.remarks.append(
                "it is right for the weights that it was built with alone: it keeps copies of them"
            )

    def _fill_inputs(self, inputs: list[torch.Tensor]) -> None:
        """Arguments, and the weights where a case does not bring its own."""
        whole = len(inputs) == len(self.target.inputs)
        super()._fill_inputs(inputs if whole else [*inputs, *self._weights])

    def operators(self) -> dict[str, int]:
        """Torch's own operators that one call used, as its process says."""
        counts = self.said.get("operators")
        if not isinstance(counts, dict):
            return {}
        return {str(k)[:60]: v for k, v in list(counts.items())[:200] if isinstance(v, int)}

    def _call(self, laid_out: bool) -> None:  # noqa: ARG002 - it allocates its outputs itself
        self.runner.run()

    def _end(self) -> None:
        self.runner.close()

    def fetch(self, age: int) -> list[torch.Tensor]:
        """Copies of the outputs of a timed call (0: the last one), in host memory."""
        with inputs_away(self._timed, self.runner, age):
            self.runner.fetch(age)
        return [t.clone() for t in self.outputs()]
