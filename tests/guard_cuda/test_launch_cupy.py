"""The Python implementation of the launch op on a GPU keeps every promise of the compiled one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
HERE = Path(__file__).parent


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own that is told to launch through CuPy."""
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "KFORGE_LAUNCH": "cupy"},
        capture_output=True,
        text=True,
        timeout=280,
        cwd=HERE.parents[1],
        check=False,
    )


def test_the_same_tests_pass_through_cupy(gpu: str) -> None:
    """Values, layouts, fallbacks, errors, streams, captures and Inductor, without a compiled op."""
    files = [str(HERE / name) for name in ("test_launch_op.py", "test_launch_streams.py")]
    done = run("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_cupy_is_what_serves_where_no_compiler_is(gpu: str) -> None:
    """Without a working compiler the op comes up in Python by itself, and says so."""
    program = "from kforge_nb.guard import launch; print('SERVED BY', launch.implementation())"
    environment = {**os.environ, "CXX": "", "PATH": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment, capture_output=True, text=True, timeout=120, cwd=HERE.parents[1],
        check=False,
    )  # fmt: skip
    assert "SERVED BY cupy" in done.stdout, done.stdout + done.stderr
