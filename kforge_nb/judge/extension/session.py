"""The judge's end of one torch extension: its worker, and the surface of any loaded candidate."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import IntEnum
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from kforge_nb.candidates.plan import ResolvedPlan
from kforge_nb.compilers.cpp import Built, build
from kforge_nb.errors import MissingTool
from kforge_nb.judge import protocol
from kforge_nb.judge.checked import IsolatedCandidate
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.extension.ops import ExtensionOp, NotCapturable, WrongOutput
from kforge_nb.judge.protocol import Op, Reply
from kforge_nb.judge.regions import Buffer, InputLayout, OutputLayout, Region
from kforge_nb.judge.runner_handle import (
    PYTHON_SPINS,
    Limits,
    RunnerFailed,
    RunnerHandle,
    descriptors,
    timing_environment,
)
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.settings import cache_dir
from kforge_nb.targets.target import Target, TensorSpec

__all__ = [
    "DeviceExtensionRunner",
    "ExtensionCandidate",
    "ExtensionRunner",
    "HostExtensionRunner",
    "Start",
    "confine_library",
    "inputs_away",
    "layers_held",
    "layout_of",
    "readable",
    "worker_environment",
]

START_SECONDS = 120.0  # torch is imported, and a GPU's context made, before the first answer
_LAYERS = {1: "no_new_privs", 2: "landlock", 4: "seccomp"}
_VERDICTS = {WrongOutput.code: Verdict.WRONG, NotCapturable.code: Verdict.REFUSED}
_MAIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1])['path']; "
    "from kforge_nb.judge.extension.worker import main; main()"
)
_KEPT = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker is told on its command line. ``files``: what it may go on reading."""

    reply: str
    regions: tuple[int, int, int]
    bytes: tuple[int, int, int]
    library: str
    confine: str
    device: str
    threads: int
    memory: int
    cpu_seconds: int
    sandboxed: bool
    path: tuple[str, ...]
    files: tuple[str, ...]


def confine_library() -> Path:
    """The library with which a worker gives its rights away; built once a machine (a second).

    Raises:
        MissingTool: there is no compiler, or it cannot build it.
    """
    judge = files("kforge_nb.judge")
    layers = (judge / "runner" / "sandbox.hpp").read_text().replace("#pragma once", "")
    source = layers + (judge / "extension" / "confine.cpp").read_text()
    built = build(source, "kforge_confine", cache=cache_dir() / "cpp")
    if not isinstance(built, Built):
        raise MissingTool(f"the judge's sandbox could not be compiled: {built.distilled[:600]}")
    return built.library


def readable(library: Path, device: str) -> tuple[str, ...]:
    """Files that torch and Python go on needing: no folder of the user's but the packages'."""
    folders = {sys.prefix, sys.base_prefix, str(Path(torch.__file__).parents[1])}
    folders |= {entry for entry in sys.path if "-packages" in entry}
    lines = [f"r{folder}" for folder in sorted(folders)]
    lines += [f"r{library}", f"r{Path(__file__).parents[2]}", "r/sys", "r/etc/localtime"]
    lines += [f"r/proc/{name}" for name in ("self", "cpuinfo", "meminfo", "stat", "sys")]
    lines += ["d/dev/null", "r/dev/urandom"]
    if device.startswith("cuda"):
        lines += [f"d{path}" for path in Path("/dev").glob("nvidia*")]
        lines += ["r/usr", "r/opt", "r/proc"]  # drivers look at more of it than is written down
    return tuple(lines)


def worker_environment(threads: int) -> dict[str, str]:
    """The whole environment of a process with Python and torch that runs somebody's code."""
    environment = {k: os.environ[k] for k in _KEPT if k in os.environ}
    environment |= {
        **timing_environment(threads, PYTHON_SPINS),
        "CUDA_CACHE_DISABLE": "1",
        "HOME": "/",
    }
    return {**environment, "PATH": "/usr/bin:/bin"}


class ExtensionRunner(RunnerHandle):
    """A worker for one extension. Every method may raise RunnerFailed.

    Its commands carry random numbers, and a timed batch counts only with the answer to a second
    command that was sent after it: an answer given early does not stop the clock.
    """

    def __init__(
        self,
        library: Path,
        regions: tuple[Region, Region, Region],
        device: str,
        threads: int,
        limits: Limits,
        main: str = _MAIN,
        more: Mapping[str, Any] | None = None,
        more_files: Sequence[str] = (),
    ) -> None:
        inputs, timed, outputs = regions
        self._memory = limits.memory + 4 * outputs.bytes * (protocol.HELD_CALLS + 2)
        start = Start(
            "{reply}",
            descriptors(regions),
            (inputs.bytes, timed.bytes, outputs.bytes),
            str(library),
            str(confine_library()),
            device,
            threads,
            self._memory,
            limits.cpu_seconds,
            limits.sandboxed,
            (str(Path(__file__).parents[3]), *(entry for entry in sys.path if entry)),
            (*readable(library, device), *more_files),
        )
        told = json.dumps({**asdict(start), **(more or {})})
        command = [sys.executable, "-I", "-c", main, told]
        super().__init__(command, worker_environment(threads), regions, limits.call_seconds)

    def load_extension(self) -> int:
        """Have it confined and loaded; bits of the layers that hold."""
        reply, _ = self._ask(Op.LOAD, seconds=START_SECONDS + self._call_seconds)
        return int(reply.value)

    def bind_layout(self, layout: dict[str, Any]) -> None:
        """Say where inputs and outputs lie; waits until the worker has started."""
        self._ask(Op.BIND, payload=json.dumps(layout).encode(), seconds=START_SECONDS)

    def run(self) -> float:
        """One call on the checked inputs; seconds on the judge's clock, copies included."""
        return self._ask(Op.RUN)[1]

    def ping(self) -> float:
        """Seconds of an empty exchange."""
        return self._confirmed(Op.BATCH, 0, 0, None)[0]

    def fetch(self, age: int) -> None:
        """Have the outputs of the call before the last ``age`` calls put into the region."""
        self._ask(Op.FETCH, age)

    def _confirmed(self, op: IntEnum, a: int, b: int, seconds: float | None) -> tuple[float, float]:
        """Seconds until a second answer, and what the worker says that the first one took."""
        start = perf_counter()
        self._seq = secrets.randbits(62)
        reply, _ = self._ask(op, a, b, seconds=seconds)
        self._seq = secrets.randbits(62)
        self._ask(Op.BATCH, 0, 0, seconds=seconds)
        return perf_counter() - start, reply.nanos * 1e-9

    def _refused(self, op: IntEnum, reply: Reply) -> Exception:
        """What the worker found, or what the candidate raised."""
        if reply.value in _VERDICTS:
            return RunnerFailed(_VERDICTS[reply.value], reply.text)
        if reply.text.startswith("MemoryError"):
            had = f"it had {self._memory >> 20} MiB"
            return RunnerFailed(Verdict.CRASHED, f"it ran out of memory; {had}")
        if reply.text.startswith("OutOfMemoryError"):
            return RunnerFailed(Verdict.UNDECIDED, f"no device memory was left: {reply.text}")
        doing = "loading it" if op in (Op.LOAD, Op.BIND) else "forward"
        return RunnerFailed(Verdict.CRASHED, f"{doing} raised {reply.text}")

    def _fault_words(self) -> str:
        mib = self._memory >> 20
        return (
            f"an access outside its buffers, a failed check, or more than its {mib} MiB of memory"
        )


class HostExtensionRunner(ExtensionRunner):
    """On the CPU: batches of calls, as :class:`kforge_nb.judge.runner_handle.Runner` has them."""

    last = 0
    """The slot after that of the last timed call."""

    def batch(self, first: int, calls: int, seconds: float | None = None) -> tuple[float, float]:
        """``calls`` timed calls; seconds on the judge's clock and on the worker's own."""
        self.last = first + calls if calls else self.last
        return self._confirmed(Op.BATCH, first, calls, seconds)


class DeviceExtensionRunner(ExtensionRunner):
    """On a GPU: replays of CUDA graphs, as :class:`kforge_nb.judge.cuda.handle.CudaRunner`."""

    def upload(self, first: int, slots: int) -> None:
        """Copy timed slots to the device, outside the clock."""
        self._ask(ExtensionOp.UPLOAD, first, slots, seconds=START_SECONDS)

    def prepare(self, calls: int) -> None:
        """Capture two CUDA graphs: ``calls`` times (flush, call), and the flushes alone."""
        self._ask(ExtensionOp.PREPARE, calls, seconds=START_SECONDS)

    def batch(
        self, replays: int, empty: bool = False, seconds: float | None = None
    ) -> tuple[float, float]:
        """So many replays: seconds on the judge's clock, and on the device by events."""
        return self._confirmed(ExtensionOp.REPLAY, replays, int(empty), seconds)

    def hot(self, calls: int, seconds: float | None = None) -> float:
        """Seconds a call, launched one by one by the host and waited for once."""
        return self._confirmed(ExtensionOp.HOT, calls, 0, seconds)[0] / max(1, calls)


class ExtensionCandidate(IsolatedCandidate):
    """A torch extension in its worker; a context manager. Methods may raise RunnerFailed."""

    def __init__(
        self,
        target: Target,
        timed: TimedInputs,
        *,
        library: Path,
        threads: int,
        limits: Limits,
    ) -> None:
        super().__init__(target, timed, OutputLayout(target.outputs, ResolvedPlan([], {})))
        kind = HostExtensionRunner if target.device == "cpu" else DeviceExtensionRunner
        try:
            self.runner: Any = kind(library, self.regions, target.device, threads, limits)
        except BaseException:
            self._release()
            raise

    def load(self) -> bool:
        """Load and bind; True if every layer of the sandbox holds."""
        return all(self.layers().values())

    def layers(self) -> dict[str, bool]:
        """Load and bind; which layers of the sandbox hold."""
        self.bind()
        return layers_held(self.runner.load_extension())

    def bind(self, slots: int | None = None) -> None:
        """Say where tensors lie; with the first slots alone where there is a number."""
        layout = layout_of(self.target, self._in_layout, self._out_layout, self._timed)
        self.runner.bind_layout({**layout, "slots": slots or layout["slots"]})

    def _call(self, laid_out: bool) -> None:  # noqa: ARG002 - it allocates its outputs itself
        self.runner.run()

    def _end(self) -> None:
        self.runner.close()

    def fetch(self, age: int) -> list[torch.Tensor]:
        """Copies of the outputs of a timed call (0: the last one), in host memory."""
        with inputs_away(self._timed, self.runner, age):
            self.runner.fetch(age)
        return [t.clone() for t in self.outputs()]


@contextmanager
def inputs_away(timed: TimedInputs, runner: Any, age: int) -> Iterator[None]:
    """Other inputs in the slot of a timed call while its outputs are asked for.

    The clock has stopped by then, and a process that only notes what it was given could work it out
    now: from what is no longer there. On a GPU the inputs are in the process's own memory.
    """
    if not isinstance(runner, HostExtensionRunner):
        yield
        return
    slot = runner.last - 1 - age
    here, other = timed.raw(slot), timed.raw(slot + 1)
    kept = [row.copy() for row in here]
    for row, others in zip(here, other, strict=True):
        row[:] = others
    try:
        yield
    finally:
        for row, values in zip(here, kept, strict=True):
            row[:] = values


def layers_held(bits: int) -> dict[str, bool]:
    """The layers of the sandbox by name, from a worker's answer."""
    return {name: bool(bits & bit) for bit, name in _LAYERS.items()}


def layout_of(
    target: Target, inputs: InputLayout, outputs: OutputLayout, timed: TimedInputs
) -> dict[str, Any]:
    """Where tensors lie in the regions, as a worker is told."""
    return {
        "inputs": _places(target.inputs, inputs.buffers),
        "outputs": _places(target.outputs, outputs.outputs),
        "slot_stride": timed.layout.stride,
        "slots": timed.slots,
    }


def _places(specs: Iterable[TensorSpec], buffers: Iterable[Buffer]) -> list[dict[str, Any]]:
    return [
        {
            "offset": buffer.offset,
            "bytes": buffer.bytes,
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "stride": list(spec.stride),
        }
        for spec, buffer in zip(specs, buffers, strict=True)
    ]
