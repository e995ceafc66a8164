"""Build what a foreign file asks ``load_inline`` for, or a source that binds itself; load nothing.

The sources, the names of the functions and a few harmless flags are all that is taken over from
such a file. They go the way of every torch extension here (:mod:`cuda_extension`): a child process
in a private folder, with limits, swept at the end, and a cache by content.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kforge_nb.compilers.cuda_extension import (
    LIBRARY_NAME,
    MEMORY_LIMIT,
    TIME_LIMIT,
    BuildTools,
    CompileFailed,
    build_environment,
    build_failure,
    build_request,
    build_tools,
    without_commands,
)
from kforge_nb.compilers.process import run_limited
from kforge_nb.errors import ContractBreach

__all__ = ["InlineBuilt", "InlineSources", "build_inline"]

_MAX_SOURCE = 1 << 20
_NAME = re.compile(r"[A-Za-z_]\w{0,127}(::[A-Za-z_]\w{0,127})*")
_FLAG = re.compile(
    r"-O[0-3s]?|-O?fast|-ffast-math|-funroll-loops|-fopenmp|-m(arch|tune)=[\w-]+|-m(avx|fma|sse)\w*|"
    r"-std=(c|gnu)\+\+\d\d|-D\w+(=\w+)?|-U\w+|-W[\w-]*|-w|-g0?|-fPIC|-lineinfo|--use_fast_math|"
    r"-use_fast_math|--expt-[\w-]+|--maxrregcount=\d+|-maxrregcount=\d+|--restrict|"
    r"--ptxas-options=-v|-Xptxas=?-?\w*|--generate-line-info|--extra-device-vectorization|--ftz=\w+|"
    r"--fmad=\w+|--prec-\w+=\w+|-extra-device-vectorization"
)
_FULL_API = re.compile(r"\btorch\s*::\s*(nn|optim|data|autograd|jit|serialize|load|save)\b")
_LIGHT = (
    "#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n"
    "#include <pybind11/pybind11.h>\nnamespace py = pybind11;\n"
)
_FULL = "#include <torch/extension.h>\n"
_LINK = ("-Wl,-z,now", "-fopenmp")  # Python's own symbols come from the process that imports it
_CUDA_HEAD = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"


@dataclass(frozen=True, slots=True)
class InlineSources:
    """What an extension is made of; ``functions`` maps names in C++ to their documentation.

    Without ``functions`` the sources bind themselves.
    """

    cpp: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    functions: Mapping[str, str] = field(default_factory=dict)
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InlineBuilt:
    """A library that Python can import as ``kforge_candidate``, and what the compilers said."""

    library: Path
    log: str
    compiler: str
    cached: bool
    left_out: tuple[str, ...] = ()


def build_inline(
    sources: InlineSources,
    device: str,
    *,
    cache: Path,
    time_limit: float = TIME_LIMIT,
    stop: Callable[[], bool] | None = None,
) -> InlineBuilt | CompileFailed:
    """Build an extension for ``device`` (``cpu`` or ``cuda...``), without loading it.

    Args:
        sources: untrusted. Flags outside of a list of harmless ones are left out, and named.
        device: where it will run.
        cache: folder of finished builds, made if missing.
        time_limit: seconds; everything of the build is killed then.
        stop: asked while it builds.

    Raises:
        MissingTool: there is no compiler, or no nvcc for sources in CUDA.
        ContractBreach: sources too long, or names of functions that are none.
    """
    _check(sources)
    tools = build_tools(device if sources.cuda else "cpu")
    files = _files(sources)
    flags, left_out = _flags(sources)
    body = json.dumps([files, flags, tools.identity, sys.version_info[:2]], sort_keys=True)
    home = cache / f"inline-{hashlib.sha256(body.encode()).hexdigest()[:40]}"
    found = _cached(home, left_out)
    if found is not None:
        return found
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".inline-{os.getpid()}-", dir=cache))
    try:
        failed = _compile(files, flags, tools, folder, time_limit, stop)
        if failed is not None:
            return failed
        _publish(folder, home, tools)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return InlineBuilt(home / LIBRARY_NAME, _log(home), tools.words, False, left_out)


def _check(sources: InlineSources) -> None:
    size = sum(map(len, (*sources.cpp, *sources.cuda)))
    if size > _MAX_SOURCE or any("\0" in text for text in (*sources.cpp, *sources.cuda)):
        raise ContractBreach(f"its sources have {size} characters (at most {_MAX_SOURCE}) or NUL")
    for name in sources.functions:
        if not _NAME.fullmatch(name):
            raise ContractBreach(f"it binds {name!r:.60}, which is no name of a function")


def _flags(sources: InlineSources) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    given = {"cxx": sources.cflags, "nvcc": sources.cuda_cflags}
    kept = {kind: [f for f in flags if _FLAG.fullmatch(f)] for kind, flags in given.items()}
    left = tuple(f for kind, flags in given.items() for f in flags if f not in kept[kind])
    return kept, left


def _files(sources: InlineSources) -> dict[str, str]:
    """The files of a build as ``load_inline`` would write them."""
    cpp = "\n".join(sources.cpp)
    head = _FULL if _FULL_API.search(cpp) else _LIGHT
    main = [cpp if "torch/extension.h" in cpp else head + cpp]
    if sources.functions:
        main.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        main += [f'  m.def("{name.rpartition("::")[2]}", &{name});' for name in sources.functions]
        main.append("}")
    files = {"main.cpp": "\n".join(main) + "\n"} if sources.cpp or sources.functions else {}
    if sources.cuda:
        cuda = "\n".join(sources.cuda)
        files["cuda.cu"] = (cuda if "torch/extension.h" in cuda else _CUDA_HEAD + cuda) + "\n"
    return files


def _compile(
    files: dict[str, str],
    flags: dict[str, list[str]],
    tools: BuildTools,
    folder: Path,
    time_limit: float,
    stop: Callable[[], bool] | None,
) -> CompileFailed | None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    request = build_request(tools, folder)
    request |= {"sources": list(files), "link": list(_LINK)}
    for kind in ("cxx", "nvcc"):
        request[kind] = [*request[kind], *flags[kind]]
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    here = Path(__file__).parent
    outcome = run_limited(
        [
            *(sys.executable, "-I", "-S", str(here / "sweep.py"), f"{time_limit:g}"),
            *(sys.executable, "-I", str(here / "extension_child.py")),
        ],
        folder=folder,
        environment=build_environment(tools, folder),
        time_limit=time_limit + 30.0,
        memory_limit=MEMORY_LIMIT,
        stop=stop,
    )
    if outcome.status != 0 or outcome.timed_out or not (folder / LIBRARY_NAME).exists():
        blamed = _blamed(outcome.log, files)
        return build_failure(outcome, files[blamed], blamed, time_limit)
    (folder / "build.log").write_text(without_commands(outcome.log), encoding="utf-8")
    return None


def _blamed(log: str, files: Mapping[str, str]) -> str:
    """The file that the first error is in."""
    found = re.search(r"(main\.cpp|cuda\.cu)[:(]\d+", log)
    return found[1] if found and found[1] in files else next(iter(files))


def _publish(folder: Path, home: Path, tools: BuildTools) -> None:
    """Move what a hit needs to its place; if another process was first, its build stays."""
    kept = folder / "kept"
    kept.mkdir()
    library = (folder / LIBRARY_NAME).read_bytes()
    (kept / LIBRARY_NAME).write_bytes(library)
    (kept / "build.log").write_bytes((folder / "build.log").read_bytes())
    info = {"sha256": hashlib.sha256(library).hexdigest(), "compiler": tools.words}
    (kept / "info.json").write_text(json.dumps(info), encoding="utf-8")
    if home.exists() and _cached(home, ()) is None:
        shutil.rmtree(home, ignore_errors=True)
    with suppress(OSError):
        kept.rename(home)
    if _cached(home, ()) is None:
        raise OSError(f"the build could not be moved to {home}; is the disk full?")


def _cached(home: Path, left_out: Sequence[str]) -> InlineBuilt | None:
    try:
        info = json.loads((home / "info.json").read_text(encoding="utf-8"))
        library = home / LIBRARY_NAME
        if info["sha256"] != hashlib.sha256(library.read_bytes()).hexdigest():
            return None
        return InlineBuilt(library, _log(home), str(info["compiler"]), True, tuple(left_out))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or damaged: built again


def _log(home: Path) -> str:
    return (home / "build.log").read_text(encoding="utf-8", errors="replace")[: 1 << 16]
