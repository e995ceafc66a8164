"""What is read from compute-sanitizer's logs, and that a stand-in for it is run and heard."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from kforge_nb.judge.cuda import sanitizer
from kforge_nb.judge.cuda.sanitizer import read_log, sanitize, sanitizer_path, stray_access
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.judge.process import Child
from kforge_nb.judge.runner_handle import RunnerFailed

BAD = """========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 4 bytes
=========     at norm+0x1f0
=========     Address 0x40 is out of bounds
=========
========= ERROR SUMMARY: 256 errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at norm and Read access at norm
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def test_logs_are_read():
    """Counts and the first words; None where the tool did not come to an end."""
    count, words = read_log(BAD)
    assert count == 256
    assert words.startswith("Invalid __shared__ read of size 4 bytes")
    other = BAD.replace("=========\n", "", 1).replace(
        "Invalid", "Program hit x\n========= Invalid", 1
    )
    assert read_log(other)[1].startswith("Invalid __shared__ read")
    assert stray_access(f"{count} errors: {words}")
    assert not stray_access("2 errors: Program hit an error of the driver")
    assert not stray_access("did not run: Invalid __shared__ read")
    assert read_log(RACE)[0] == 1
    assert read_log(CLEAN) == (0, "")
    assert read_log("========= COMPUTE-SANITIZER") is None


def test_the_tool_is_looked_for_where_cuda_is(monkeypatch, tmp_path):
    """On the path, in CUDA_HOME; None is an answer."""
    monkeypatch.setattr(sanitizer, "_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert sanitizer_path() is None
    program = tmp_path / "cuda" / "bin" / "compute-sanitizer"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert sanitizer_path() == program


TOOL = f"""#!{sys.executable}
import subprocess, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
name = sys.argv[sys.argv.index("--tool") + 1]
program = sys.argv.index("all") + 1
subprocess.run(sys.argv[program:])
if name != "SILENT":
    open(log, "w").write({{"memcheck": BAD, "racecheck": CLEAN}}[name])
"""


class _Loaded:
    def __init__(self, program: Path, folder: Path, failure: Exception | None) -> None:
        self.runner = self
        self.child = Child([str(program), "{reply}"], environment={}, folder=folder)
        self._failure = failure

    def check(self, cases) -> None:
        if self._failure is not None:
            raise self._failure


@pytest.mark.parametrize("silent", [None, "memcheck"])
def test_each_tool_runs_the_runner_and_is_heard(silent, tmp_path):
    """The runner is told to end, so that the tool writes; one that does not write did not run."""
    tool = tmp_path / "tool"
    text = TOOL.replace("BAD", repr(BAD)).replace("CLEAN", repr(CLEAN))
    tool.write_text(text.replace("SILENT", str(silent)))
    runner = tmp_path / "the runner"
    runner.write_text("#!/bin/sh\nexec head -c 48 > /dev/null\n")
    for program in (tool, runner):
        program.chmod(0o755)
    failure = RunnerFailed(Verdict.CRASHED, "it fell over") if silent else None

    @contextmanager
    def start(program: Path):
        loaded = _Loaded(program, tmp_path, failure)
        try:
            yield loaded
        finally:
            loaded.child.close()

    found = sanitize(start, runner, None, tool, tmp_path)
    if silent:
        assert found["memcheck"] == "did not run: it fell over"
    else:
        assert found["memcheck"].startswith("256 errors: Invalid __shared__ read")
        assert found["racecheck"] == "clean"
