"""An optional last look at an accepted kernel: NVIDIA's compute-sanitizer over one checked call.

``memcheck`` sees accesses outside of any allocation, also those that changed nothing this time, and
``racecheck`` threads of a block that use shared memory without waiting for each other. Both are far
too slow for every candidate, and the tool is part of the CUDA toolkit, so it may be absent.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kforge_nb.errors import KForgeError
from kforge_nb.judge.cases import Case
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.process import Child, Gone
from kforge_nb.judge.protocol import Op, pack_command
from kforge_nb.judge.runner_handle import RunnerFailed

__all__ = ["TOOLS", "found_errors", "read_log", "sanitize", "sanitizer_path", "stray_access"]

_END_SECONDS = 30.0
_SILENT = ("did not run", "took too long")
TOOLS: dict[str, tuple[str, ...]] = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
"""Tools and their options. The runner asks the driver until it says no; that is not an error."""

_ACCESS = re.compile(r"Invalid __\w+__ (?:read|write|atomic)|Misaligned __?\w*")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_LINE = re.compile(r"^=========\s+(?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)(\S.*)$")
_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")


def sanitizer_path() -> Path | None:
    """The ``compute-sanitizer`` program; None where it is not installed."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    folders = [os.environ.get("PATH", ""), *([f"{home}/bin"] if home else []), *_PLACES]
    found = shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    return Path(found).resolve() if found else None


def read_log(text: str) -> tuple[int, str] | None:
    """How many errors a log tells of and the first one in words; None if it has no summary."""
    summary = _SUMMARY.search(text)
    if summary is None:
        return None
    lines = [match[1].strip() for match in map(_LINE.match, text.splitlines()) if match]
    start = next((i for i, line in enumerate(lines) if _ACCESS.search(line)), 0)
    return int(summary[1]), "; ".join(lines[start : start + 2])[:300]


def found_errors(words: str) -> bool:
    """Whether what :func:`sanitize` says of a tool is that it found something."""
    return re.match(r"\d+ errors", words) is not None


def stray_access(words: str) -> bool:
    """Whether it is an access of a kernel outside of its memory, and not something else."""
    return found_errors(words) and _ACCESS.search(words) is not None


def sanitize(
    start: Callable[[Path], Any], binary: Path, case: Case, tool: Path, folder: Path
) -> dict[str, str]:
    """Run one case under each of :data:`TOOLS`; what was found, by tool.

    Args:
        start: makes a loaded candidate (a context manager with ``check``) from the program to run.
        binary: the runner.
        case: small.
        tool: :func:`sanitizer_path`.
        folder: for a script and logs.

    Returns:
        ``clean``, ``N errors: …``, ``did not run: …`` (the tool does not work here), or ``took too
        long: …`` (the kernel is too slow under it) by tool.
    """
    found = {}
    for name, options in TOOLS.items():
        with tempfile.TemporaryDirectory(dir=folder) as home:
            log, script = Path(home) / "log.txt", Path(home) / "runner"
            words = [tool, "--tool", name, *options, "--log-file", log]
            quoted = shlex.join(map(str, [*words, "--target-processes", "all", binary]))
            script.write_text(
                f'#!/bin/sh\nexport HOME=/tmp TMPDIR=/tmp PATH=/usr/bin:/bin\nexec {quoted} "$@"\n'
            )
            script.chmod(0o700)
            found[name] = _words(log, _run(start, script, case))
        if found[name].startswith(_SILENT):
            break
    return found


def _run(start: Callable[[Path], Any], script: Path, case: Case) -> str:
    """One checked call under a tool; what is to be said if the tool says nothing."""
    trouble = "it wrote no summary"
    try:
        with start(script) as loaded:
            try:
                loaded.check([case])
            except RunnerFailed as failed:
                if failed.verdict is Verdict.TIMED_OUT:  # it was loaded, so the tool works
                    return f"took too long: {failed.reason}"
                trouble = failed.reason  # a tool that finds something has the call fail
            _leave(loaded.runner.child)
    except (RunnerFailed, KForgeError) as failed:
        trouble = str(failed)
    return f"did not run: {trouble}"


def _leave(child: Child) -> None:
    """Have the program end by itself, so that the tool writes its summary."""
    with suppress(Gone):
        child.send(pack_command(Op.QUIT, 0))
    child.status(_END_SECONDS)


def _words(log: Path, otherwise: str) -> str:
    read = read_log(log.read_text(errors="replace")) if log.exists() else None
    if read is None:
        return otherwise
    count, first = read
    return "clean" if count == 0 else f"{count} errors: {first}"
