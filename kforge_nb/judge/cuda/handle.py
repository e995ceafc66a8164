"""The judge's end of one CUDA runner: commands out, replies in, failures put into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from time import perf_counter

from kforge_nb.errors import MissingTool
from kforge_nb.judge.cuda.binary import DRIVER, FILTERED, cuda_facts, runner_environment
from kforge_nb.judge.cuda.protocol import (
    CudaBinding,
    CudaOp,
    Fault,
    Touched,
    pack_binding,
    pack_load,
    pack_stretches,
    unpack_kernels,
    unpack_notes,
    unpack_occupancy,
)
from kforge_nb.judge.cuda.staging import Staging
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.protocol import STATUS_BYTES, Reply
from kforge_nb.judge.regions import Region
from kforge_nb.judge.runner_handle import RunnerFailed, RunnerHandle, descriptors

__all__ = ["CudaLimits", "CudaRunner"]

_VERDICTS = {
    Fault.MEMORY: Verdict.UNDECIDED,
    Fault.CONTRACT: Verdict.REFUSED,
    Fault.CODE: Verdict.COMPILE_FAILED,
    Fault.CRASH: Verdict.CRASHED,
    Fault.PROTOCOL: Verdict.CRASHED,
}


@dataclass(frozen=True, slots=True)
class CudaLimits:
    """Limits of one CUDA runner.

    ``call_seconds`` for one command (batches may be given their own), ``start_seconds`` more for
    the first one, which waits for the driver to start; ``cpu_seconds`` of host time;
    ``device_memory`` bytes for inputs, outputs and scratch together; ``heap`` and ``printf`` bytes
    that device code may allocate and print. ``sandboxed``: as strictly as the driver allows.
    """

    call_seconds: float = 5.0
    start_seconds: float = 60.0
    cpu_seconds: int = 600
    device_memory: int = 32 << 30
    heap: int = 1 << 20
    printf: int = 1 << 16
    sandboxed: bool = True


class CudaRunner(RunnerHandle):
    """A process with its own CUDA context for one candidate; it starts the driver at once.

    Every method may raise RunnerFailed; where CUDA itself is missing or broken, MissingTool.

    Args:
        binary: of :func:`cuda_runner_binary`.
        cubin: the candidate's code, if it is known already; else :meth:`load` gets it.
        regions: inputs, timed inputs and outputs, shared with the process.
        limits: of time and memory.
        device: number of the device as torch counts.
        flush: a cubin whose kernel ``flush`` reads memory; without it the cache is flushed by
            writing.
        driver: library of the CUDA driver; another one than the system's is for tests.
    """

    def __init__(
        self,
        binary: Path,
        cubin: Path | None,
        regions: tuple[Region, Region, Region],
        limits: CudaLimits,
        device: int = 0,
        flush: Path | None = None,
        driver: str = DRIVER,
    ) -> None:
        facts = cuda_facts(device, driver, flush) if limits.sandboxed else {}
        self.layers: int = int(facts.get("layers", 0))
        self._cubin = cubin
        self._flush = flush
        self._limits = limits
        self._calls = 0
        self.touched = Touched(0)
        self.touched_at = -1
        self.occupancy: list[int] = []
        command = [str(binary), "{reply}", *map(str, descriptors(regions))]
        command += [str(region.bytes) for region in regions]
        command += [str(limits.cpu_seconds), str(self.layers), driver, "0"]
        command += [str(limits.device_memory), str(limits.heap), str(limits.printf)]
        super().__init__(command, runner_environment(device), regions, limits.call_seconds)

    @property
    def strict(self) -> bool:
        """Whether it can start nothing, reach no network, and trace and signal nobody."""
        return self.layers & FILTERED == FILTERED

    def load(self, kernels: Sequence[str], cubin: Path | None = None) -> dict[str, dict[str, int]]:
        """Load the code; what the driver says of each kernel.

        Returns:
            By kernel: ``registers`` a thread, ``shared``, ``local`` and ``constant`` bytes,
            ``max_threads`` of a block, ``binary`` (90 for sm_90), ``parameters`` (-1: unknown).
        """
        chosen = cubin or self._cubin
        if chosen is None:
            raise MissingTool("a CUDA runner was told to load, but no cubin was given")
        names = list(dict.fromkeys(kernels))
        flush = self._flush.read_bytes() if self._flush is not None else b""
        payload = pack_load(names, chosen.read_bytes(), flush)
        limit = self._limits.start_seconds + self._limits.call_seconds
        self._ask(CudaOp.LOAD, payload=payload, seconds=limit)
        facts = unpack_kernels(self._page(), len(names))
        return {name: asdict(fact) for name, fact in zip(names, facts, strict=True)}

    def bind(self, binding: CudaBinding) -> None:
        """Check the launches and take the device memory; sets ``occupancy`` (blocks, by launch)."""
        self._ask(CudaOp.BIND, payload=pack_binding(binding), seconds=self._copying)
        self.occupancy = unpack_occupancy(self._page(), len(binding.launches))

    def run(self, laid_out: bool = False) -> float:
        """One checked call; seconds on the judge's clock, copies included.

        Outputs and unzeroed scratch are poisoned on the device, or, with ``laid_out``, the outputs
        are what the outputs region holds. Afterwards the region holds outputs and guard zones, and
        ``touched`` says whether inputs or memory around the buffers changed (``touched_at``: first
        changed byte of the input slot).
        """
        reply, wall = self._ask(CudaOp.RUN, int(laid_out))
        self.touched = Touched(reply.value)
        changed = Touched.INPUTS in self.touched and reply.text.isdigit()
        self.touched_at = int(reply.text) if changed else -1
        return wall

    @property
    def _copying(self) -> float:
        """Seconds for what is done while nothing of a candidate runs."""
        return self._limits.start_seconds + self._limits.call_seconds

    def upload(self, first: int, slots: int) -> None:
        """Timed slots from the shared region to the device; outside of any clock."""
        self._ask(CudaOp.UPLOAD, first, slots, seconds=self._copying)

    def refresh(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Parts of the timed slots, as (offset, bytes) in the shared region, to the device."""
        payload = pack_stretches(stretches)
        self._ask(CudaOp.UPLOAD, 0, len(stretches), payload, seconds=self._copying)

    def ready(self) -> None:
        """Wait until the driver has started; raises MissingTool where it does not."""
        self._ask(CudaOp.READY, seconds=self._limits.start_seconds + self._limits.call_seconds)

    def prepare(self, calls: int, staging: Staging | None = None) -> None:
        """Load the code anew and build two CUDA graphs, of so many calls and without the calls.

        Each call comes after flush, wipe, stage and flush, and is noted afterwards. The wipe
        overwrites its outputs and unzeroed scratch (zeroing scratch is part of the call), the
        stage gives it new inputs that ``staging`` tells; without it, or without the judge's
        kernels, call ``i`` reads slot ``i % slots`` as it was uploaded.
        """
        payload = staging.pack() if staging is not None and self.stages else b""
        limit = self._limits.call_seconds + calls * 1e-3
        self._ask(CudaOp.PREPARE, calls, payload=payload, seconds=limit)
        self._calls = calls

    @property
    def stages(self) -> bool:
        """Whether timed calls can be given secret inputs: the judge's kernels are there."""
        return self._flush is not None

    def notes(self, call: int, count: int) -> tuple[int, list[int]]:
        """Replays so far, and what was noted of a call of the last one's outputs."""
        reply, _ = self._ask(CudaOp.NOTES, call)
        return reply.value, unpack_notes(self._page(), count)

    def audit(self) -> Touched:
        """What timed calls wrote besides their outputs."""
        return Touched(self._ask(CudaOp.AUDIT, seconds=self._limits.start_seconds)[0].value)

    def batch(
        self, replays: int, empty: bool = False, seconds: float | None = None
    ) -> tuple[float, float]:
        """So many replays: seconds on the judge's clock, and device seconds by events."""
        reply, wall = self._ask(CudaOp.BATCH, replays, int(empty), seconds=seconds)
        return wall, reply.value * 1e-9

    def hot(self, calls: int, seconds: float | None = None) -> float:
        """Seconds a call, launched one by one by the host without graphs and waited for once."""
        return self._ask(CudaOp.HOT, calls, seconds=seconds)[1] / calls

    def ping(self) -> float:
        """Seconds of an empty exchange with the runner, once it is bound."""
        start = perf_counter()
        self._ask(CudaOp.UPLOAD, 0, 0)
        return perf_counter() - start

    def fetch(self, age: int) -> None:
        """Outputs of a timed call into the outputs region: the last one (0), or ``age`` before."""
        self._ask(CudaOp.FETCH, age)

    def _page(self) -> bytes:
        return self._outputs.array[:STATUS_BYTES].tobytes()

    def _refused(self, op: IntEnum, reply: Reply) -> Exception:
        fault = Fault(reply.value) if reply.value in set(Fault) else Fault.PROTOCOL
        if fault is Fault.ENVIRONMENT:
            return MissingTool(f"CUDA candidates cannot be judged here: {reply.text}")
        if fault is Fault.PROTOCOL:
            return super()._refused(op, reply)
        return RunnerFailed(_VERDICTS[fault], reply.text)

    def _fault_words(self) -> str:
        return "the CUDA driver failed in the runner's process"
