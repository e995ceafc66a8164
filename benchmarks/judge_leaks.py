"""Many candidates in a row, a third of them crashing: what is left of them afterwards.

On a GPU the device's memory is looked at too, by the driver in a process of its own, so that what
this process caches does not count. Others who use the device in the meantime would: so a difference
below ``SLACK_MIB`` counts as none, and the least of a few readings is taken.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.judge_twins import KERNELS, TwinKernel, candidate, target
from benchmarks.report import measure_row
from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.judge.judge import Judge
from kforge_nb.settings import Settings, cache_dir
from kforge_nb.targets.target import Target

__all__ = ["CUDA_SOURCE", "LEAKS", "SLACK_MIB", "Footprint", "leak_rows", "leaking"]

LEAKS = 200
"""Candidates in a row, where nothing else is asked for."""
SLACK_MIB = 32
"""MiB of a device's memory below which a difference counts as none."""

_KERNEL = replace(KERNELS["rms_norm 2048x768"], shape=(256, 768))
_STORE = "o[i] = a[i] * k;"
_CRASH = "o[i + (1ll << 40)] = a[i] * k;"
_WRONG = "o[i] = a[i] * k * 1.5f;"
CUDA_SOURCE = """
extern "C" __global__ void kernel(const float* x, float* y, int c) {
  const float* a = x + (long long)blockIdx.x * c;
  float* o = y + (long long)blockIdx.x * c;
  __shared__ float part[8];
  float q = 0.0f;
  for (int i = threadIdx.x; i < c; i += 256) q += a[i] * a[i];
  for (int d = 16; d > 0; d /= 2) q += __shfl_xor_sync(~0u, q, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = q;
  __syncthreads();
  q = 0.0f;
  for (int i = 0; i < 8; ++i) q += part[i];
  const float k = 1.0f / sqrtf(q / c + 1e-6f);
  for (int i = threadIdx.x; i < c; i += 256) o[i] = a[i] * k;
}
"""
_CUDA_PLAN = LaunchPlan(
    (Kernel("kernel", ("in0", "out0", "i32:C"), ("ROWS", "1", "1"), ("256", "1", "1")),),
    {"C": "in0.shape[1]", "ROWS": "in0.shape[0]"},
)
_USED = "import torch; free, all = torch.cuda.mem_get_info({device!r}); print(all - free)"
_READINGS = 3
_OWN = Path("/proc/self/fd")
_SHARED = Path("/dev/shm")  # noqa: S108 - looked at, nothing is put there


class Footprint:
    """What this process and its children hold: processes, descriptors, memory files, files."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.counts = {
            "processes": len(_descendants()),
            "descriptors": sum(1 for _ in _OWN.iterdir()),
            "memory files": _memory_files(),
            "files in shared memory": sum(1 for _ in _SHARED.glob("*")) if _SHARED.exists() else 0,
            "files of the judge": sum(1 for _ in folder.rglob("*")),
            "unfinished builds": sum(1 for _ in (cache_dir() / "cpp").glob(".*")),
        }
        if device != "cpu":
            self.counts["MiB of device memory"] = _device_mib(device)

    def above(self, before: Footprint) -> dict[str, int]:
        """What is there now and was not before."""
        more = {name: count - before.counts[name] for name, count in self.counts.items()}
        if abs(more.get("MiB of device memory", 0)) < SLACK_MIB:
            more = {name: 0 if "device" in name else count for name, count in more.items()}
        return more


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                line = Path(entry.path, "stat").read_text(errors="replace")
            except OSError:
                continue
            parent = int(line.rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _memory_files() -> int:
    """Anonymous memory files that are mapped or open here."""
    mapped = Path("/proc/self/maps").read_text().count("memfd:kforge")
    links = [fd for fd in _OWN.iterdir() if fd.is_symlink()]
    return mapped + sum("memfd:kforge" in str(fd.readlink()) for fd in links)


def _device_mib(device: str) -> int:
    """MiB of the device that are in use, as a process of its own sees it; the least of a few."""
    command = [sys.executable, "-c", _USED.format(device=device)]
    readings = [
        int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(_READINGS)
    ]
    return min(readings) >> 20


def _mix(kernel: TwinKernel, device: str = "cpu") -> list[Candidate]:
    """A right candidate, one that crashes, and one that is wrong."""
    if device != "cpu":
        changes = ("o[i] = a[i] * k;", _CRASH, _WRONG)
        sources = [CUDA_SOURCE.replace("o[i] = a[i] * k;", change) for change in changes]
        return [Candidate("cuda", source, _CUDA_PLAN, "rms_norm") for source in sources]
    bodies = (kernel.body, kernel.body.replace(_STORE, _CRASH), kernel.body.replace(_STORE, _WRONG))
    return [candidate(replace(kernel, body=body), 0) for body in bodies]


def _footprint(folder: Path, device: str) -> Footprint:
    """What is held now; on a GPU without what torch caches in this process."""
    if device != "cpu":
        import gc

        import torch

        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    return Footprint(folder, device)


def leaking(rows: Iterable[dict[str, Any]]) -> list[str]:
    """What was left behind, in words."""
    return [
        f"{row['name']}: nothing may be left, and it is {row['value']:g}"
        for row in rows
        if row["name"].startswith("leaks: ") and row["value"] > 0
    ]


def _judged(
    folder: Path, made: Target, mix: list[Candidate], count: int, device: str
) -> tuple[Counter[str], dict[str, int]]:
    """Verdicts of ``count`` candidates on one bench, and what is left while the judge is open.

    On a GPU nothing is said of that: runners that wait for the next candidate hold memory there.
    """
    verdicts: Counter[str] = Counter()
    with Judge(Settings(), folder) as judge:
        bench = judge.open(made)
        running = _footprint(folder, "cpu")
        for i in range(count):
            verdicts[str(bench.evaluate(mix[i % len(mix)]).verdict)] += 1
        during = _footprint(folder, "cpu").above(running) if device == "cpu" else {}
    return verdicts, during


def leak_rows(count: int, device: str = "cpu") -> list[dict[str, Any]]:
    """Judge ``count`` candidates (right, crashing, wrong by turns) and count what stays.

    ``device``: ``cpu``, or ``cuda`` for device code, where memory of the device is counted too.
    """
    mix = _mix(_KERNEL, device)
    made = target(_KERNEL, device)
    with tempfile.TemporaryDirectory(prefix="kforge-bench-") as name:
        folder = Path(name)
        _judged(folder, made, mix, len(mix) if device != "cpu" else 1, device)  # made once for all
        before = _footprint(folder, device)
        start = time.perf_counter()
        verdicts, during = _judged(folder, made, mix, count, device)
        seconds = time.perf_counter() - start
        after = _footprint(folder, device).above(before)
    more: dict[str, Any] = {"verdicts": dict(verdicts), "seconds": round(seconds, 1)}
    what = f"{count} candidates" if device == "cpu" else f"{count} candidates on {device}"
    return [
        measure_row(f"leaks: {name}, {what}, judge {state}", held, "left", **more)
        for state, counts in (("open", during), ("closed", after))
        for name, held in counts.items()
    ]
