"""One C++ candidate in its runner: memory laid out, arguments bound, calls made and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from kforge_nb.candidates.plan import Arg, ResolvedPlan
from kforge_nb.judge.cases import Case
from kforge_nb.judge.checked import Checked, IsolatedCandidate, same_bits
from kforge_nb.judge.protocol import Binding, Kind
from kforge_nb.judge.regions import OutputLayout, Region
from kforge_nb.judge.runner_handle import Limits, Runner, RunnerFailed
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.targets.target import Target

__all__ = ["Checked", "LoadedCandidate"]

_SCALARS = {"i64": Kind.INTEGER, "i32": Kind.INTEGER, "f32": Kind.FLOAT, "f64": Kind.DOUBLE}
_COUNTS = (1, 3, 7)  # threads: the numbers of rows that all of them divide are few


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
        self._built = (binary, library, limits, library_folder)
        self._right: list[torch.Tensor] | None = None
        try:
            self.runner = self._runner(threads, self.regions)
        except OSError:
            self._release()
            raise

    def _runner(self, threads: int, regions: tuple[Region, Region, Region]) -> Runner:
        binary, library, limits, folder = self._built
        return Runner(binary, library, regions, threads, limits, folder)

    def load(self) -> bool:
        """Load and bind; True if the strict system-call filter holds."""
        strict = self.runner.load(self._resolved.calls[0].name)
        self.bind()
        return strict

    def bind(self, resolved: ResolvedPlan | None = None, slots: int | None = None) -> None:
        """Say (again) what the arguments are: of another plan, or with the first slots alone."""
        self._resolved = resolved or self._resolved
        self._bind(self.runner, self._threads, slots or self._timed.slots)

    def _bind(self, runner: Runner, threads: int, slots: int) -> None:
        bindings = [self._binding(arg, threads) for arg in self._resolved.calls[0].args]
        runner.bind(self._timed.layout.stride, slots, bindings)

    def check(self, cases: Iterable[Case], stop_early: bool = True) -> Checked:
        """As ever; what is right on several sets is called with other numbers of threads, too.

        A notebook gives a kernel as many as torch has at that moment, on another machine others.
        """
        several = list(cases)
        try:
            checked = super().check(several, stop_early)
            if checked.wrong is None and len(several) > 1:
                self._other_counts(several[0], checked)
        finally:
            self._right = None
        return checked

    def _compare(self, case: Case, outputs: list[torch.Tensor], checked: Checked) -> None:
        super()._compare(case, outputs, checked)
        if self._right is None and checked.wrong is None:
            self._right = [t.clone() for t in outputs]  # of the first case

    def _other_counts(self, case: Case, checked: Checked) -> None:
        """In a process of its own, whose OpenMP gives more threads than are ever timed.

        It has no timed slots but these inputs. What has the very bits that were right is right.
        """
        counts = [count for count in _COUNTS if count != self._threads]
        self._fill_inputs(case.inputs)
        runner = self._runner(max(counts), (self._inputs, self._inputs, self._outputs))
        try:
            runner.load(self._resolved.calls[0].name)
            for count in counts:
                self._bind(runner, count, 0)
                self._poison()
                runner.run()
                named = replace(case, name=f"{case.name} with {count} thread{'s' * (count > 1)}")
                outputs, found = self.outputs(), Checked()
                if all(map(same_bits, self._right or (), outputs)):
                    found.wrong = self._tampering(named)
                else:
                    self._compare(named, outputs, found)
                if found.wrong is not None:
                    checked.wrong, checked.mismatches = found.wrong, found.mismatches
                    return
        except RunnerFailed as problem:
            words = f"called with another number of threads: {problem.reason}"
            raise RunnerFailed(problem.verdict, words) from problem
        finally:
            runner.close()

    def _binding(self, arg: Arg, threads: int) -> Binding:
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
            return Binding(Kind.INTEGER, value=threads)
        return Binding(_SCALARS[arg[0]], value=arg[1])

    def _call(self, laid_out: bool) -> None:  # noqa: ARG002 - the region is the memory itself
        self.runner.run()

    def _end(self) -> None:
        self.runner.close()

    def fetch(self, age: int) -> list[torch.Tensor]:
        """Copies of the outputs of a timed call of the last batch (0: its last call)."""
        self.runner.fetch(age)
        return [t.clone() for t in self.outputs()]
