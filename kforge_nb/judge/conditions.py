"""Clock, temperature and load of a device when something was timed, as far as the system tells.

Noted beside the figures and never decided by: both sides of a timing ran under them by turns. A
reader sees whether a processor was hot, throttled or shared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["conditions"]

_SECONDS = 5.0
_FIELDS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "temperature.gpu": "celsius",
    "power.draw": "watts",
    "clocks_throttle_reasons.active": "throttle_reasons",
}
_CPUS = Path("/sys/devices/system/cpu")
_ZONES = Path("/sys/class/thermal")


def conditions(device: str) -> dict[str, Any]:
    """What is known now of ``cpu`` or ``cuda:N``: MHz, degrees Celsius, load; empty where nothing.

    Never raises: a machine that tells nothing is no reason not to judge.
    """
    if device.startswith("cuda"):
        return _gpu(device.partition(":")[2] or "0")
    found: dict[str, Any] = {}
    clocks = _numbers(_CPUS.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    if clocks:
        found["mhz"] = round(sum(clocks) / len(clocks) / 1e3)
    degrees = _numbers(_ZONES.glob("thermal_zone*/temp"))
    if degrees:
        found["celsius"] = round(max(degrees) / 1e3)
    with suppress(OSError):
        found["load"] = round(os.getloadavg()[0], 2)
    return found


def _numbers(paths: Any) -> list[float]:
    values = []
    for path in paths:
        with suppress(OSError, ValueError):
            values.append(float(path.read_text()))
    return values


def _gpu(index: str) -> dict[str, Any]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if int(index) < len(chosen) and chosen[int(index)].strip():
        index = chosen[int(index)].strip()
    command = [tool, f"--id={index}", f"--query-gpu={','.join(_FIELDS)}"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(_FIELDS.values(), values, strict=False))
