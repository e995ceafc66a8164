"""Many candidates in a row, a third of them crashing: what is left of them afterwards."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.judge_twins import KERNELS, TwinKernel, candidate, target
from benchmarks.report import measure_row
from kforge_nb.candidates.candidate import Candidate
from kforge_nb.judge.judge import Judge
from kforge_nb.settings import Settings, cache_dir

__all__ = ["Footprint", "leak_rows"]

_KERNEL = replace(KERNELS["rms_norm 2048x768"], shape=(256, 768))
_STORE = "o[i] = a[i] * k;"
_CRASH = "o[i + (1ll << 40)] = a[i] * k;"
_WRONG = "o[i] = a[i] * k * 1.5f;"
_OWN = Path("/proc/self/fd")
_SHARED = Path("/dev/shm")  # noqa: S108 - looked at, nothing is put there


class Footprint:
    """What this process and its children hold: processes, descriptors, memory files, files."""

    def __init__(self, folder: Path) -> None:
        self.counts = {
            "processes": len(_descendants()),
            "descriptors": sum(1 for _ in _OWN.iterdir()),
            "memory files": _memory_files(),
            "files in shared memory": sum(1 for _ in _SHARED.glob("*")) if _SHARED.exists() else 0,
            "files of the judge": sum(1 for _ in folder.rglob("*")),
            "unfinished builds": sum(1 for _ in (cache_dir() / "cpp").glob(".*")),
        }

    def above(self, before: Footprint) -> dict[str, int]:
        """What is there now and was not before."""
        return {name: count - before.counts[name] for name, count in self.counts.items()}


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


def _mix(kernel: TwinKernel) -> list[Candidate]:
    bodies = (kernel.body, kernel.body.replace(_STORE, _CRASH), kernel.body.replace(_STORE, _WRONG))
    return [candidate(replace(kernel, body=body), 0) for body in bodies]


def leak_rows(count: int) -> list[dict[str, Any]]:
    """Judge ``count`` candidates (right, crashing, wrong by turns) and count what stays."""
    mix = _mix(_KERNEL)
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="kforge-bench-") as name:
        folder = Path(name)
        with Judge(Settings(), folder) as first:
            first.open(target(_KERNEL)).evaluate(mix[0])  # what is made once for all judges
        before = Footprint(folder)
        start = time.perf_counter()
        with Judge(Settings(), folder) as judge:
            bench = judge.open(target(_KERNEL))
            running = Footprint(folder)
            for i in range(count):
                verdicts[str(bench.evaluate(mix[i % len(mix)]).verdict)] += 1
            during = Footprint(folder).above(running)
        seconds = time.perf_counter() - start
        after = Footprint(folder).above(before)
    more: dict[str, Any] = {"verdicts": dict(verdicts), "seconds": round(seconds, 1)}
    rows = [
        measure_row(f"leaks: {what}, {count} candidates, judge open", held, "left", **more)
        for what, held in during.items()
    ]
    return rows + [
        measure_row(f"leaks: {what}, {count} candidates, judge closed", held, "left", **more)
        for what, held in after.items()
    ]
