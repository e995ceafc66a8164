"""Build and load what the guard needs in machine code: the launch op and argument trampolines.

The launch op (``launch.cpp`` and its headers) is compiled once a machine against torch's stable ABI
with torch 2.11 as the target, so the same library loads on every later torch. A trampoline turns
the launch op's argument array into a typed C call; there is one for each signature, not one for
each kernel, so a few of them serve a whole model. Both are cached, each built in a private folder
that is renamed into place when it is whole: two processes that build at once do no harm.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge_nb.compilers import cpp
from kforge_nb.compilers.process import run_limited
from kforge_nb.compilers.toolchain import clean_environment
from kforge_nb.errors import MissingTool
from kforge_nb.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.candidates.plan import Arg

__all__ = [
    "cuda_libraries",
    "launch_library",
    "load_launch_library",
    "signature",
    "trampoline",
]

SOURCE = Path(__file__).with_name("launch.cpp")
TARGET = "0x020b000000000000"  # torch 2.11, the oldest that is supported
FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", f"-DTORCH_TARGET_VERSION={TARGET}")
TIME_LIMIT = 120.0
MEMORY_LIMIT = 4 << 30
ENTRY = "kforge_trampoline"
_TYPES = {"p": "void*", "q": "int64_t", "i": "int32_t", "f": "float", "d": "double"}
_FIELDS = {"p": "p", "q": "i", "i": "i", "f": "d", "d": "d"}
_WORD, _SMALL, _ADDRESS, _TEXT = (
    ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p,
)  # fmt: skip
_WORDS, _TEXTS = ctypes.POINTER(_WORD), ctypes.POINTER(_TEXT)
_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "add_cpu": ([_ADDRESS, _ADDRESS, _WORDS, _WORD], _WORD),
    "add_cuda": ([_TEXT, _WORD, _SMALL, _TEXTS, _WORDS, _WORD], _WORD),
    "open_cuda": ([_TEXT, _TEXT], _WORD),
    "problem": ([], _TEXT),
    "run": ([_SMALL], None),
    "running": ([], _SMALL),
    "enable": ([_WORD, _SMALL], None),
    "enabled": ([_WORD], _SMALL),
    "shadow": ([_WORD, _WORD], None),
    "counters": ([_WORD, _WORDS], None),
    "fault": ([_WORD], _TEXT),
    "error": ([_TEXT], None),
    "dtype": ([_TEXT], _SMALL),
    "device": ([_TEXT], _SMALL),
}
"""Exported by ``launch_exports.h`` with the prefix ``kforge_``: arguments and result."""
_KINDS = {
    "input": "p", "output": "p", "scratch": "p",
    "i64": "q", "i32": "i", "nthreads": "i", "f32": "f", "f64": "d",
}  # fmt: skip


def launch_library() -> Path:
    """The compiled launch op, built on first use (about 1.5 s, once a machine).

    Raises:
        MissingTool: no C++ compiler, or the op did not compile; the message holds the first error.
    """
    import torch

    compiler = cpp.find_compiler()
    sources = {file.name: file.read_text() for file in (SOURCE, *_headers())}
    parts = [*sources, *sources.values(), *FLAGS, compiler.identity, torch.__version__]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    home = _cache() / f"launch-{key}"
    library = home / "launch.so"
    if library.exists():
        return library
    folder = Path(tempfile.mkdtemp(prefix=".launch-", dir=_cache()))
    try:
        for name, text in sources.items():
            (folder / name).write_text(text)
        _compile(compiler, folder, Path(torch.__file__).parent)
        _publish(folder, home)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return library


def _headers() -> list[Path]:
    return sorted(SOURCE.parent.glob("launch_*.h"))


def _compile(compiler: cpp.Compiler, folder: Path, home_of_torch: Path) -> None:
    # torch is loaded by then, so its libraries need no search path at run time
    places = ["-I", str(home_of_torch / "include"), "-L", str(home_of_torch / "lib")]
    command = [*compiler.command, *FLAGS, *places, SOURCE.name, "-o", "launch.so"]
    command += ["-ltorch_cpu", "-ldl"]
    outcome = run_limited(
        command,
        folder=folder,
        environment=clean_environment(compiler.path, folder),
        time_limit=TIME_LIMIT,
        memory_limit=MEMORY_LIMIT,
    )
    if outcome.status != 0 or not (folder / "launch.so").exists():
        raise MissingTool(_why_not(outcome.log, outcome.timed_out))


def load_launch_library() -> ctypes.CDLL:
    """Build, load and declare the launch op; torch then knows its implementations.

    Raises:
        MissingTool: as :func:`launch_library`.
    """
    import torch

    path = launch_library()
    torch.ops.load_library(str(path))
    library = ctypes.CDLL(str(path))
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, f"kforge_{name}")
        function.argtypes, function.restype = arguments, result
    return library


def cuda_libraries() -> tuple[str, str]:
    """What to open for the CUDA driver and for torch's current stream, as ``dlopen`` takes them."""
    import torch

    return "libcuda.so.1", str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")


def _why_not(log: str, timed_out: bool) -> str:
    if timed_out:
        return f"compiling the launch op took more than {TIME_LIMIT:g} s; is the machine busy?"
    errors = [line for line in log.splitlines() if "error" in line] or [log[-300:]]
    return (
        f"the launch op does not compile here ({errors[0]}). It needs a C++17 compiler: "
        f"{cpp.install_command()}"
    )


def _publish(folder: Path, home: Path) -> None:
    try:
        folder.rename(home)
    except OSError:
        if not home.exists():  # else another process was first, with the same result
            raise


def _cache() -> Path:
    folder = cache_dir() / "guard"
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
        raise MissingTool(f"{folder} belongs to another user; set KFORGE_HOME to a folder of yours")
    return folder


def signature(args: Sequence[Arg]) -> str:
    """One letter for each argument: p pointer, q int64, i int32, f float, d double."""
    return "".join(_KINDS[arg[0]] for arg in args)


def trampoline_source(letters: str) -> str:
    """C++ of the function that spreads an argument array over a call with this signature."""
    types = ", ".join(_TYPES[letter] for letter in letters)
    values = ", ".join(
        f"static_cast<{_TYPES[letter]}>(a[{i}].{_FIELDS[letter]})"
        for i, letter in enumerate(letters)
    )
    return (
        "#include <cstdint>\n"
        "union Arg { void* p; int64_t i; double d; };\n"
        f'extern "C" void {ENTRY}(void* f, const Arg* a) {{\n'
        f"  reinterpret_cast<void (*)({types})>(f)({values});\n"
        "}\n"
    )


@lru_cache(maxsize=256)
def trampoline(letters: str) -> int:
    """Address of the trampoline for a signature, built on first use (about 0.1 s, cached)."""
    built = cpp.build(trampoline_source(letters), ENTRY, cache=_cache() / "trampolines")
    if isinstance(built, cpp.CompileFailed):
        raise MissingTool(f"a trampoline does not compile: {built.distilled}")
    return entry_address(built.library, ENTRY)


_OPEN: dict[tuple[str, int, int], ctypes.CDLL] = {}


def entry_address(library: Path, entry: str) -> int:
    """Load a library for good and give the address of a function in it."""
    status = library.stat()
    key = (str(library), status.st_ino, status.st_mtime_ns)
    if key not in _OPEN:
        _OPEN[key] = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
    return ctypes.cast(_OPEN[key][entry], ctypes.c_void_p).value or 0
