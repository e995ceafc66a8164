"""Plain facts about the device that a workload runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from kforge_nb.errors import MissingTool

__all__ = ["cuda_driver", "facts", "kind_of", "no_cuda", "synchronize"]


def facts(device: str = "cpu") -> dict[str, Any]:
    """Name, kind (``cpu`` or ``cuda``), threads, isa, ram_gb and, where known, cache sizes.

    A GPU has besides ``arch`` (``sm_90``), ``multiprocessors``, ``cuda`` (the runtime that torch is
    built for) and ``driver`` (the newest CUDA that the driver knows).
    ``device`` is a torch device string. Raises MissingTool for a CUDA device that is not there.
    """
    return _cuda(device) if kind_of(device) == "cuda" else _cpu()


def kind_of(device: str) -> str:
    """``cuda`` or ``cpu`` for a torch device string such as ``cuda:0``."""
    return device.partition(":")[0]


def synchronize(device: str) -> None:
    """Wait until the device is idle (nothing to do on a CPU)."""
    if kind_of(device) == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _cpu() -> dict[str, Any]:
    import torch

    return {
        "name": _cpu_name(),
        "kind": "cpu",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "ram_gb": round(_ram_bytes() / 1e9, 1),
        "cache_kb": _cache_kb(),
        "torch": torch.__version__,
    }


def _cuda(device: str) -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        raise MissingTool(no_cuda(device))
    if (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise MissingTool(
            f"{device} was asked for, but this machine has {torch.cuda.device_count()} CUDA "
            "device(s), counted from cuda:0"
        )
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "kind": "cuda",
        "threads": torch.get_num_threads(),
        "isa": f"sm_{properties.major}{properties.minor}",
        "arch": f"sm_{properties.major}{properties.minor}",
        "ram_gb": round(properties.total_memory / 1e9, 1),
        "multiprocessors": properties.multi_processor_count,
        "cache_kb": {"L2": getattr(properties, "L2_cache_size", 0) // 1024},
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": cuda_driver(),
    }


def no_cuda(wanted: str) -> str:
    """Why there is no CUDA here, and what to do: torch without CUDA, no driver, or no device."""
    import torch

    end = "run on a machine with one, or keep the model on the CPU"
    if torch.version.cuda is None:
        return (
            f"{wanted} was asked for, but torch {torch.__version__} is built without CUDA; install "
            f"a CUDA build of torch, or keep the model on the CPU"
        )
    if cuda_driver() is None:
        return (
            f"{wanted} was asked for, but no NVIDIA driver answers on this machine (libcuda is not "
            f"here or does not start); {end}"
        )
    return (
        f"{wanted} was asked for, but torch {torch.__version__} (CUDA {torch.version.cuda}) sees "
        f"no CUDA device: none is here, CUDA_VISIBLE_DEVICES hides it, or the driver (which knows "
        f"CUDA {cuda_driver()}) is too old for this torch; {end}"
    )


def cuda_driver() -> str | None:
    """The newest CUDA that the driver knows, such as ``13.0``; None without a working driver."""
    import ctypes

    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        found = ctypes.c_int()
        status = driver.cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return f"{found.value // 1000}.{found.value % 1000 // 10}" if status == 0 else None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


def _ram_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _cache_kb() -> dict[str, int]:
    """Data cache sizes of the first core, by level, in KiB; empty where not told."""
    found: dict[str, int] = {}
    root = Path("/sys/devices/system/cpu/cpu0/cache")
    for folder in sorted(root.glob("index*")):
        try:
            level = (folder / "level").read_text().strip()
            kind = (folder / "type").read_text().strip()
            size = (folder / "size").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            found[f"L{level}"] = int(size[:-1])
    return found
