"""One judge and one reference for all foreign files of a test process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parent / "foreign_files.py"
_spec = importlib.util.spec_from_file_location("foreign_files", _PATH)
_module = importlib.util.module_from_spec(_spec)
sys.modules["foreign_files"] = _module
_spec.loader.exec_module(_module)


@pytest.fixture(scope="session")
def reference_file(tmp_path_factory):
    """A KernelBench file with a small reference: RMS norm with a weight, then SiLU."""
    path = tmp_path_factory.mktemp("reference") / "rms_silu.py"
    path.write_text(_module.REFERENCE)
    return path


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    from kforge_nb.judge.judge import Judge
    from kforge_nb.settings import Settings

    folder = tmp_path_factory.mktemp("judge")
    with Judge(Settings(threads=1, allow_host_code=True), folder) as opened:
        yield opened


@pytest.fixture(scope="session")
def reference(judge, reference_file):
    """The reference, run once in a confined process."""
    from kforge_nb.judge.foreign.reference import reference_from_file

    return reference_from_file(reference_file, "cpu", judge.folder, 1)


@pytest.fixture
def judged(judge, reference, tmp_path, monkeypatch):
    """Judge a text as a Python file against the reference, with short sessions."""
    from kforge_nb.judge import bench
    from kforge_nb.judge.foreign.place import ForeignBench
    from kforge_nb.judge.foreign.reading import read_foreign
    from kforge_nb.judge.timing import Plan

    monkeypatch.setattr(bench, "CONFIRM", Plan(seconds=0.3, narrow=0.5, pairs=10, probes=2))
    monkeypatch.setattr(bench, "MOST_PROCESSES", 1)  # each imports torch

    def run(text: str, name: str = "candidate.py"):
        path = tmp_path / name
        path.write_text(text)
        opened = ForeignBench(judge, read_foreign(path), reference)
        try:
            return opened.judged(("eager",))
        finally:
            opened.close()

    return run
