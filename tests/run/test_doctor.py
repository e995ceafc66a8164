"""The doctor: a line for every tool, and nothing hidden or given away."""

from __future__ import annotations

import pytest

from kforge_nb import doctor as room
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
