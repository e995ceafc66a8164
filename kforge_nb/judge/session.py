"""One candidate in its runner: memory laid out, arguments bound, calls made and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy import typing as npt

from kforge_nb.candidates.plan import Arg, ResolvedPlan
from kforge_nb.judge.cases import Case
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.evaluation import ErrorFigure
from kforge_nb.judge.protocol import Binding, Kind
from kforge_nb.judge.regions import (
    GUARD_BYTE,
    POISON_BYTE,
    Buffer,
    InputLayout,
    OutputLayout,
    Region,
)
from kforge_nb.judge.runner_handle import Limits, Runner
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["Checked", "LoadedCandidate"]

_LINE = 64
_GAPS = 1 / 8
_SCALARS = {"i64": Kind.INTEGER, "i32": Kind.INTEGER, "f32": Kind.FLOAT, "f64": Kind.DOUBLE}


@dataclass(slots=True)
class Checked:
    """Outcome of the correctness stage."""

    errors: list[ErrorFigure] = field(default_factory=list)
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    wrong: str | None = None
    repeatable: bool | None = None


class LoadedCandidate:
    """A candidate's runner with its memory; a context manager. Methods may raise RunnerFailed."""

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
        self.target = target
        self._resolved = resolved
        self._timed = timed
        self._threads = threads
        self._in_layout = InputLayout(target.inputs)
        self._out_layout = OutputLayout(target.outputs, resolved)
        self._inputs = Region(self._in_layout.stride, "inputs")
        self._outputs = Region(self._out_layout.bytes, "outputs")
        regions = (self._inputs, timed.region, self._outputs)
        try:
            self.runner = Runner(binary, library, regions, threads, limits, library_folder)
        except OSError:
            self._inputs.close()
            self._outputs.close()
            raise

    def __enter__(self) -> LoadedCandidate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.runner.close()
        self._inputs.close()
        self._outputs.close()

    def load(self) -> bool:
        """Load and bind; True if the strict system-call filter holds."""
        call = self._resolved.calls[0]
        strict = self.runner.load(call.name)
        bindings = [self._binding(arg) for arg in call.args]
        self.runner.bind(self._timed.layout.stride, self._timed.slots, bindings)
        return strict

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

    def check(self, cases: Iterable[Case], stop_early: bool = True) -> Checked:
        """Run every case on poisoned memory and compare; ends at the first wrong one."""
        checked = Checked()
        for index, case in enumerate(cases):
            outputs = self._run_case(case)
            checked.wrong = self._tampering(case)
            if checked.wrong is None and index == 0:
                checked.repeatable = self._repeats(case, outputs)
            for i, (expected, got) in enumerate(zip(case.expected, outputs, strict=True)):
                found = check_output(expected, got, f"out{i}", case.name)
                checked.errors.append(found.figure)
                checked.mismatches.extend(found.worst)
                checked.wrong = checked.wrong or found.wrong
            if checked.wrong is not None and stop_early:
                break
        return checked

    def _run_case(
        self, case: Case, earlier: Sequence[npt.NDArray[np.uint8]] = ()
    ) -> list[torch.Tensor]:
        self._fill_inputs(case.inputs)
        self._poison()
        for buffer, result in zip(self._out_layout.outputs, earlier, strict=False):
            _lay_out(self._outputs.view(buffer), result)
        self.runner.run()
        return self.outputs()

    def _repeats(self, case: Case, first: list[torch.Tensor]) -> bool:
        """Whether a second call, over what the first one left with gaps in it, gives the same."""
        kept = [t.clone() for t in first]
        earlier = [self._outputs.view(buffer).copy() for buffer in self._out_layout.outputs]
        again = self._run_case(case, earlier)
        return all(_same_bits(a, b) for a, b in zip(kept, again, strict=True))

    def _fill_inputs(self, inputs: list[torch.Tensor]) -> None:
        self._inputs.array[:] = POISON_BYTE  # what lies between the inputs must not be used
        views = zip(self.target.inputs, self._in_layout.buffers, inputs, strict=True)
        for spec, buffer, tensor in views:
            if tensor.numel():
                view = _tensor(self._inputs, buffer, spec)
                _copy(view, tensor)

    def _poison(self) -> None:
        array = self._outputs.array
        array[16:] = GUARD_BYTE
        for buffer in [*self._out_layout.outputs, *self._out_layout.scratch.values()]:
            self._outputs.view(buffer)[:] = POISON_BYTE

    def _tampering(self, case: Case) -> str | None:
        """Whether anything outside the outputs and scratch was written by the last call."""
        array = self._outputs.array
        for start, end in self._out_layout.guards:
            if not bool((array[start:end] == GUARD_BYTE).all()):
                return f"it wrote outside its outputs (into a guard zone) on {case.name}"
        return None

    def outputs(self) -> list[torch.Tensor]:
        """Views of the outputs in the region, with the target's strides."""
        pairs = zip(self._out_layout.outputs, self.target.outputs, strict=True)
        return [_tensor(self._outputs, buffer, spec) for buffer, spec in pairs]

    def fetch(self, age: int) -> list[torch.Tensor]:
        """Copies of the outputs of a timed call of the last batch (0: its last call)."""
        self.runner.fetch(age)
        return [t.clone() for t in self.outputs()]


def _lay_out(memory: npt.NDArray[np.uint8], result: npt.NDArray[np.uint8]) -> None:
    """Write most 64-byte lines of an earlier result into the memory of an output.

    New memory may well hold an earlier result, half of it gone. A call that looks at a few elements
    and takes the rest for granted leaves the gaps.
    """
    lines = len(memory) // _LINE
    kept = np.random.default_rng().random(lines) >= _GAPS
    kept[:1] = kept[-1:] = True
    whole = lines * _LINE
    memory[:whole].reshape(lines, _LINE)[kept] = result[:whole].reshape(lines, _LINE)[kept]
    memory[whole:] = result[whole:]


def _tensor(region: Region, buffer: Buffer, spec: TensorSpec) -> torch.Tensor:
    flat = torch.from_numpy(region.view(buffer)).view(getattr(torch, spec.dtype))
    return flat.as_strided(spec.shape, spec.stride)


def _copy(view: torch.Tensor, tensor: torch.Tensor) -> None:
    if any(s == 0 and n > 1 for n, s in zip(view.shape, view.stride(), strict=True)):
        index = tuple(slice(0, 1) if s == 0 else slice(None) for s in view.stride())
        view, tensor = view[index], tensor[index]
    view.copy_(tensor)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    first, second = (t.reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(first, second)
