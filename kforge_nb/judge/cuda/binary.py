"""The compiled CUDA runner, where the driver is, and how far a runner can be confined here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from kforge_nb.errors import MissingTool
from kforge_nb.judge.binary import compiled_program

__all__ = [
    "DRIVER",
    "FILTERED",
    "LAYERS",
    "cuda_facts",
    "cuda_runner_binary",
    "runner_environment",
]

DRIVER = "libcuda.so.1"
_SOURCES = (
    "cuda_runner.cpp",
    "cuda_timing.hpp",
    "cuda_stage.hpp",
    "cuda_calls.hpp",
    "cuda_plan.hpp",
    "cuda_code.hpp",
    "cuda_device.hpp",
    "cuda_driver.hpp",
    "cuda_sandbox.hpp",
    "sandbox.hpp",
    "wire.hpp",
)
LAYERS = {
    1: "privileges",
    2: "processes",
    4: "network",
    8: "other processes",
    16: "kernel interfaces",
    32: "unseen",
    64: "files",
}
"""What a runner can give up before the driver starts, by bit: see cuda_sandbox.hpp."""
FILTERED = 2 | 4 | 8
"""Layers of the system-call filter without which a candidate does not count as confined."""
_PROBE_SECONDS = 240.0  # for all trials; each has a limit of its own
_KEPT = ("LD_LIBRARY_PATH", "CUDA_DEVICE_ORDER")


def cuda_runner_binary() -> Path:
    """Path of the CUDA runner, compiled now (about two seconds) if this machine has none yet.

    It needs no CUDA toolkit and no GPU to be built.

    Raises:
        MissingTool: there is no C++ compiler, or it cannot build the runner.
    """
    return compiled_program("cuda_runner", _SOURCES)


def runner_environment(device: int) -> dict[str, str]:
    """The whole environment of a runner: one visible device (its number 0 there), no JIT, no cache.

    Seeing one device makes the driver start faster on a machine with several.
    """
    environment = {
        "LC_ALL": "C",
        "CUDA_CACHE_DISABLE": "1",
        "CUDA_DISABLE_PTX_JIT": "1",
        "CUDA_MODULE_LOADING": "EAGER",
    }
    environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return environment | {"CUDA_VISIBLE_DEVICES": str(device)}
    names = [name.strip() for name in visible.split(",")]
    chosen = names[device] if device < len(names) else ""  # hidden from us: hidden from it
    return environment | {"CUDA_VISIBLE_DEVICES": chosen}


def cuda_facts(device: int = 0, driver: str = DRIVER, flush: Path | None = None) -> dict[str, Any]:
    """What the driver says of a device, and the strictest sandbox under which it works.

    Found by trying, which takes up to a few seconds, once a boot; then remembered in the cache.

    Args:
        device: number of the device as torch counts.
        driver: the driver's library; another one than the system's is for tests.
        flush: a cubin with the kernel ``flush``; the strictest layer is tried only with it.

    Returns:
        ``name``, ``arch`` (``sm_90``), ``driver`` (as 13000), ``memory``, ``l2``, ``shared``
        (bytes), ``multiprocessors``, ``pageable`` (device code can reach the host memory of its
        process), ``start_seconds``, ``layers`` (bits, see :data:`LAYERS`) and ``confined`` (their
        names).

    Raises:
        MissingTool: no compiler, no driver, or no such device; the message says which.
    """
    environment = runner_environment(device)
    return dict(_facts(driver, tuple(sorted(environment.items())), flush))


@lru_cache(maxsize=16)
def _facts(
    driver: str, environment: tuple[tuple[str, str], ...], flush: Path | None
) -> dict[str, Any]:
    binary = cuda_runner_binary()
    kind = "whole" if flush else "partly"
    kept = binary.parent / f"facts-{kind}-{_machine(driver, environment)}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):  # missing or damaged: tried again
        known = dict(json.loads(kept.read_text()))
        if type(known["layers"]) is int:  # without it nothing would be confined
            return known
    facts = _probe(binary, driver, dict(environment), flush)
    facts["confined"] = [name for bit, name in LAYERS.items() if facts["layers"] & bit]
    with suppress(OSError):  # a read-only or full cache: tried again by the next process
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(facts))
        part.replace(kept)
    return facts


def _machine(driver: str, environment: tuple[tuple[str, str], ...]) -> str:
    """What an answer holds for: this boot of this machine, this user, driver and device."""
    parts = [driver, str(environment), str(os.geteuid())]
    for file in ("/proc/sys/kernel/random/boot_id", "/sys/module/nvidia/version"):
        with suppress(OSError):
            parts.append(Path(file).read_text())
    with suppress(OSError):  # a library that is not the system's may change under its name
        parts.append(str(Path(driver).stat().st_mtime_ns))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _probe(
    binary: Path, driver: str, environment: dict[str, str], flush: Path | None
) -> dict[str, Any]:
    words = [str(binary), "--probe", driver, "0", *([str(flush)] if flush else [])]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
            env=environment,
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        raise MissingTool(f"the CUDA runner does not start here: {problem}") from problem
    if "error" in facts:
        raise MissingTool(f"CUDA candidates cannot be judged on this machine: {facts['error']}")
    return facts
