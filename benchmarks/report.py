"""The one JSON language of all benchmarks, and the short table that people read.

A row that compares has ``name``, ``against``, ``ratio``, ``low``, ``high``, ``n``, ``ours_us`` and
``against_us``; a row that measures has ``name``, ``value``, ``unit``, ``low``, ``high`` and ``n``.
More keys may follow.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.timing import Comparison

__all__ = [
    "add_json_option",
    "commit",
    "compare_row",
    "device_facts",
    "make_report",
    "measure_row",
    "print_report",
    "write_report",
]

Row = dict[str, Any]
_PACKAGES = ("torch", "numpy", "transformers", "diffusers")


def compare_row(name: str, against: str, found: Comparison, **more: Any) -> Row:
    """A row that says how many times faster ours is than ``against``."""
    return {"name": name, "against": against, **asdict(found), **more}


def measure_row(
    name: str,
    value: float,
    unit: str,
    *,
    low: float | None = None,
    high: float | None = None,
    n: int = 1,
    **more: Any,
) -> Row:
    """A row that measures one thing; without an interval, low and high are the value."""
    low, high = (value if v is None else v for v in (low, high))
    return {"name": name, "value": value, "unit": unit, "low": low, "high": high, "n": n, **more}


def device_facts() -> dict[str, Any]:
    """Processor, number of CPUs this process may use, memory in GB."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    facts: dict[str, Any] = {"name": name, "kind": "cpu", "machine": platform.machine()}
    has_affinity = hasattr(os, "sched_getaffinity")
    facts["cpus"] = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()
    if hasattr(os, "sysconf"):
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        facts["ram_gb"] = round(pages / 1e9, 1)
    return facts


def commit() -> str:
    """Commit of this checkout with ``+`` where files differ from it; ``unknown`` without git."""
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+" if changed else head


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def make_report(benchmark: str, rows: list[Row], **more: Any) -> dict[str, Any]:
    """The whole document; ``more`` may say what else matters (notes, load)."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return {
        "benchmark": benchmark,
        "command": f"python -m benchmarks.{benchmark} {' '.join(words)}".strip(),
        "commit": commit(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "device": device_facts(),
        "versions": _versions(),
        "rows": rows,
        **more,
    }


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json [FILE]``: JSON to standard output, or to a file."""
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="print or write JSON")


def write_report(report: dict[str, Any], target: str | None) -> None:
    """Print a table (None), print JSON (``-``), or write JSON to a file and print the table."""
    if target == "-":
        json.dump(report, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    if target is not None:
        path = Path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")
    print_report(report)


def print_report(report: dict[str, Any]) -> None:
    """A short table of the rows."""
    out = sys.stdout.write
    device = report["device"]["name"]
    out(f"{report['benchmark']}  {report['date']}  commit {report['commit']}  {device}\n")
    for row in report["rows"]:
        if "ratio" in row:
            out(
                f"  {row['name']:<46} {row['ratio']:6.2f}x [{row['low']:.2f} {row['high']:.2f}] "
                f"against {row['against']:<11} {row['ours_us']:9.1f} / {row['against_us']:.1f} us\n"
            )
        else:
            out(f"  {row['name']:<46} {row['value']:10.3f} {row['unit']}\n")
    for note in report.get("notes", []):
        out(f"  note: {note}\n")
