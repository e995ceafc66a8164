"""Plain facts about the device that a workload runs on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from kforge_nb.errors import MissingTool

__all__ = ["facts", "kind_of", "synchronize"]


def facts(device: str = "cpu") -> dict[str, Any]:
    """Name, kind (``cpu`` or ``cuda``), threads, isa, ram_gb and, where known, cache sizes.

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
        raise MissingTool(
            f"{device} was asked for, but torch {torch.__version__} sees no CUDA device here; "
            "run on a machine with one, or keep the model on the CPU"
        )
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "kind": "cuda",
        "threads": torch.get_num_threads(),
        "isa": f"sm_{properties.major}{properties.minor}",
        "ram_gb": round(properties.total_memory / 1e9, 1),
        "multiprocessors": properties.multi_processor_count,
        "cache_kb": {"L2": getattr(properties, "L2_cache_size", 0) // 1024},
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


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
