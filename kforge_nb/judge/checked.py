"""What every isolated candidate shares: its memory, checked calls on poisoned outputs, comparison.

Kinds differ in how a call is made and where it runs; the rules do not. Subclasses start a runner on
``regions`` and say how one call is made (:meth:`IsolatedCandidate._call`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy import typing as npt

from kforge_nb.judge.cases import Case
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.evaluation import ErrorFigure
from kforge_nb.judge.protocol import STATUS_BYTES
from kforge_nb.judge.regions import (
    GUARD_BYTE,
    POISON_BYTE,
    Buffer,
    InputLayout,
    OutputLayout,
    Region,
)
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["Checked", "IsolatedCandidate", "same_bits"]

_LINE = 64
_WORDS = 16  # bytes of a runner's last words
_GAPS = 1 / 8


@dataclass(slots=True)
class Checked:
    """Outcome of the correctness stage."""

    errors: list[ErrorFigure] = field(default_factory=list)
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    wrong: str | None = None
    repeatable: bool | None = None


class IsolatedCandidate(ABC):
    """A candidate's memory and checks; a context manager. Methods may raise RunnerFailed."""

    def __init__(self, target: Target, timed: TimedInputs, out_layout: OutputLayout) -> None:
        self.target = target
        self._timed = timed
        self._in_layout = InputLayout(target.inputs)
        self._out_layout = out_layout
        self._inputs = Region(self._in_layout.stride, "inputs")
        try:
            self._outputs = Region(out_layout.bytes, "outputs")
        except OSError:
            self._inputs.close()
            raise
        self._poison_beside_inputs()

    @property
    def regions(self) -> tuple[Region, Region, Region]:
        """Inputs, timed inputs and outputs, as a runner gets them."""
        return self._inputs, self._timed.region, self._outputs

    @abstractmethod
    def _call(self, laid_out: bool) -> None:
        """One call on the checked inputs; ``laid_out``: over what the outputs region holds."""

    @abstractmethod
    def _end(self) -> None:
        """End the runner."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._release()

    def _release(self) -> None:
        self._inputs.close()
        self._outputs.close()

    def check(self, cases: Iterable[Case], stop_early: bool = True) -> Checked:
        """Run every case on poisoned memory and compare; ends at the first wrong one."""
        checked = Checked()
        for index, case in enumerate(cases):
            self._fill_inputs(case.inputs)
            self._poison()
            self._call(False)
            outputs = self.outputs()
            checked.wrong = self._tampering(case)
            if checked.wrong is None and index == 0:
                checked.repeatable = self._repeats(outputs)
            self._compare(case, outputs, checked)
            if checked.wrong is not None and stop_early:
                break
        return checked

    def _compare(self, case: Case, outputs: list[torch.Tensor], checked: Checked) -> None:
        """What the last call left against what it must be, and whether it kept to its memory."""
        checked.wrong = checked.wrong or self._tampering(case)
        for i, (expected, got) in enumerate(zip(case.expected, outputs, strict=True)):
            placed = got.to(expected.eager.device)
            found = check_output(expected, placed, f"out{i}", case.name)
            checked.errors.append(found.figure)
            checked.mismatches.extend(found.worst)
            checked.wrong = checked.wrong or found.wrong

    def _repeats(self, outputs: list[torch.Tensor]) -> bool:
        """Whether a second call, over what the first one left with gaps in it, gives the same.

        New memory may well hold an earlier result, half of it gone. A call that looks at a few
        elements and takes the rest for granted leaves the gaps; what is compared afterwards are the
        outputs of this second call.
        """
        kept = [t.clone() for t in outputs]
        self._call_with_gaps()
        return all(same_bits(a, b) for a, b in zip(kept, outputs, strict=True))

    def _call_with_gaps(self) -> None:
        for buffer in self._out_layout.outputs:
            _punch(self._outputs.view(buffer))
        self._poison_scratch()
        self._call(True)

    def _fill_inputs(self, inputs: list[torch.Tensor]) -> None:
        views = zip(self.target.inputs, self._in_layout.buffers, inputs, strict=True)
        for spec, buffer, tensor in views:
            if tensor.numel():
                _copy(_tensor(self._inputs, buffer, spec), tensor)

    def _poison_beside_inputs(self) -> None:
        """What lies between the inputs, and between their elements, must not be used."""
        end = 0
        pairs = zip(self._in_layout.buffers, self.target.inputs, strict=True)
        for buffer, spec in pairs:
            dense = math.prod(spec.shape) * buffer.itemsize >= buffer.bytes
            self._inputs.array[end : buffer.offset + (0 if dense else buffer.bytes)] = POISON_BYTE
            end = buffer.offset + buffer.bytes
        self._inputs.array[end:] = POISON_BYTE

    def _poison(self) -> None:
        """Guard zones, then poison where outputs and scratch will be."""
        for start, end in ((_WORDS, STATUS_BYTES), *self._out_layout.guards):
            self._outputs.array[start:end] = GUARD_BYTE
        for buffer in self._out_layout.outputs:
            self._outputs.view(buffer)[:] = POISON_BYTE
        self._poison_scratch()

    def _poison_scratch(self) -> None:
        for buffer in self._out_layout.scratch.values():
            self._outputs.view(buffer)[:] = POISON_BYTE

    def _tampering(self, case: Case) -> str | None:
        """Whether anything outside the outputs and scratch was written by the last call."""
        if self._guards_hold():
            return None
        return f"it wrote outside its outputs (into a guard zone) on {case.name}"

    def _guards_hold(self) -> bool:
        array = self._outputs.array
        return all(bool((array[a:b] == GUARD_BYTE).all()) for a, b in self._out_layout.guards)

    def outputs(self) -> list[torch.Tensor]:
        """Views of the outputs in the region, with the target's strides."""
        pairs = zip(self._out_layout.outputs, self.target.outputs, strict=True)
        return [_tensor(self._outputs, buffer, spec) for buffer, spec in pairs]


def _punch(memory: npt.NDArray[np.uint8]) -> None:
    """Poison some 64-byte lines of a result, never the first or the last."""
    lines = len(memory) // _LINE
    gaps = np.frombuffer(np.random.default_rng().bytes(lines), np.uint8) < 256 * _GAPS
    gaps[:1] = gaps[-1:] = False
    memory[: lines * _LINE].view(f"V{_LINE}")[gaps] = np.void(bytes([POISON_BYTE]) * _LINE)


def _tensor(region: Region, buffer: Buffer, spec: TensorSpec) -> torch.Tensor:
    flat = torch.from_numpy(region.view(buffer)).view(getattr(torch, spec.dtype))
    return flat.as_strided(spec.shape, spec.stride)


def _copy(view: torch.Tensor, tensor: torch.Tensor) -> None:
    if any(s == 0 and n > 1 for n, s in zip(view.shape, view.stride(), strict=True)):
        index = tuple(slice(0, 1) if s == 0 else slice(None) for s in view.stride())
        view, tensor = view[index], tensor[index]
    view.copy_(tensor)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of a dtype and device have the same bits."""
    first, second = (t.reshape(-1).view(torch.uint8) for t in (a, b))
    whole = first.numel() // 8 * 8  # numbers of eight bytes are compared four times as fast
    return torch.equal(first[whole:], second[whole:]) and torch.equal(
        first[:whole].view(torch.int64), second[:whole].view(torch.int64)
    )
