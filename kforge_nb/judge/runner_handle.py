"""The judge's end of one runner: commands out, replies in, and every failure put into words."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from time import perf_counter

from kforge_nb.judge import protocol
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.process import Child, Gone, TooSlow
from kforge_nb.judge.protocol import Binding, MalformedReply, Op, Reply
from kforge_nb.judge.regions import Region

__all__ = [
    "PYTHON_SPINS",
    "Limits",
    "Runner",
    "RunnerFailed",
    "RunnerHandle",
    "descriptors",
    "timing_environment",
]

_SYSTEM_CALLS = {
    1: "write", 16: "ioctl", 20: "writev", 41: "socket", 42: "connect", 56: "clone", 57: "fork",
    58: "vfork", 59: "execve", 62: "kill", 101: "ptrace", 200: "tkill", 234: "tgkill",
    319: "memfd_create", 322: "execveat", 425: "io_uring_setup",
}  # fmt: skip
_KIB = 1024


class RunnerFailed(Exception):
    """The candidate broke its runner: the verdict that follows, and why in words."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one runner: seconds for one command, CPU seconds, bytes of memory beyond inputs."""

    call_seconds: float = 5.0
    cpu_seconds: int = 600
    memory: int = 1 << 30
    sandboxed: bool = True


PYTHON_SPINS = 20000
"""What :func:`timing_environment` says where Python stands between two operators: about 300 µs."""


def timing_environment(threads: int, spins: int = 3000) -> dict[str, str]:
    """The whole environment of runners, and what baseline workers get on top of theirs.

    Both sides allocate with the same settings: no page faults for every output. Idle OpenMP threads
    spin so often before they sleep: 3000 times are about 40 µs, longer than a runner needs from one
    call to the next, and even where a busy hypervisor makes each turn fifteen times as long (seen)
    less than what the judge lets an idle thread use, so that waiting is not taken for hidden work.
    """
    return {
        "LC_ALL": "C",
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "false",
        "OMP_THREAD_LIMIT": str(threads),  # a clause may ask for more, and gets no more
        "GOMP_SPINCOUNT": str(spins),
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
        "MALLOC_TOP_PAD_": str(64 * _KIB * _KIB),
        "MALLOC_ARENA_MAX": "1",
    }


class RunnerHandle:
    """The judge's end of a runner process of any kind: one command, one reply, failures in words.

    Args:
        command: of the process; ``{reply}`` stands for its reply descriptor.
        environment: the whole of it.
        regions: inputs, timed inputs, outputs; the process gets only the last one writable.
        call_seconds: how long a command may take unless it says otherwise.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        regions: tuple[Region, Region, Region],
        call_seconds: float,
    ) -> None:
        self._outputs = regions[2]
        self._call_seconds = call_seconds
        self._seq = 0
        self.child = Child(
            list(command), environment=environment, folder=Path("/"), pass_fds=descriptors(regions)
        )

    def close(self) -> None:
        """Kill and reap."""
        self.child.close()

    def _ask(
        self, op: IntEnum, a: int = 0, b: int = 0, payload: bytes = b"",
        seconds: float | None = None,
    ) -> tuple[Reply, float]:  # fmt: skip
        self._seq += 1
        limit = self._call_seconds if seconds is None else seconds
        message = protocol.pack_command(op, self._seq, a, b, payload)
        try:
            if self.child.unasked():
                raise RunnerFailed(Verdict.SUSPICIOUS, "it wrote to the judge's pipe unasked")
            start = perf_counter()
            self.child.send(message, limit)
            data = self.child.receive(protocol.REPLY_BYTES, limit)
            wall = perf_counter() - start
            reply = protocol.unpack_reply(data, self._seq)
        except TooSlow as problem:
            raise self._slow(op, limit) from problem
        except Gone as problem:
            raise self._dead(op) from problem
        except MalformedReply as problem:
            raise RunnerFailed(
                Verdict.SUSPICIOUS, f"the judge's pipe carried {problem}; the runner was killed"
            ) from problem
        if not reply.ok:
            raise self._refused(op, reply)
        return reply, wall

    def _refused(self, op: IntEnum, reply: Reply) -> Exception:
        return RunnerFailed(
            Verdict.CRASHED, f"the runner could not {op.name.lower()}: {reply.text}"
        )

    def _slow(self, op: IntEnum, limit: float) -> RunnerFailed:
        if self._last_words() is not None or not self.child.alive():
            return self._dead(op)
        return RunnerFailed(
            Verdict.TIMED_OUT, f"no answer within {limit:.3g} s ({_during(op)}); it was killed"
        )

    def _last_words(self) -> protocol.LastWords | None:
        return protocol.unpack_last_words(self._outputs.array[:16].tobytes())

    def _dead(self, op: IntEnum) -> RunnerFailed:
        status = self.child.status()
        words = self._last_words()
        during = _during(op)
        if status is None:
            return RunnerFailed(
                Verdict.SUSPICIOUS, f"it closed the judge's pipe and went on ({during})"
            )
        if words is not None and words.kind == "forbidden":
            name = _SYSTEM_CALLS.get(words.number, "")
            return RunnerFailed(
                Verdict.SUSPICIOUS,
                f"it made a forbidden system call, {name or 'number'} {words.number} ({during})",
            )
        if words is not None and words.kind == "control":
            return RunnerFailed(
                Verdict.SUSPICIOUS,
                f"it changed how this thread rounds or treats subnormals, for all that follows "
                f"({during})",
            )
        if words is not None and words.kind == "ended":
            return RunnerFailed(Verdict.CRASHED, f"{self._end_words(words.number)} ({during})")
        if status >= 0:
            return RunnerFailed(
                Verdict.CRASHED, f"its process ended itself with status {status} ({during})"
            )
        return RunnerFailed(Verdict.CRASHED, self._signal_words(-status, words, during))

    def _signal_words(self, number: int, words: protocol.LastWords | None, during: str) -> str:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        if words is not None and words.number == 1:
            return f"{name} ({during}): it wrote to its inputs or far beyond them"
        if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
            return f"{name} ({during}): {self._fault_words()}"
        if number == signal.SIGILL:
            return f"{name} ({during}): an instruction that this CPU does not have"
        if number == signal.SIGXCPU:
            return f"{name} ({during}): it used more than its CPU time"
        return f"{name} ({during})"

    def _end_words(self, number: int) -> str:
        """Why the C++ library ended the process."""
        if number == 1:
            return "it ran out of memory (std::bad_alloc)"
        return "it was ended by its C++ library: an uncaught exception, or no memory was left"

    def _fault_words(self) -> str:
        """What a memory fault or an abort of the process most likely means."""
        return "an access outside its buffers or a failed check"


def descriptors(regions: tuple[Region, Region, Region]) -> tuple[int, int, int]:
    """What a runner is given of its memory: only the outputs may be mapped writable."""
    inputs, timed, outputs = regions
    return inputs.read_only, timed.read_only, outputs.writable


class Runner(RunnerHandle):
    """A process for one C++ candidate. Every method may raise RunnerFailed."""

    def __init__(
        self,
        binary: Path,
        library: Path,
        regions: tuple[Region, Region, Region],
        threads: int,
        limits: Limits,
        library_folder: str = "",
    ) -> None:
        inputs, timed, outputs = regions
        memory = limits.memory + 2 * outputs.bytes * (2 * protocol.HELD_CALLS + 2)
        memory += inputs.bytes + timed.bytes + outputs.bytes
        command = [str(binary), "{reply}", *map(str, descriptors(regions))]
        command += [str(region.bytes) for region in regions]
        command += [str(memory), str(limits.cpu_seconds), str(int(limits.sandboxed))]
        command += [str(library), library_folder]
        self._memory = memory
        super().__init__(command, timing_environment(threads), regions, limits.call_seconds)

    def load(self, entry: str) -> bool:
        """Load the library; True if the candidate's threads are under the strict filter."""
        reply, _ = self._ask(Op.LOAD, payload=entry.encode())
        return bool(reply.value)

    def bind(self, slot_stride: int, slots: int, bindings: list[Binding]) -> None:
        """Say what the arguments of the entry are."""
        self._ask(Op.BIND, payload=protocol.pack_bindings(slot_stride, slots, bindings))

    def run(self) -> float:
        """One call on the checked inputs; seconds on the judge's clock."""
        return self._ask(Op.RUN)[1]

    keeps = True

    def batch(
        self, first: int, calls: int, seconds: float | None = None, keep: Sequence[int] = ()
    ) -> tuple[float, float]:
        """``calls`` timed calls; seconds on the judge's clock and on the runner's own.

        ``keep``: up to ``HELD_CALLS`` calls of the batch, ascending, whose outputs are kept until
        the next batch.
        """
        payload = protocol.pack_keep(keep)
        reply, wall = self._ask(Op.BATCH, first, calls, payload, seconds=seconds)
        return wall, reply.nanos * 1e-9

    def heap(self) -> int:
        """Bytes of its heap that are in use, outputs and scratch left out."""
        return self._ask(Op.HEAP)[0].value

    def fetch(self, which: int) -> None:
        """Have the outputs of the kept call with this number in ``keep`` put into the region."""
        self._ask(Op.FETCH, which)

    def _end_words(self, number: int) -> str:
        return f"{super()._end_words(number)}; it had {self._memory >> 20} MiB of memory"

    def _fault_words(self) -> str:
        mib = self._memory >> 20
        return (
            f"an access outside its buffers, a failed check, or more than its {mib} MiB of memory"
        )


def _during(op: IntEnum) -> str:
    return {
        "LOAD": "while its library was loaded",
        "BIND": "before its first call",
        "RUN": "in a checked call",
        "BATCH": "in timed calls",
        "HOT": "in timed calls",
        "PREPARE": "before its timed calls",
        "READY": "before its code was loaded",
        "NOTES": "between timed calls",
        "AUDIT": "after timed calls",
        "UPLOAD": "between timed calls",
        "FETCH": "between timed calls",
        "HEAP": "between timed calls",
    }.get(op.name, "at the end")
