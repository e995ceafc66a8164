"""Compile a C++ candidate into a shared library, never loading it here.

Why not ``torch.utils.cpp_extension``: candidates include no torch header, so its ninja files, lock
and import of the result only cost time (22 s against 0.2 s). The compiler is called directly, one
private folder a build, and the folder is renamed into the cache when it is whole; two builds of the
same source race harmlessly. The cache key holds source, flags, compiler and CPU.

``-ffast-math`` is never used; see docs/decisions/004-no-fast-math.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from kforge_nb.compilers.distil import distil
from kforge_nb.compilers.process import Outcome, run_limited
from kforge_nb.compilers.toolchain import (
    Compiler,
    clean_environment,
    cpu_identity,
    find_compiler,
    install_command,
)
from kforge_nb.errors import ContractBreach

__all__ = [
    "FLAGS",
    "MAX_SOURCE",
    "OBJECT_NAME",
    "Built",
    "CompileFailed",
    "Compiler",
    "build",
    "cache_key",
    "cpu_identity",
    "find_compiler",
    "install_command",
    "preprocess",
]

FLAGS = (
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-std=c++17",
)
"""What every candidate is compiled with; part of the contract that prompts quote."""

MAX_SOURCE = 256 << 10
SOURCE_NAME = "candidate.cpp"
LIBRARY_NAME = "candidate.so"
OBJECT_NAME = "candidate.o"
"""The candidate's own code, which lies beside its library: what it was linked from."""

MEMORY_LIMIT = 3 << 30
_ENTRY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_QUIET = ("-fdiagnostics-color=never", "-w")


@dataclass(frozen=True, slots=True)
class Built:
    """A library in the cache. ``seconds`` is what the compile took, 0 where it was ``cached``."""

    library: Path
    seconds: float
    log: str
    cached: bool
    flags: tuple[str, ...]
    compiler: Compiler


@dataclass(frozen=True, slots=True)
class CompileFailed:
    """A source that did not compile: whole log, what matters of it, and whether time ran out."""

    log: str
    distilled: str
    timed_out: bool
    seconds: float = 0.0


def build(
    source: str,
    entry: str,
    *,
    cache: Path,
    time_limit: float = 60,
    memory_limit: int = MEMORY_LIMIT,
) -> Built | CompileFailed:
    """Compile ``source`` to a shared library that defines ``entry``.

    Args:
        source: C++17 with one ``extern "C"`` function; untrusted.
        entry: its name.
        cache: folder of finished builds, made if missing; safe to share between processes.
        time_limit: seconds; the compiler and its children are killed then.
        memory_limit: bytes of address space for each compiler process.

    Returns:
        The library, or the failure as a value.

    Raises:
        MissingTool: there is no C++ compiler; the message says how to install one.
        ContractBreach: ``entry`` is no C identifier, or the source is too long or holds NUL.
    """
    compiler = find_compiler()
    _check(source, entry)
    home = cache / cache_key(source, entry, compiler)
    found = _cached(home, compiler)
    if found is not None:
        return found
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".build-", dir=cache))
    try:
        outcome = _compile(source, entry, compiler, folder, time_limit, memory_limit)
        if outcome.status != 0 or outcome.timed_out or not (folder / LIBRARY_NAME).exists():
            return _failure(outcome, source, time_limit)
        _record(folder, outcome, compiler)
        _publish(folder, home)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Built(home / LIBRARY_NAME, outcome.seconds, outcome.log, False, FLAGS, compiler)


def preprocess(source: str, *, time_limit: float = 10) -> str | CompileFailed:
    """The source after the preprocessor, without line markers, comments and included headers.

    Policies look at this text, so that macros cannot hide a name. Lines that come from headers are
    dropped; everything that the candidate's own lines expand to is kept.

    Raises:
        MissingTool: there is no C++ compiler.
        ContractBreach: the source is too long or holds NUL.
    """
    compiler = find_compiler()
    _check(source, "entry")
    with tempfile.TemporaryDirectory(prefix="kforge-pp-") as name:
        folder = Path(name)
        (folder / SOURCE_NAME).write_text(source)
        flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
        command = [*compiler.command, *flags, "-E", SOURCE_NAME, "-o", "expanded.ii"]
        outcome = _run(command, compiler, folder, time_limit, MEMORY_LIMIT)
        expanded = folder / "expanded.ii"
        if outcome.status != 0 or outcome.timed_out or not expanded.exists():
            return _failure(outcome, source, time_limit)
        return _own_lines(expanded.read_text(errors="replace"))


def cache_key(source: str, entry: str, compiler: Compiler) -> str:
    """Content address (hex) of a build on this CPU with this compiler."""
    parts = [source, entry, *FLAGS, *_linker_flags(entry), compiler.identity, cpu_identity()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _check(source: str, entry: str) -> None:
    if not _ENTRY.fullmatch(entry):
        raise ContractBreach(f"the entry {entry!r:.80} is not a plain C identifier")
    if len(source) > MAX_SOURCE or "\0" in source:
        raise ContractBreach(
            f"the source has {len(source)} characters (at most {MAX_SOURCE}) or holds NUL"
        )


def _linker_flags(entry: str) -> list[str]:
    if sys.platform == "darwin":
        return [f"-Wl,-u,_{entry}"]
    return ["-Wl,--no-undefined", f"-Wl,--require-defined={entry}", "-Wl,-z,now", "-lm"]


def _compile(
    source: str, entry: str, compiler: Compiler, folder: Path, time_limit: float, memory: int
) -> Outcome:
    """Compile, then link, so that what the candidate itself is made of can be looked at alone."""
    (folder / SOURCE_NAME).write_text(source)
    limit = "-fmax-errors=20" if compiler.kind == "gcc" else "-ferror-limit=20"
    flags = [flag for flag in FLAGS if flag != "-shared"]
    command = [*compiler.command, *flags, *_QUIET, limit, "-c", SOURCE_NAME, "-o", OBJECT_NAME]
    made = _run(command, compiler, folder, time_limit, memory)
    if made.status != 0 or made.timed_out:
        return made
    command = [*compiler.command, *FLAGS, *_QUIET, OBJECT_NAME, "-o", LIBRARY_NAME]
    linked = _run([*command, *_linker_flags(entry)], compiler, folder, time_limit, memory)
    whole = replace(linked, log=made.log + linked.log, seconds=made.seconds + linked.seconds)
    (folder / "log.txt").write_text(whole.log)
    return whole


def _run(
    command: list[str], compiler: Compiler, folder: Path, time_limit: float, memory: int
) -> Outcome:
    return run_limited(
        command,
        folder=folder,
        environment=clean_environment(compiler.path, folder),
        time_limit=time_limit,
        memory_limit=memory,
    )


def _failure(outcome: Outcome, source: str, time_limit: float) -> CompileFailed:
    if outcome.timed_out:
        distilled = f"the compiler was stopped after {time_limit:g} s"
    else:
        distilled = distil(outcome.log, source, SOURCE_NAME)
    return CompileFailed(outcome.log, distilled, outcome.timed_out, outcome.seconds)


def _record(folder: Path, outcome: Outcome, compiler: Compiler) -> None:
    """Write what a later hit wants to know, with a hash so that damage is noticed."""
    info = {
        "sha256": _hash(folder),
        "seconds": outcome.seconds,
        "compiler": compiler.version,
        "flags": list(FLAGS),
        "created": time.time(),
    }
    (folder / "info.json").write_text(json.dumps(info))


def _publish(folder: Path, home: Path) -> None:
    """Rename a finished build to its place; if another process was first, its build stays."""
    if home.exists() and not _whole(home):
        shutil.rmtree(home, ignore_errors=True)
    try:
        folder.rename(home)
    except OSError:
        if not _whole(home):
            raise


def _cached(home: Path, compiler: Compiler) -> Built | None:
    if not _whole(home):
        return None
    log = (home / "log.txt").read_text(errors="replace")
    return Built(home / LIBRARY_NAME, 0.0, log, True, FLAGS, compiler)


def _whole(home: Path) -> bool:
    try:
        info = json.loads((home / "info.json").read_text())
        return bool(info["sha256"] == _hash(home)) and os.access(home, os.R_OK)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # missing or damaged: built again


def _hash(folder: Path) -> str:
    """Of the library and of the object file it was linked from."""
    parts = [(folder / name).read_bytes() for name in (LIBRARY_NAME, OBJECT_NAME)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _own_lines(expanded: str) -> str:
    """Keep the lines that line markers attribute to the candidate itself."""
    own, kept = True, []
    for line in expanded.split("\n"):  # other separators of lines are none to the preprocessor
        marker = re.match(r'# \d+ "(.*)"', line) if line.startswith("# ") else None
        if marker:
            own = marker[1] == SOURCE_NAME
        elif own and line.strip():
            kept.append(line)
    return "\n".join(kept)
