"""A CUDA device as a place to judge on: cubins, runners with contexts of their own, graph replays.

The parent keeps the expected values on the device and compares there, but never while something is
timed: :data:`DEVICES` has a lock for each device, as the cores have one. Compilers run on the CPU
and do not wait for it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import ResolvedPlan
from kforge_nb.compilers.nvrtc import CompileFailed, build_cuda, device_arch
from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.judge.baseline import BaselineWorker, OutOfDeviceMemory
from kforge_nb.judge.cases import CAPTURED, Case, build_cases, moved, secret_generator
from kforge_nb.judge.cores import CORES, Cores
from kforge_nb.judge.cuda.binary import DRIVER, cuda_runner_binary
from kforge_nb.judge.cuda.cubin import inspect_cubin
from kforge_nb.judge.cuda.flush import build_flush
from kforge_nb.judge.cuda.handle import CudaLimits
from kforge_nb.judge.cuda.policy import scan_cuda
from kforge_nb.judge.cuda.sanitizer import sanitize, sanitizer_path
from kforge_nb.judge.cuda.session import CudaCandidate
from kforge_nb.judge.cuda.sides import CudaBaselineSide, CudaRunnerSide
from kforge_nb.judge.cuda.slots import DeviceInputs
from kforge_nb.judge.cuda.spares import Spares
from kforge_nb.judge.cuda.timing import calls_in_a_graph, prompt, run_cuda_session, spending
from kforge_nb.judge.cuda.worker import FLUSH_VARIABLE
from kforge_nb.judge.evaluation import Comparison
from kforge_nb.judge.physics import device_floor_seconds
from kforge_nb.judge.place import Compiled
from kforge_nb.judge.policy import Finding
from kforge_nb.judge.regions import InputLayout
from kforge_nb.judge.ruling import paired
from kforge_nb.judge.shelf import Shelf
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.stages import compile_failed
from kforge_nb.judge.timing import Plan, Session
from kforge_nb.profile.calibration import calibrate
from kforge_nb.settings import cache_dir
from kforge_nb.targets.target import Target, TensorSpec
from kforge_nb.workload.devices import free_bytes

__all__ = ["DEVICES", "CudaPlace", "calls_in_a_row", "device_lock"]

DEVICES: dict[str, Cores] = {}
"""Who may use each device, by its torch name; one lock a device for the whole process."""
_MAKING = threading.Lock()

_ROOMY = 16 << 30  # bytes of a device on which a few contexts may wait
_OF_A_RUNNER = 8 * 16  # slots' bytes: an eighth of the device for one that is still ending
_CASE_MEMORY = 8 << 30  # of all input sets together with their expected values
_ROOM = 0.25  # of the free device memory, for what is kept there
_MOST_SLOTS = 64
_TIMED_BYTES = 6 << 30  # of three slots; inputs beyond that have one slot
_BATCH_SECONDS = 20.0
_CALLS, _PAIRS = 64, 12  # of a measurement of call time, at most and always
_CALL_SECONDS = 10e-3  # of the slower side's calls, in each of the pairs
_SANITIZER_SECONDS = 30.0
_FRAGMENTS = 1 << 30  # bytes that torch's allocator may keep unused while others need memory


def _free_host_memory() -> int:
    """Bytes that the host can still give; more than enough where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(s.split()[1]) << 10 for s in lines if s.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 1 << 50


def calls_in_a_row(once: float) -> int:
    """Calls of one measurement of call time, where a call alone takes ``once`` seconds.

    Waiting for the last of them costs as much as a short call does, and is nothing to long ones.
    """
    return max(1, min(_CALLS, math.ceil(_CALL_SECONDS / max(once, 1e-9))))


def device_lock(device: str) -> Cores:
    """The lock of a device."""
    with _MAKING:
        return DEVICES.setdefault(device, Cores())


class CudaPlace:
    """See :class:`kforge_nb.judge.place.Place`; ``device`` is a torch name such as ``cuda:0``.

    Raises:
        MissingTool: no GPU, no driver, no NVRTC for its architecture, or no C++ compiler.
    """

    language = "cuda"
    driver = DRIVER
    _sanitizes = True  # until it turns out that the tool does not work here
    call_seconds = 3.0

    def __init__(self, folder: Path, threads: int, device: str) -> None:
        if not torch.cuda.is_available():
            raise MissingTool(
                f"targets live on {device}, but torch {torch.__version__} sees no CUDA device here"
            )
        self.device = device
        self.folder = folder
        self.index = torch.device(device).index or 0
        self.where = device
        self.arch = device_arch(device)
        self.memory = int(torch.cuda.get_device_properties(self.index).total_memory)
        self.binary = cuda_runner_binary()
        self.builds = cache_dir() / "cuda"
        self.flush = build_flush(self.builds, self.arch)
        self._lock = device_lock(device)
        self._calls: dict[str, int] = {}
        self._held: dict[str, dict[int, int]] = {}  # versions of slots in the baseline worker
        self._spares = Spares(self.working)
        self._meant: dict[CudaCandidate, tuple[ResolvedPlan, Path]] = {}
        self._meant_lock = threading.Lock()
        self.worker = BaselineWorker(folder, threads, {FLUSH_VARIABLE: str(self.flush)})
        try:
            with self._lock.timing():
                self.calibration = calibrate(device)
        except BaseException:
            self.worker.close()
            raise

    # ---- who waits for whom ----------------------------------------------------------------

    @contextmanager
    def working(self) -> Iterator[None]:
        """Many may use the device at once."""
        with self._lock.work(), CORES.work(), torch.cuda.device(self.index):
            yield

    @contextmanager
    def timing(self) -> Iterator[None]:
        """The device alone; nobody times on the cores meanwhile."""
        with self._lock.timing(), CORES.work(), torch.cuda.device(self.index):
            self._tidy()
            yield

    def compiling(self) -> Any:
        """Compilers use the cores only."""
        return CORES.work()

    def _tidy(self) -> None:
        unused = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        if unused > _FRAGMENTS:
            torch.cuda.empty_cache()

    # ---- inputs and what is expected -------------------------------------------------------

    def accept(self, target: Target) -> None:
        """Every tensor must be on this device."""
        elsewhere = {s.device for s in (*target.inputs, *target.outputs)} - {self.device}
        if elsewhere:
            raise BadInput(
                f"target {target.name} lives on {self.device} and on "
                f"{', '.join(sorted(elsewhere))}; move the model to one device"
            )

    def make_case(self, graph: fx.GraphModule, name: str, inputs: Sequence[torch.Tensor]) -> Case:
        """Eager on this device, float64 there too if it fits."""
        return Shelf(self.device).make(graph, name, inputs)

    def cases(self, target: Target, known: Shelf | None = None) -> Shelf:
        """On the device as far as there is room."""
        torch.cuda.empty_cache()  # what torch keeps for later is free
        room = int(_ROOM * free_bytes(self.device))
        shelf = Shelf(self.device, room)
        made = build_cases(
            target,
            secret_generator(self.device),
            memory=min(_CASE_MEMORY, room),
            make=shelf.make,
            keep=shelf.keep,
            captured=known.named(CAPTURED) if known is not None else (),
        )
        torch.cuda.empty_cache()
        return shelf.fill(made)

    def timed(self, specs: Sequence[TensorSpec], seen: list[torch.Tensor]) -> DeviceInputs:
        """Slots in shared memory, which both sides copy to the device."""
        stride = InputLayout(specs).stride
        least = 3 if 3 * stride <= _TIMED_BYTES else 1
        room = _free_host_memory()
        if least * stride > room // 2:
            raise BadInput(
                f"its inputs take {stride / 1e9:.1f} GB, and the host has {room / 1e9:.1f} GB free "
                "for the copy that candidates are given; free some memory or use smaller inputs"
            )
        for values in (seen, [moved(t, "cpu") for t in seen]):
            generator = secret_generator(str(values[0].device) if values else "cpu")
            try:
                made = DeviceInputs(specs, values, generator, most=_MOST_SLOTS, least=least)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()  # then they are drawn on the CPU
            else:
                made.pin()
                return made
        raise BadInput("its inputs could not be drawn, neither on the device nor on the CPU")

    # ---- candidates ------------------------------------------------------------------------

    def scan(self, candidate: Candidate) -> list[Finding]:
        """The CUDA source."""
        return scan_cuda(candidate.source)

    def build(self, candidate: Candidate) -> Compiled:
        """A cubin for this device's own architecture."""
        names = tuple(dict.fromkeys(kernel.name for kernel in candidate.plan.kernels))
        built = build_cuda(candidate.source, names, cache=self.builds, arch=self.arch)
        if isinstance(built, CompileFailed):
            raise compile_failed(built.distilled, built.timed_out)
        kernels = {n: asdict(built.resources[n]) for n in names if n in built.resources}
        figures = {"arch": built.arch, "compiler": built.compiler, "kernels": kernels}
        return Compiled(built.cubin, built.log, figures)

    def inspect(self, built: Compiled, candidate: Candidate) -> list[Finding]:  # noqa: ARG002
        """Sections and symbols of the cubin."""
        return inspect_cubin(built.file)

    def start(
        self, target: Target, plan: ResolvedPlan, built: Compiled, timed: TimedInputs, limit: float
    ) -> CudaCandidate:
        """A runner with a context of its own, made ahead if possible.

        When it ends the next one is made ahead, while the next candidate is being compiled.
        """
        make = self._maker(target, timed, limit)
        loaded = self._spares.take(id(timed)) or self._spares.started(make)
        loaded.after = partial(self._spares.make, id(timed), make)
        if self.memory >= max(_ROOMY, _OF_A_RUNNER * timed.layout.stride):
            loaded.aside = self._spares.aside  # else the next needs the memory of this one
        with self._meant_lock:
            self._meant[loaded] = (plan, built.file)
        return loaded

    def ahead(self, target: Target, timed: TimedInputs, limit: float, count: int) -> None:
        """Have so many runners made at once, side by side: a confirmation needs them all.

        Contexts that wait take memory; a small device has one at a time.
        """
        room = count if self.memory >= _ROOMY else 1
        self._spares.make(id(timed), self._maker(target, timed, limit), room)

    def _maker(
        self, target: Target, timed: TimedInputs, limit: float
    ) -> Callable[[], CudaCandidate]:
        return partial(self._runner, target, timed, limit)

    def _runner(self, target: Target, timed: TimedInputs, limit: float) -> CudaCandidate:
        return CudaCandidate(
            target,
            None,
            timed,
            binary=self.binary,
            limits=CudaLimits(call_seconds=limit, device_memory=self.memory),
            device=self.index,
            flush=self.flush,
            driver=self.driver,
        )

    def load(self, loaded: CudaCandidate) -> dict[str, Any]:
        """What the driver says of the kernels."""
        with self._meant_lock:
            plan, cubin = self._meant.pop(loaded)
        strict = loaded.load(plan, cubin)
        return {
            "strict_filter": strict,
            "loaded": loaded.kernels,
            "blocks_a_multiprocessor": loaded.runner.occupancy,
        }

    # ---- timing ----------------------------------------------------------------------------

    def one_call(self, key: str, baseline: str) -> float:
        """From one graph of few calls; how many a graph should hold is decided here."""
        worker, few = self.worker, 4
        worker.graph(key, baseline, few)
        full = min(worker.replay(key, baseline, few, 1, False)[0] for _ in range(3))
        flush = min(worker.replay(key, baseline, few, 1, True)[0] for _ in range(3))
        call = max((full - flush) / few, 1e-6)
        self._calls[key] = calls_in_a_graph(call, flush / few)
        return call

    def time(
        self, loaded: CudaCandidate, key: str, baseline: str, timed: Any, plan: Plan,
        stop: Callable[[], bool], limit: float,
    ) -> tuple[Session, dict[str, Any]]:  # fmt: skip
        """Replays of graphs of both sides."""
        own = isinstance(loaded, CudaCandidate)
        ours = CudaRunnerSide(loaded, max(_BATCH_SECONDS, 4 * limit), loaded.held if own else None)
        against = CudaBaselineSide(self.worker, key, baseline, self._held.setdefault(key, {}))
        calls = self._calls[key]
        with prompt():
            session = run_cuda_session(ours, against, timed, plan, calls, loaded.fetch, stop)
        if own:
            with spending(session, "look"):
                loaded.audit()
        return session, {
            "calls_in_a_graph": calls,
            f"timed_{baseline}": against.how,
            "foreign_load": round(session.foreign, 3),
        }

    def call_time(self, loaded: CudaCandidate, key: str, baseline: str) -> Comparison:
        """Both sides' calls made one by one from the host, without graphs."""
        ours, theirs = [], []
        loaded.runner.hot(1)
        self.worker.hot(key, baseline, 1)
        once = max(loaded.runner.hot(1), self.worker.hot(key, baseline, 1))
        calls = calls_in_a_row(once)
        with prompt():
            for _ in range(_PAIRS):
                ours.append(loaded.runner.hot(calls))
                theirs.append(self.worker.hot(key, baseline, calls))
        return paired("call", ours, theirs)

    def floor_seconds(self, target: Target, timed: TimedInputs) -> float:  # noqa: ARG002
        """By the calibrated copy; every timed call finds its inputs in memory."""
        return device_floor_seconds(target, self.calibration)

    def trouble(self, problem: Exception) -> str | None:
        """Running out of device memory, in words."""
        if not isinstance(problem, torch.OutOfMemoryError | OutOfDeviceMemory):
            return None
        torch.cuda.empty_cache()
        free, whole = torch.cuda.mem_get_info(self.index)
        return (
            f"{self.device} ran out of memory ({free / 1e9:.1f} of {whole / 1e9:.1f} GB are free); "
            f"free some of it, or use smaller inputs. {str(problem).splitlines()[0][:200]}"
        )

    def sanitize(
        self, target: Target, plan: ResolvedPlan, built: Compiled, timed: TimedInputs, case: Case
    ) -> dict[str, str]:
        """compute-sanitizer, where it is installed."""
        tool = sanitizer_path()
        if tool is None or not self._sanitizes:
            return {}

        @contextmanager
        def start(program: Path) -> Iterator[CudaCandidate]:
            limits = CudaLimits(
                call_seconds=_SANITIZER_SECONDS,
                start_seconds=15.0,
                device_memory=self.memory,
                sandboxed=False,
            )
            with CudaCandidate(
                target, plan, timed, binary=program, cubin=built.file, limits=limits,
                device=self.index, flush=self.flush,
            ) as loaded:  # fmt: skip
                loaded.load()
                yield loaded

        found = sanitize(start, self.binary, case, tool, self.folder)
        self._sanitizes = not any(words.startswith("did not run") for words in found.values())
        return found

    def release(self, key: str, timed: TimedInputs) -> None:
        """The worker's copy of the target, and the runner that was made ahead for it."""
        self.worker.let_go(key)
        self._calls.pop(key, None)
        self._held.pop(key, None)
        self._spares.drop(id(timed))

    def close(self) -> None:
        """End the baseline worker and what was made ahead."""
        self.worker.close()
        self._spares.close()
        with self._meant_lock:
            self._meant.clear()
