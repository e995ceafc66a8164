"""One CUDA candidate in its runner: memory laid out, launches bound, calls made and checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from kforge_nb.candidates.plan import ResolvedPlan
from kforge_nb.errors import BadInput
from kforge_nb.judge.cases import Case, moved
from kforge_nb.judge.checked import IsolatedCandidate, same_bits
from kforge_nb.judge.cuda.binary import DRIVER
from kforge_nb.judge.cuda.handle import CudaLimits, CudaRunner
from kforge_nb.judge.cuda.layout import CudaOutputLayout, make_binding
from kforge_nb.judge.cuda.pinned import Pinned
from kforge_nb.judge.cuda.protocol import Touched
from kforge_nb.judge.cuda.staging import Staging, values_of
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.runner_handle import RunnerFailed
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.targets.target import Target

__all__ = ["CudaCandidate", "device_index"]


def _same(kept: torch.Tensor, output: torch.Tensor) -> bool:
    """Whether an output has the bits of what was kept; on the CPU where the device is full."""
    try:
        return same_bits(kept, output.to(kept.device))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    return same_bits(kept.cpu(), output)


def device_index(device: str) -> int:
    """Number of a CUDA device by its name in torch (``cuda`` is the first)."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise BadInput(f"{device!r} is no CUDA device; one looks like 'cuda:0'")
    return int(number or 0)


class CudaCandidate(IsolatedCandidate):
    """A CUDA candidate's runner with its memory; a context manager. May raise RunnerFailed.

    The runner starts its driver and context at once, in the background; it can be made before the
    candidate is compiled, even before there is a candidate::

        with CudaCandidate(target, None, timed, binary=binary, limits=CudaLimits()) as loaded:
            built = build_cuda(...)
            loaded.load(resolved, built.cubin)
            checked = loaded.check(cases)
            loaded.runner.upload(0, timed.slots)
            loaded.runner.prepare(calls)
            wall, device = loaded.runner.batch(1)
            outputs = loaded.fetch(0)

    Args:
        target: on a CUDA device.
        resolved: the plan, if it is known already; else :meth:`load` gets it.
        timed: slots of timed inputs, laid out for the target.
        binary: of :func:`kforge_nb.judge.cuda.binary.cuda_runner_binary`.
        limits: of time and memory.
        cubin: the compiled code, if it is known already; else :meth:`load` gets it.
        flush: a cubin of :func:`kforge_nb.judge.cuda.flush.build_flush`.
        device: number of the device as torch counts; that of the target if not given.
        driver: library of the CUDA driver; another one than the system's is for tests.
    """

    def __init__(
        self,
        target: Target,
        resolved: ResolvedPlan | None,
        timed: TimedInputs,
        *,
        binary: Path,
        limits: CudaLimits,
        cubin: Path | None = None,
        flush: Path | None = None,
        device: int | None = None,
        driver: str = DRIVER,
    ) -> None:
        number = device_index(target.device) if device is None else device
        self._cuda_layout = CudaOutputLayout(target.outputs)
        super().__init__(target, timed, self._cuda_layout)
        self._resolved = resolved
        self._cubin = cubin
        self.kernels: dict[str, dict[str, int]] = {}
        self.held: dict[int, int] = {}  # versions of the timed slots on its device
        self.after: Callable[[], None] | None = None  # called once it is not needed any more
        self.aside: Callable[[Callable[[], None]], None] | None = None  # what ends its process
        self._pinned: list[Pinned] = []
        try:
            self.runner = CudaRunner(binary, cubin, self.regions, limits, number, flush, driver)
            self._pin()
        except BaseException:
            self._release()
            raise

    def _pin(self) -> None:
        """Have the judge's own copies of checked inputs and outputs run at the bus's speed."""
        device = self._timed.device
        if torch.device(device).type == "cuda":
            arrays = (region.array for region in (self._inputs, self._outputs))
            self._pinned = [Pinned(a.ctypes.data, a.nbytes, device) for a in arrays]

    def load(self, resolved: ResolvedPlan | None = None, cubin: Path | None = None) -> bool:
        """Load and bind; True if a system-call filter holds.

        ``kernels`` then has what the driver says of each kernel, ``runner.occupancy`` how many
        blocks of each launch fit on a multiprocessor.

        Raises:
            RunnerFailed: also ``refused`` where the plan does not fit the code or the device.
        """
        plan = resolved or self._resolved
        if plan is None:
            raise BadInput("a CUDA candidate was loaded without a plan")
        binding = make_binding(plan, self._in_layout, self._cuda_layout, self._timed.slots)
        self.kernels = self.runner.load([call.name for call in plan.calls], cubin)
        self.held.clear()  # its memory is another one
        self.runner.bind(binding)
        return self.runner.strict

    def _call(self, laid_out: bool) -> None:
        self.runner.run(laid_out)

    def __exit__(self, *ended: object) -> None:
        """End the process and give its memory back, in the background where there is one."""
        aside, after = self.aside, self.after
        self.aside = self.after = None
        if aside is None:
            self._finish()
        else:
            aside(self._finish)
        if after is not None:
            after()

    def _finish(self) -> None:
        self._end()
        self._release()

    def _end(self) -> None:
        self.runner.close()

    def _release(self) -> None:
        for pinned in self._pinned:
            pinned.release()
        self._pinned = []
        super()._release()

    def _repeats(self, outputs: list[torch.Tensor]) -> bool:
        """As ever; results are kept and compared on the judge's device, to which they must go."""
        kept = [self._copied(t) for t in outputs]
        self._call_with_gaps()
        return all(_same(a, b) for a, b in zip(kept, outputs, strict=True))

    def _poison(self) -> None:
        """The runner does it, on the device."""

    def _poison_scratch(self) -> None:
        """The runner does it, on the device."""

    def _tampering(self, case: Case) -> str | None:
        touched = self.runner.touched
        if Touched.INPUTS in touched:
            return f"it wrote to {self._input_at(self.runner.touched_at)} on {case.name}"
        if Touched.MARGINS in touched:
            return f"it wrote far outside its buffers (into a guard zone) on {case.name}"
        return super()._tampering(case)

    def _input_at(self, offset: int) -> str:
        for index, buffer in enumerate(self._in_layout.buffers):
            if buffer.offset <= offset < buffer.offset + buffer.bytes:
                return f"its input in{index}"
        return "memory beside its inputs"

    def staging(self) -> Staging:
        """New secrets for the timed calls."""
        return Staging.fresh(self._in_layout.buffers, self._out_layout.outputs, self._timed.slots)

    def noted(self, staging: Staging, call: int) -> tuple[int, list[torch.Tensor]]:
        """The clock of replays, and what was noted of each output of a call of the last one."""
        each, specs = staging.notes, self.target.outputs
        tick, words = self.runner.notes(call, each * len(specs))
        return tick, [
            values_of(words[i * each : (i + 1) * each] if math.prod(s.shape) else [], s.dtype)
            for i, s in enumerate(specs)
        ]

    def audit(self) -> None:
        """Look at the memory that timed calls could have written to.

        Raises:
            RunnerFailed: ``suspicious`` where they wrote to more than their outputs and scratch.
        """
        touched = self.runner.audit()
        words = {
            Touched.FLUSH: "the memory that is read to empty the cache",
            Touched.INPUTS: "the inputs of other calls",
            Touched.MARGINS: "memory far outside its buffers (a guard zone)",
        }
        found = [text for bit, text in words.items() if bit in touched]
        if found:
            raise RunnerFailed(Verdict.SUSPICIOUS, f"when timed it wrote to {', '.join(found)}")

    def fetch(self, age: int) -> list[torch.Tensor]:
        """Copies of the outputs of a timed call (0: the last), where they will be compared.

        Raises:
            RunnerFailed: ``suspicious`` where timed calls wrote into a guard zone.
        """
        self.runner.fetch(age)
        if not self._guards_hold():
            raise RunnerFailed(
                Verdict.SUSPICIOUS, "it wrote outside its outputs (into a guard zone) when timed"
            )
        return [self._copied(t) for t in self.outputs()]

    def _copied(self, output: torch.Tensor) -> torch.Tensor:
        """A copy on the judge's device, or in host memory where that is full or there is none."""
        device = self._timed.device
        if device != "cpu":
            try:
                return moved(output, device)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        return output.clone()
