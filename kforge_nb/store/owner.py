"""Who works on a run: enough facts to tell a live process from one that was killed.

A process id alone lies after a reboot and when the system hands it out again, so the boot and the
start time of the process belong to it. Facts of another machine (a shared file system) cannot be
checked; there only the age of the heartbeat speaks.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SILENT_S", "Owner"]

SILENT_S = 120.0
"""Seconds without a heartbeat after which a process on another machine counts as dead."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Host name, boot id, process id and start time (in the system's own words) of a process."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(platform.node(), _boot(), pid, _started(pid))

    def alive(self, beat: float | None, now: float) -> bool:
        """Whether that process still runs.

        Args:
            beat: When it last gave a sign of life, seconds since the epoch.
            now: The time of asking, same clock.
        """
        if self.host != platform.node():
            return beat is not None and now - beat < SILENT_S
        if self.boot != _boot() or not _exists(self.pid):
            return False
        return self.started == _started(self.pid)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty where the system has no /proc.

    A zombie is dead, though it still has an entry.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "zombie" if fields[0] == "Z" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
