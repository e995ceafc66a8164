"""Run a compiler as a guest: own process group, limits on time, memory and output, no user data.

A candidate's source can make a compiler run for ever, eat all memory, or print without end. The
limits are set by a tiny ``sh`` before the compiler starts, so they hold for its children as well
and nothing has to run between fork and exec in a threaded parent.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kforge_nb.errors import MissingTool

__all__ = ["Outcome", "run_limited"]

_LOOK_SECONDS, _END_SECONDS = 0.1, 20.0
_ROOM = 64 << 10  # bytes: a disk with less is what a compiler failed for, whatever it says
LOG_LIMIT = 256 << 10
FILE_LIMIT_BLOCKS = 2 * (512 << 20) // 1024  # ulimit -f counts blocks of 512 bytes: 512 MiB
_WRAPPER = (
    'ulimit -c 0; ulimit -v "$1" 2>/dev/null; ulimit -t "$2" 2>/dev/null; '
    'ulimit -f "$3" 2>/dev/null; shift 3; exec "$@"'
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a limited process ended: exit status (negative: signal), log, seconds of wall time."""

    status: int
    log: str
    seconds: float
    timed_out: bool
    stopped: bool = False


def run_limited(
    command: list[str],
    *,
    folder: Path,
    environment: dict[str, str],
    time_limit: float,
    memory_limit: int,
    stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Run ``command`` in ``folder`` and wait for its end, killing its whole group at the limit.

    Args:
        command: program and arguments; nothing is expanded by a shell.
        folder: working folder; the log goes to ``log.txt`` there.
        environment: the whole environment.
        time_limit: seconds of wall time; the same (rounded up) limits CPU time.
        memory_limit: bytes of address space for each process.
        stop: asked ten times a second; when it says so, the group gets SIGTERM and some seconds.

    Raises:
        MissingTool: it failed, and the disk of ``folder`` is full.
    """
    limits = [str(memory_limit // 1024), str(int(time_limit) + 1), str(FILE_LIMIT_BLOCKS)]
    wrapped = ["/bin/sh", "-c", _WRAPPER, "sh", *limits, *command]
    log_path = folder / "log.txt"
    start = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            wrapped,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timed_out, stopped = False, False
        try:
            stopped = _wait(process, time_limit, stop)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill_group(process)
    seconds = time.monotonic() - start
    if process.returncode != 0 and shutil.disk_usage(folder).free < _ROOM:
        raise MissingTool(
            f"{command[0]} failed, and the disk of {folder.parent} is full; free some space there, "
            "then go on"
        )
    return Outcome(process.returncode, _read_log(log_path), seconds, timed_out, stopped)


def _wait(
    process: subprocess.Popen[bytes], seconds: float, stop: Callable[[], bool] | None
) -> bool:
    """Wait for the end; whether it was asked for. Raises TimeoutExpired."""
    if stop is None:
        process.wait(timeout=seconds)
        return False
    deadline = time.monotonic() + seconds
    while not stop():
        try:
            process.wait(timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise
        else:
            return False
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_END_SECONDS)
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the group whether or not its leader still lives, then reap the leader."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the usual case: every process of the group has ended by itself
    except PermissionError:
        process.kill()  # macOS answers so when the group holds only a zombie
    process.wait()


def _read_log(path: Path) -> str:
    with path.open("rb") as file:
        text = file.read(LOG_LIMIT).decode("utf-8", "replace")
        return text + ("\n… (cut)" if file.read(1) else "")
