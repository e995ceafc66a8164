"""Seconds of each stage for one clearly faster candidate, by the size of its inputs."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.judge_twins import KERNELS, candidate, target
from benchmarks.report import measure_row
from kforge_nb.judge.judge import Judge
from kforge_nb.settings import Settings

__all__ = ["stage_rows"]

_ROWS = {"8 MB": 2560, "32 MB": 10240, "60 MB": 19200}
_KERNEL = "rms_norm 2048x768"


def stage_rows() -> list[dict[str, Any]]:
    """Rows for RMS norm, which eager needs five passes for and the candidate one.

    The sum, ``judged``, leaves out the compiler and the wait for others, as the judge counts them.
    """
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="kforge-bench-") as folder,
        Judge(Settings(), Path(folder)) as judge,
    ):
        for title, count in _ROWS.items():
            kernel = dataclasses.replace(KERNELS[_KERNEL], shape=(count, 768))
            bench = judge.open(target(kernel))
            found = bench.evaluate(candidate(kernel, 0))
            bench.close()
            seconds = dict(found.seconds)
            total = seconds.pop("total")
            apart = seconds.pop("compile", 0.0) + seconds.pop("wait", 0.0)
            said: dict[str, Any] = {"verdict": str(found.verdict), "reason": found.reason}
            name = f"stages: RMS norm of {title} in"
            rows.append(measure_row(f"{name}, judged", total - apart, "s", **said))
            for stage, took in seconds.items():
                rows.append(measure_row(f"{name}, {stage}", took, "s"))
    return rows
