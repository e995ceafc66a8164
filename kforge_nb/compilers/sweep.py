"""The process above a build: it ends the build at a limit and leaves none of its children behind.

``nvcc`` and ``ninja`` start many processes, in groups and sessions of their own, and a source can
keep any of them busy for ever. Killing one group is not enough, so this small program makes itself
the *subreaper* of everything below it: whatever loses its parent becomes its own child, and it
kills and reaps until nothing is left. It is started by path with ``python -I -S`` and imports
nothing of this package::

    python -I -S sweep.py SECONDS PROGRAM ARGUMENTS...

It exits with the program's status, with 128 + N where signal N ended it, and with ``EXPIRED`` where
time ran out. If its own parent dies, it sweeps and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["EXPIRED", "main"]

EXPIRED = 124
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SWEEP_SECONDS = 20.0
_PAUSE = 0.002


def _told_to_end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _become_reaper() -> None:
    """Ask for the orphans, and for a signal when the parent is gone."""
    signal.signal(signal.SIGTERM, _told_to_end)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int:
    """Exit status of the child, or EXPIRED."""
    handle = os.pidfd_open(child.pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    ended = poll.poll(max(0, int(seconds * 1e3)))
    os.close(handle)
    if not ended:
        return EXPIRED
    status = child.wait()
    return status if status >= 0 else 128 - status


def _descendants(root: int) -> list[int]:
    """All processes below ``root``, itself left out."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has just ended
            line = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
            parent = int(line.rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _sweep() -> None:
    """Kill and reap until nothing is left below this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deadline = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < deadline:
        below = _descendants(os.getpid())
        if not below:
            return
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE)


def main(arguments: list[str]) -> int:
    """Run the program, wait, sweep."""
    seconds, command = float(arguments[0]), arguments[1:]
    _become_reaper()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        return _wait(child, seconds)
    finally:
        _sweep()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
