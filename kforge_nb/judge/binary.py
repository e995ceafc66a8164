"""The compiled runner: built once a machine, found in the cache ever after."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from kforge_nb.compilers.process import run_limited
from kforge_nb.compilers.toolchain import Compiler, clean_environment, find_compiler
from kforge_nb.errors import MissingTool
from kforge_nb.settings import cache_dir

__all__ = ["compiled_program", "library_folder", "probe", "runner_binary"]

_SOURCES = ("runner.cpp", "sandbox.hpp", "wire.hpp")
_FLAGS = ("-O2", "-std=c++17", "-pthread")
_MEMORY = 3 << 30


def runner_binary() -> Path:
    """Path of the runner, compiled now (about a second) if this machine has none yet.

    Raises:
        MissingTool: there is no compiler, or it cannot build the runner.
    """
    return compiled_program("runner", _SOURCES)


def compiled_program(name: str, names: Sequence[str]) -> Path:
    """A program of ``judge/runner``, from the cache or built from the sources ``names``.

    The first source is compiled; the others are what it includes.

    Raises:
        MissingTool: there is no compiler, or it cannot build the program.
    """
    compiler = find_compiler()
    sources = {entry: _source(entry) for entry in names}
    body = json.dumps([sources, _FLAGS, compiler.identity], sort_keys=True)
    home = cache_dir() / "runner" / hashlib.sha256(body.encode()).hexdigest()[:32]
    if not os.access(home / name, os.X_OK):
        _build(compiler, name, sources, home)
    return home / name


def _source(name: str) -> str:
    return (files("kforge_nb.judge") / "runner" / name).read_text()


def _build(compiler: Compiler, name: str, sources: dict[str, str], home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".build-", dir=home.parent))
    try:
        for entry, text in sources.items():
            (folder / entry).write_text(text)
        outcome = run_limited(
            [*compiler.command, *_FLAGS, next(iter(sources)), "-o", name, "-ldl"],
            folder=folder,
            environment=clean_environment(compiler.path, folder),
            time_limit=120,
            memory_limit=_MEMORY,
        )
        if outcome.status != 0:
            raise MissingTool(
                f"the judge's {name} could not be compiled by {compiler.version}: "
                f"{outcome.log[-600:]}"
            )
        try:
            folder.rename(home)
        except OSError:
            if not os.access(home / name, os.X_OK):  # else another process was first
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def library_folder() -> str:
    """Where the compiler keeps its OpenMP run-time library; candidates are linked against it."""
    compiler = find_compiler()
    try:
        done = subprocess.run(
            [*compiler.command, "-print-file-name=libgomp.so"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env=clean_environment(compiler.path),
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = Path(done.stdout.strip())
    return str(found.resolve().parent) if found.is_absolute() else ""


def probe(binary: Path) -> dict[str, int | bool]:
    """What the runner can take away from a candidate on this machine, as it found by trying."""
    done = subprocess.run(
        [str(binary), "--probe"], capture_output=True, text=True, timeout=10, check=True, env={}
    )
    return json.loads(done.stdout)
