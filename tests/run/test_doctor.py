"""The doctor: a line for every tool, and nothing hidden or given away."""

from __future__ import annotations

import os

import pytest

from kforge_nb import doctor as room
from kforge_nb import doctor_cuda
from kforge_nb.doctor import Check, Doctor
from kforge_nb.errors import MissingTool


def test_this_machine_has_everything_needed(tmp_path):
    """Where the tests run, every needed tool is found, the launch op and the runner included."""
    found = room.examine(tmp_path / "store")

    assert found.ok, found
    levels = {check.name: check.level for check in found.checks}
    for needed in ("torch", "C++ compiler", "OpenMP", "launch op", "runner", "store"):
        assert levels[needed] == "ok", found


def test_a_missing_compiler_is_one_line_with_its_cure(tmp_path, monkeypatch):
    """Without a compiler the doctor is not ok and repeats the install command."""
    from kforge_nb.compilers import cpp

    def missing():
        raise MissingTool("no working C++ compiler. Install one: apt install g++")

    monkeypatch.setattr(cpp, "find_compiler", missing)

    found = room.examine(tmp_path)

    assert not found.ok
    line = next(c for c in found.checks if c.name == "C++ compiler")
    assert "apt install g++" in line.found


def test_a_check_that_crashes_is_a_finding(monkeypatch, tmp_path):
    """One broken probe does not hide the others."""

    def broken():
        raise OSError("strange")

    monkeypatch.setattr(room, "_cpu", broken)

    found = room.examine(tmp_path)

    line = next(c for c in found.checks if c.name == "CPU")
    assert line.level == "missing"
    assert "strange" in line.found


def test_a_key_is_named_but_never_shown(monkeypatch, tmp_path):
    """The doctor says whether a key is set; its value is in no form of the report."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")

    found = room.examine(tmp_path)

    assert "OPENAI_API_KEY is set" in repr(found)
    assert "very-secret" not in repr(found) + found._repr_html_()


@pytest.mark.parametrize(("level", "ok"), [("ok", True), ("optional", True), ("missing", False)])
def test_only_what_is_needed_decides(level, ok):
    """An optional tool that is absent leaves the verdict alone, and values are escaped in HTML."""
    found = Doctor((Check("x", level, "<b>", "hint"),))

    assert found.ok is ok
    assert "<b>" not in found._repr_html_()


@pytest.fixture
def with_gpu(monkeypatch):
    """As if torch were built for CUDA 13 and saw a GPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def test_cupy_for_another_cuda_is_told_with_the_right_package(monkeypatch, with_gpu):
    """CuPy built for CUDA 12 beside a torch for 13: which to remove and which to install."""
    monkeypatch.setattr(
        doctor_cuda, "installed", lambda name: "13.6" if name == "cupy-cuda12x" else None
    )
    monkeypatch.setattr(doctor_cuda.importlib.util, "find_spec", lambda name: name)  # any CuPy
    found = dict(doctor_cuda.cuda_probes())["CuPy"]()
    assert found.level == "optional"
    assert "is for CUDA 12, and torch for CUDA 13" in found.found
    assert "pip install cupy-cuda13x" in found.hint


def test_cupy_that_does_not_start_is_told(monkeypatch, with_gpu):
    """A CuPy that is installed and fails at its first call is a finding with its own words."""
    cupy = pytest.importorskip("cupy")

    def fails():
        raise RuntimeError("CUDA driver version is insufficient")

    monkeypatch.setattr(doctor_cuda, "installed", lambda name: "1" if name == "cupy" else None)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", fails)
    found = dict(doctor_cuda.cuda_probes())["CuPy"]()
    assert found.level == "optional"
    assert "driver version is insufficient" in found.found


def test_nvrtc_names_its_version_and_newest_architecture():
    """What NVRTC at hand can compile for is in the line, so a newer GPU is understood."""
    from kforge_nb.compilers.nvrtc import find_nvrtc

    try:
        find_nvrtc()
    except MissingTool as missing:
        pytest.skip(str(missing))
    found = dict(doctor_cuda.cuda_probes())["NVRTC"]()
    assert found.level in ("ok", "optional")
    assert "up to sm_" in found.found


@pytest.mark.parametrize("there", [True, False])
def test_a_sanitizer_is_found_or_said_to_be_missing(monkeypatch, tmp_path, there):
    """With compute-sanitizer on the path the line shows it; without, what is not looked into."""
    from kforge_nb.judge.cuda import sanitizer

    program = tmp_path / "compute-sanitizer"
    monkeypatch.setattr(sanitizer, "sanitizer_path", lambda: program if there else None)
    found = dict(doctor_cuda.cuda_probes())["compute-sanitizer"]()
    assert found.level == ("ok" if there else "optional")
    assert (str(program) in found.found) is there


@pytest.mark.parametrize(("user", "level"), [(0, "optional"), (1000, "ok")])
def test_root_is_a_note_of_its_own(monkeypatch, user, level):
    """What a candidate may do as root is not hidden at the end of a line that is marked ok."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found = room._account()
    assert found.level == level
    assert ("as root" in found.found, bool(found.hint)) == (user == 0, user == 0)
