"""One C++ candidate in its runner: memory laid out, arguments bound, calls made and checked."""

from __future__ import annotations

from pathlib import Path

import torch

from kforge_nb.candidates.plan import Arg, ResolvedPlan
from kforge_nb.judge.checked import Checked, IsolatedCandidate
from kforge_nb.judge.protocol import Binding, Kind
from kforge_nb.judge.regions import OutputLayout
from kforge_nb.judge.runner_handle import Limits, Runner
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.targets.target import Target

__all__ = ["Checked", "LoadedCandidate"]

_SCALARS = {"i64": Kind.INTEGER, "i32": Kind.INTEGER, "f32": Kind.FLOAT, "f64": Kind.DOUBLE}


class LoadedCandidate(IsolatedCandidate):
    """A C++ candidate's runner with its memory; a context manager. May raise RunnerFailed."""

    def __init__(
        self,
        target: Target,
        resolved: ResolvedPlan,
        timed: TimedInputs,
        *,
        binary: Path,
        library: Path,
        threads: int,
        limits: Limits,
        library_folder: str,
    ) -> None:
        super().__init__(target, timed, OutputLayout(target.outputs, resolved))
        self._resolved = resolved
        self._threads = threads
        try:
            self.runner = Runner(binary, library, self.regions, threads, limits, library_folder)
        except OSError:
            self._release()
            raise

    def load(self) -> bool:
        """Load and bind; True if the strict system-call filter holds."""
        strict = self.runner.load(self._resolved.calls[0].name)
        self.bind()
        return strict

    def bind(self, resolved: ResolvedPlan | None = None, slots: int | None = None) -> None:
        """Say (again) what the arguments are: of another plan, or with the first slots alone."""
        self._resolved = resolved or self._resolved
        bindings = [self._binding(arg) for arg in self._resolved.calls[0].args]
        self.runner.bind(self._timed.layout.stride, slots or self._timed.slots, bindings)

    def _binding(self, arg: Arg) -> Binding:
        if arg[0] == "input":
            buffer = self._in_layout.buffers[arg[1]]
            return Binding(Kind.INPUT, buffer.offset, buffer.bytes)
        if arg[0] == "output":
            buffer = self._out_layout.outputs[arg[1]]
            return Binding(Kind.OUTPUT, buffer.offset, buffer.bytes)
        if arg[0] == "scratch":
            buffer = self._out_layout.scratch[arg[1]]
            zero = self._resolved.scratch[arg[1]].init == "zero"
            return Binding(Kind.SCRATCH, buffer.offset, buffer.bytes, zero)
        if arg[0] == "nthreads":
            return Binding(Kind.INTEGER, value=self._threads)
        return Binding(_SCALARS[arg[0]], value=arg[1])

    def _call(self, laid_out: bool) -> None:  # noqa: ARG002 - the region is the memory itself
        self.runner.run()

    def _end(self) -> None:
        self.runner.close()

    def fetch(self, age: int) -> list[torch.Tensor]:
        """Copies of the outputs of a timed call of the last batch (0: its last call)."""
        self.runner.fetch(age)
        return [t.clone() for t in self.outputs()]
