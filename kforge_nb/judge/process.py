"""Starting, talking to and ending child processes, without leaving one behind.

All children are started by one thread that lives as long as this process. They ask the kernel to
be killed when that thread dies (``PR_SET_PDEATHSIG`` is bound to the *thread* that started them),
so even ``kill -9`` of a notebook leaves no runner behind, not even one in an endless loop.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

__all__ = ["Child", "Foreign", "Gone", "TooSlow", "busy_seconds", "cpu_seconds", "thread_count"]

_PROCESS_CLOCK = 2  # of another process, by its number: CPUCLOCK_SCHED of Linux
_END_SECONDS = 5.0  # a killed process that a driver holds may take this long, twice
_spawner_lock = threading.Lock()
_spawner: ThreadPoolExecutor | None = None


class Gone(Exception):
    """The child closed its pipe or ended."""


class TooSlow(Exception):
    """The child did not answer in time."""


def _spawn(command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...],
           folder: Path, log: int) -> subprocess.Popen[bytes]:  # fmt: skip
    """Popen in the one long-lived thread."""
    global _spawner
    with _spawner_lock:
        if _spawner is None:
            _spawner = ThreadPoolExecutor(1, thread_name_prefix="kforge-spawner")
    return _spawner.submit(
        subprocess.Popen,
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=log,
        env=environment,
        pass_fds=pass_fds,
        cwd=folder,
        start_new_session=True,
        bufsize=0,
    ).result()


def _readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read (or an end) within ``seconds``."""
    return _ready(descriptor, select.POLLIN, seconds)


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()  # unlike select it takes descriptors above 1023
    poll.register(descriptor, event)
    return bool(poll.poll(math.ceil(seconds * 1e3)))


class Child:
    """A child with its own session, a command pipe (its descriptor 0) and a reply pipe.

    ``command`` is completed by ``{reply}``, the number of the reply descriptor in the child.
    """

    def __init__(
        self,
        command: list[str],
        *,
        environment: dict[str, str],
        folder: Path,
        pass_fds: tuple[int, ...] = (),
        log: int = subprocess.DEVNULL,
    ) -> None:
        self._name = Path(command[0]).name
        self._reply, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            words = [word.replace("{reply}", str(theirs)) for word in command]
            self.popen = _spawn(words, environment, (theirs, *pass_fds), folder, log)
        except OSError:
            os.close(self._reply)
            raise
        finally:
            os.close(theirs)
        if self.popen.stdin is not None:  # a child that does not read must not hold us up
            os.set_blocking(self.popen.stdin.fileno(), False)
        self.pid = self.popen.pid
        self._closed = False

    def send(self, data: bytes, seconds: float = 60.0) -> None:
        """Write a command; raises Gone if nobody reads any more, TooSlow if not in time."""
        if self.popen.stdin is None:
            raise Gone("the command pipe is closed")
        deadline = time.monotonic() + seconds
        view = memoryview(data)
        try:
            while view:
                left = deadline - time.monotonic()
                if left <= 0 or not _ready(self.popen.stdin.fileno(), select.POLLOUT, left):
                    raise TooSlow(f"a command was not read within {seconds:.3g} s")
                view = view[self.popen.stdin.write(view) or 0 :]
        except OSError as problem:
            raise Gone(str(problem)) from problem

    def receive(self, bytes_: int, seconds: float) -> bytes:
        """Exactly ``bytes_`` bytes; raises TooSlow after ``seconds``, Gone at the end of file."""
        deadline = time.monotonic() + seconds
        parts: list[bytes] = []
        while bytes_ > 0:
            left = deadline - time.monotonic()
            if left <= 0 or not _readable(self._reply, left):
                raise TooSlow(f"no answer within {seconds:.3g} s")
            part = os.read(self._reply, bytes_)
            if not part:
                raise Gone("the reply pipe was closed")
            parts.append(part)
            bytes_ -= len(part)
        return b"".join(parts)

    def unasked(self) -> bool:
        """Whether bytes wait in the reply pipe although nothing was asked."""
        return _readable(self._reply, 0) and self.alive()

    def alive(self) -> bool:
        """Whether the process still runs. It is not reaped here, so its number stays its own."""
        return not self._closed and self._ended() is None

    def _ended(self) -> os.waitid_result | None:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def status(self, seconds: float = 1.0) -> int | None:
        """Exit status (negative: signal) of a child that is ending; None if it goes on."""
        handle = os.pidfd_open(self.pid)
        try:
            _readable(handle, seconds)
        finally:
            os.close(handle)
        ended = self._ended()
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _killed(self, seconds: float) -> bool:
        """Kill the whole group; whether the process ended within ``seconds`` and was reaped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill the process group, reap, close the pipes. Safe to call twice.

        A process that a driver of the kernel holds cannot be killed by anybody. It is waited for in
        vain only for some seconds, then left to the system, with a RuntimeWarning that names it.
        """
        if self._closed:
            return
        self._closed = True
        if not any(self._killed(_END_SECONDS) for _ in range(2)):
            warnings.warn(
                f"process {self.pid} ({self._name}) was killed twice and has not ended after "
                f"{2 * _END_SECONDS:g} s; a driver of the system holds it. It ends when the driver "
                "lets go, or with this machine",
                RuntimeWarning,
                stacklevel=2,
            )
        if self.popen.stdin is not None:
            with suppress(OSError):
                self.popen.stdin.close()
        os.close(self._reply)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far, ended threads included, to the nanosecond.

    0 if it cannot be read.
    """
    try:
        return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
    except OSError:
        return 0.0


def thread_count(pid: int) -> int:
    """Living threads of a process; 0 if that cannot be read."""
    try:
        return sum(1 for _ in os.scandir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def busy_seconds() -> float:
    """CPU time that was not idle since the machine started, stolen time included."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    ticks = [int(f) for f in fields]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


class Foreign:
    """How much of the machine others used since this was made: not this process, not ``pids``."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = [os.getpid(), *pids]
        self._start = (busy_seconds(), self._own(), time.monotonic())

    def _own(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids)

    def share(self) -> float:
        """Between 0 and 1."""
        busy, own, clock = self._start
        elapsed = (time.monotonic() - clock) * (os.cpu_count() or 1)
        others = (busy_seconds() - busy) - (self._own() - own)
        return min(1.0, max(0.0, others / elapsed)) if elapsed > 0 else 0.0
