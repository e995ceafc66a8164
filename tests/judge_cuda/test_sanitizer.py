"""What is read from compute-sanitizer's logs, and that a stand-in for it is run and heard."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from kforge_nb.errors import MissingTool
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


@pytest.fixture
def under_tool(tmp_path):
    """Runs a stand-in for the tool over a stand-in for the runner, in an awkward folder."""
    folder = tmp_path / "o'clock $HOME"
    folder.mkdir()

    def sanitized(failure: Exception | None, silent: str | None = None) -> dict[str, str]:
        tool = folder / "tool"
        text = TOOL.replace("BAD", repr(BAD)).replace("CLEAN", repr(CLEAN))
        tool.write_text(text.replace("SILENT", str(silent)))
        runner = folder / "the runner"
        runner.write_text("#!/bin/sh\nexec head -c 48 > /dev/null\n")
        for program in (tool, runner):
            program.chmod(0o755)

        @contextmanager
        def start(program: Path):
            loaded = _Loaded(program, folder, failure)
            try:
                yield loaded
            finally:
                loaded.child.close()

        return sanitize(start, runner, None, tool, folder)

    return sanitized


FELL = RunnerFailed(Verdict.CRASHED, "it fell over")


@pytest.mark.parametrize("failure", [None, FELL])
def test_each_tool_runs_the_runner_and_is_heard(failure, under_tool):
    """The runner is told to end, so that the tool writes, also where the call failed under it."""
    found = under_tool(failure)
    assert found["memcheck"].startswith("256 errors: Invalid __shared__ read")
    assert found["racecheck"] == "clean"


@pytest.mark.parametrize("failure", [FELL, MissingTool("it fell over")])
def test_a_tool_that_writes_nothing_did_not_run(failure, under_tool):
    """Whatever went wrong is told, and ends neither the evaluation nor the run."""
    assert under_tool(failure, silent="memcheck") == {"memcheck": "did not run: it fell over"}


def test_a_kernel_that_is_too_slow_says_nothing_of_the_tool(under_tool):
    """It was loaded, so the tool works; the next winner is looked at all the same."""
    slow = RunnerFailed(Verdict.TIMED_OUT, "no answer")
    assert under_tool(slow, silent="memcheck") == {"memcheck": "took too long: no answer"}
