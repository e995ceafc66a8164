"""Build a candidate that needs host code: a whole torch extension, for a GPU or for the CPU.

The convention: the source defines, in no namespace,

.. code-block:: c++

    std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs);

It gets the target's inputs in order and returns its outputs, new tensors of the target's shapes,
strides and dtypes. kforge adds the binding (``BINDING``); the source has none of its own. On a GPU
the source is a ``.cu`` file and launches on torch's current stream; on the CPU it is C++.

Everything is built by ``torch.utils.cpp_extension`` in a child process, in a private folder, for
one architecture, under :mod:`kforge_nb.compilers.sweep`: at the time limit nothing of the build is
left, neither a process nor a lock. Finished libraries are kept by the hash of source, flags, torch,
compilers and architecture. A library is never loaded here: its host code may do anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kforge_nb.compilers.cuda_toolkit import Toolkit, find_toolkit
from kforge_nb.compilers.distil import distil
from kforge_nb.compilers.extension_child import NAME
from kforge_nb.compilers.nvrtc import Resources, device_arch, kernel_resources
from kforge_nb.compilers.process import Outcome, run_limited
from kforge_nb.compilers.sweep import EXPIRED
from kforge_nb.compilers.toolchain import (
    Compiler,
    clean_environment,
    cpu_identity,
    find_compiler,
)
from kforge_nb.errors import BadInput, ContractBreach

__all__ = [
    "BINDING",
    "CXX_FLAGS",
    "ENTRY",
    "LIBRARY_NAME",
    "MEMORY_LIMIT",
    "NVCC_FLAGS",
    "OBJECT_NAME",
    "TIME_LIMIT",
    "BuildTools",
    "CompileFailed",
    "ExtensionBuilt",
    "build_environment",
    "build_extension",
    "build_failure",
    "build_request",
    "build_tools",
    "cache_key",
    "without_commands",
]

ENTRY = "forward"
BINDING = """// Added by kforge: makes forward known to torch as torch.ops.kforge_candidate.forward.
#include <torch/library.h>
#include <vector>

std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs);

static std::vector<at::Tensor> kforge_forward(at::TensorList inputs) {
  return forward(inputs.vec());
}

TORCH_LIBRARY(kforge_candidate, library) { library.def("forward(Tensor[] inputs) -> Tensor[]"); }
TORCH_LIBRARY_IMPL(kforge_candidate, CompositeExplicitAutograd, library) {
  library.impl("forward", &kforge_forward);
}
"""
CXX_FLAGS = (
    "-O3",
    "-g0",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-w",
)
NVCC_FLAGS = ("-O3", "--ptxas-options=-v", "-w", "--compiler-options=-w,-g0")
LINK_FLAGS = ("-Wl,--no-undefined", "-Wl,-z,now", "-fopenmp")
TIME_LIMIT = 240.0
MEMORY_LIMIT = 64 << 30  # address space: torch's libraries alone map several GiB
MAX_SOURCE = 256 << 10
LIBRARY_NAME = f"{NAME}.so"
OBJECT_NAME = "candidate.o"
_GRACE = 30.0
_JOBS = "2"
_ARCH = re.compile(r"sm_(\d{1,2})(\d)([af]?)")
_NVCC_ERROR = re.compile(r"^(\S+?)\((\d+)\): (?:catastrophic )?(error)\b[^:]*: ", re.MULTILINE)
_COMMAND = re.compile(r"\[\d+/\d+\] |ninja: |FAILED: ")
_PTXAS_ERROR = re.compile(r"^ptxas (?:error|fatal)\s*: .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExtensionBuilt:
    """A library in the cache. ``seconds`` is what the build took, 0 where it was ``cached``.

    Beside it lies ``code``, the object file of the candidate alone, without kforge's binding and
    without what the linker added.

    ``arch`` is ``sm_90`` and the like, or ``cpu``; ``resources`` holds what the assembler said of
    each kernel.
    """

    library: Path
    arch: str
    seconds: float
    log: str
    cached: bool
    compiler: str
    resources: dict[str, Resources] = field(default_factory=dict)

    @property
    def code(self) -> Path:
        """The object file of the candidate's own code."""
        return self.library.with_name(OBJECT_NAME)


@dataclass(frozen=True, slots=True)
class CompileFailed:
    """A source that did not build: whole log, what matters of it, and whether time ran out.

    ``stopped``: it was not the source's fault, somebody asked for the end.
    """

    log: str
    distilled: str
    timed_out: bool
    seconds: float = 0.0
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class BuildTools:
    """What one build uses: the C++ compiler, and nvcc with an architecture for a GPU."""

    compiler: Compiler
    toolkit: Toolkit | None
    arch: str

    @property
    def source_name(self) -> str:
        """How a source of one file is called."""
        return "candidate.cpp" if self.toolkit is None else "candidate.cu"

    @property
    def identity(self) -> tuple[str, ...]:
        """What a build depends on besides its sources and flags."""
        import torch

        own = (torch.__version__, str(torch.version.cuda), self.compiler.identity, self.arch)
        return (*own, cpu_identity(), self.toolkit.identity if self.toolkit else "")

    @property
    def words(self) -> str:
        """The compiler and its version."""
        return f"nvcc {self.toolkit.version}" if self.toolkit else self.compiler.version


def build_extension(
    source: str,
    device: str,
    *,
    cache: Path,
    arch: str | None = None,
    time_limit: float = TIME_LIMIT,
    memory_limit: int = MEMORY_LIMIT,
    toolkit: Toolkit | None = None,
    stop: Callable[[], bool] | None = None,
) -> ExtensionBuilt | CompileFailed:
    """Build ``source`` as a torch extension for ``device``, without loading it.

    Args:
        source: CUDA C++ or C++ that follows the convention of this module; untrusted.
        device: ``cpu``, or ``cuda`` with or without an index.
        cache: folder of finished builds, made if missing; safe to share between processes.
        arch: such as ``sm_90``; that of the device if not given.
        time_limit: seconds; the compilers and everything they started are killed then.
        memory_limit: bytes of address space for each process of the build.
        toolkit: the nvcc to use; found if not given.
        stop: asked while it builds; when it says so, the build ends, with all its processes.

    Returns:
        The library, or the failure as a value.

    Raises:
        MissingTool: there is no compiler, no nvcc that fits torch, or torch has no CUDA.
        BadInput: no architecture was given and there is no GPU, or it is none.
        ContractBreach: the source is too long or holds NUL.
    """
    tools = build_tools(device, arch, toolkit)
    _check(source)
    home = cache / cache_key(source, tools.identity)
    found = _cached(home)
    if found is not None:
        return found
    cache.mkdir(parents=True, exist_ok=True)
    _forget_killed(cache)
    folder = Path(tempfile.mkdtemp(prefix=f"{_build_prefix()}{os.getpid()}-", dir=cache))
    try:
        made = _compile(source, tools, folder, time_limit, memory_limit, stop)
        if isinstance(made, CompileFailed):
            return made
        _publish(folder, home, made)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ExtensionBuilt(home / LIBRARY_NAME, **made)


def cache_key(source: str, identity: tuple[str, ...]) -> str:
    """Content address (hex) of a build with these tools."""
    parts = [source, BINDING, *CXX_FLAGS, *NVCC_FLAGS, *LINK_FLAGS, *identity]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def build_tools(device: str, arch: str | None = None, toolkit: Toolkit | None = None) -> BuildTools:
    """The tools of a build for a device; MissingTool or BadInput as :func:`build_extension`."""
    if device.partition(":")[0] != "cuda":
        return BuildTools(find_compiler(), None, "cpu")
    toolkit = toolkit or find_toolkit()
    arch = arch or device_arch(device)
    if not _ARCH.fullmatch(arch):
        raise BadInput(f"{arch!r:.40} is no GPU architecture; one looks like 'sm_90'")
    return BuildTools(find_compiler(), toolkit, arch)


def _check(source: str) -> None:
    if len(source) > MAX_SOURCE or "\0" in source:
        raise ContractBreach(
            f"the source has {len(source)} characters (at most {MAX_SOURCE}) or holds NUL"
        )


def _build_prefix() -> str:
    """How folders of unfinished builds of this machine are called; a cache may be shared."""
    return f".build-{hashlib.sha256(platform.node().encode()).hexdigest()[:8]}-"


def _forget_killed(cache: Path) -> None:
    """Remove the folders of builds whose process on this machine is gone."""
    prefix = _build_prefix()
    for folder in cache.glob(f"{prefix}*"):
        owner = folder.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _compile(
    source: str,
    tools: BuildTools,
    folder: Path,
    time_limit: float,
    memory_limit: int,
    stop: Callable[[], bool] | None,
) -> dict[str, Any] | CompileFailed:
    (folder / tools.source_name).write_text(source, encoding="utf-8")
    (folder / "binding.cpp").write_text(BINDING, encoding="utf-8")
    (folder / "request.json").write_text(json.dumps(build_request(tools, folder)), encoding="utf-8")
    here = Path(__file__).parent
    outcome = run_limited(
        [
            *(sys.executable, "-I", "-S", str(here / "sweep.py"), f"{time_limit:g}"),
            *(sys.executable, "-I", str(here / "extension_child.py")),
        ],
        folder=folder,
        environment=build_environment(tools, folder),
        time_limit=time_limit + _GRACE,
        memory_limit=memory_limit,
        stop=stop,
    )
    library = folder / LIBRARY_NAME
    if outcome.status != 0 or outcome.timed_out or not library.exists():
        return build_failure(outcome, source, tools.source_name, time_limit)
    return {
        "arch": tools.arch,
        "seconds": outcome.seconds,
        "log": without_commands(outcome.log),
        "cached": False,
        "compiler": tools.words,
        "resources": {_short(n): r for n, r in kernel_resources(outcome.log).items()},
    }


def _short(name: str) -> str:
    """``silu`` of ``_Z4siluPKfPfl``; names in namespaces and of templates stay as they are."""
    match = re.match(r"_Z(\d+)", name)
    return name[match.end() :][: int(match[1])] if match else name


def build_request(tools: BuildTools, folder: Path) -> dict[str, Any]:
    """What extension_child.py is asked to build."""
    libraries: list[str] = []
    runtime = tools.toolkit.runtime() if tools.toolkit else None
    if runtime is not None:  # the wheels have only libcudart.so.N, which -lcudart does not find
        links = folder / "runtime"
        links.mkdir()
        (links / "libcudart.so").symlink_to(runtime)
        libraries.append(str(links))
    return {
        "cuda": str(tools.toolkit.home) if tools.toolkit else None,
        "sources": [tools.source_name, "binding.cpp"],
        "cxx": list(CXX_FLAGS),
        "nvcc": list(NVCC_FLAGS),
        "link": list(LINK_FLAGS),
        "include": [str(path) for path in (tools.toolkit.include if tools.toolkit else ())],
        "libraries": libraries,
        "path": [entry for entry in sys.path if entry],
    }


def build_environment(tools: BuildTools, folder: Path) -> dict[str, str]:
    """The whole environment of a build."""
    environment = clean_environment(tools.compiler.path, folder)
    folders = [str(Path(sys.executable).parent), environment["PATH"]]
    environment |= {"CXX": " ".join(tools.compiler.command), "MAX_JOBS": _JOBS}
    environment["CC"] = environment["CXX"]
    if tools.toolkit is not None:
        match = _ARCH.fullmatch(tools.arch)
        major, minor, kind = match.groups() if match else ("", "", "")
        folders.insert(0, str(tools.toolkit.nvcc.parent))
        environment["CUDA_HOME"] = str(tools.toolkit.home)
        environment["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}{kind}"
    environment["PATH"] = os.pathsep.join(dict.fromkeys(folders))
    if "LD_LIBRARY_PATH" in os.environ:  # some machines find torch's own libraries only so
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return environment


def build_failure(
    outcome: Outcome, source: str, source_name: str, time_limit: float
) -> CompileFailed:
    """A build that failed, with what matters of its log."""
    if outcome.stopped:
        return CompileFailed(outcome.log, "the build was stopped", False, outcome.seconds, True)
    if outcome.timed_out or outcome.status == EXPIRED:
        text = f"the compiler was stopped after {time_limit:g} s"
        return CompileFailed(outcome.log, text, True, outcome.seconds)
    plain = _NVCC_ERROR.sub(r"\1:\2: \3: ", outcome.log)
    assembler = _PTXAS_ERROR.findall(outcome.log)
    text = "\n".join(assembler[:4]) or distil(plain, source, source_name)
    return CompileFailed(outcome.log, text, False, outcome.seconds)


def without_commands(log: str) -> str:
    """What the compilers said, without ninja's command lines (and the user's folders in them)."""
    return "\n".join(line for line in log.splitlines() if not _COMMAND.match(line))


def _publish(folder: Path, home: Path, made: dict[str, Any]) -> None:
    """Move what a hit needs to its place; if another process was first, its build stays."""
    (folder / "objects" / OBJECT_NAME).rename(folder / OBJECT_NAME)
    shutil.rmtree(folder / "objects", ignore_errors=True)
    digest = _digest(folder)
    resources = {name: asdict(entry) for name, entry in made["resources"].items()}
    info = {**made, "resources": resources, "sha256": digest}
    (folder / "info.json").write_text(json.dumps(info), encoding="utf-8")
    if home.exists() and _cached(home) is None:
        shutil.rmtree(home, ignore_errors=True)
    with suppress(OSError):
        folder.rename(home)
    if _cached(home) is None:
        raise OSError(f"the build could not be moved to {home}; is the disk full?")


def _digest(folder: Path) -> str:
    """Hash of the library and of the object file beside it."""
    parts = [(folder / name).read_bytes() for name in (LIBRARY_NAME, OBJECT_NAME)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _cached(home: Path) -> ExtensionBuilt | None:
    try:
        info = json.loads((home / "info.json").read_text(encoding="utf-8"))
        if info.pop("sha256") != _digest(home):
            return None
        info["resources"] = {n: Resources(**entry) for n, entry in info["resources"].items()}
        return ExtensionBuilt(home / LIBRARY_NAME, **{**info, "cached": True, "seconds": 0.0})
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or damaged: built again
