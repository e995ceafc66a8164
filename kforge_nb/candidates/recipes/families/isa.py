"""Which vector instructions this machine has, so that no kernel is emitted that it cannot run."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

__all__ = ["ISA_LEVELS", "available_isas", "isa_level"]

ISA_LEVELS: dict[str, int] = {"avx512": 512, "avx2": 256, "portable": 0}
"""Name of a level, and the value of ``KF_ISA`` that kernels are compiled with for it."""

_NEEDS: dict[str, frozenset[str]] = {
    "avx512": frozenset(
        {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"},
    ),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
}


@lru_cache(maxsize=1)
def _cpu_flags() -> frozenset[str]:
    """Feature flags that the kernel reports for the first CPU; empty where it reports none."""
    info = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not info.exists():
        return frozenset()
    for line in info.read_text(errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def available_isas() -> list[str]:
    """Names from :data:`ISA_LEVELS` that this machine runs, widest first; never empty."""
    flags = _cpu_flags()
    return [name for name in ISA_LEVELS if _NEEDS.get(name, frozenset()) <= flags]


def isa_level(name: str) -> int:
    """Value of ``KF_ISA`` for a level's name."""
    return ISA_LEVELS[name]
