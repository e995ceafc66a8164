"""Compile a CUDA candidate to a cubin with NVRTC: no GPU, no driver, no nvcc, about a tenth second.

The NVRTC library (a wheel, or part of a CUDA toolkit) is called in a process of its own, because a
candidate's source can make a compiler run for ever or crash. Entries are ``extern "C"``; registers,
spills and shared memory of each kernel come from the assembler's own report. Finished cubins are
kept by the hash of source, options, architecture and NVRTC, as :mod:`kforge_nb.compilers.cpp` does.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from kforge_nb.compilers.process import run_limited
from kforge_nb.errors import BadInput, ContractBreach, MissingTool, install

__all__ = [
    "MAX_SOURCE",
    "OPTIONS",
    "CompileFailed",
    "CudaBuilt",
    "Nvrtc",
    "Resources",
    "build_cuda",
    "cache_key",
    "device_arch",
    "find_nvrtc",
    "kernel_resources",
    "wheel_folders",
]

OPTIONS = ("-std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v")
"""What every CUDA candidate is compiled with, beside its architecture and include folders."""

MAX_SOURCE = 256 << 10
MEMORY_LIMIT = 16 << 30  # address space, of which NVRTC reserves much and uses little
INSTALL = install("cuda", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
SOURCE_NAME = "candidate.cu"
CUBIN_NAME = "kernel.cubin"
_ARCH = re.compile(r"sm_\d{2,3}[af]?")
_ENTRY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_ERROR = re.compile(r"^(?P<file>[^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<text>.*)$")
_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_MAX_ERRORS = 8


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """An NVRTC library: its file, what identifies it, and folders with the fp16/bf16 headers."""

    library: Path
    identity: str
    include: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes: registers a thread; bytes of stack, of spills, of static shared."""

    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class CudaBuilt:
    """A cubin in the cache. ``seconds`` is what the compile took, 0 where it was ``cached``."""

    cubin: Path
    arch: str
    seconds: float
    log: str
    cached: bool
    compiler: str
    resources: dict[str, Resources] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompileFailed:
    """A source that did not compile: whole log, what matters of it, and whether time ran out."""

    log: str
    distilled: str
    timed_out: bool
    seconds: float = 0.0


def find_nvrtc() -> Nvrtc:
    """The NVRTC to use: of the wheels, else of the CUDA toolkit; raises MissingTool if none."""
    return _find(os.environ.get("CUDA_HOME", "") or os.environ.get("CUDA_PATH", ""))


@lru_cache(maxsize=4)
def _find(home: str) -> Nvrtc:
    roots = [*wheel_folders(), *([Path(home)] if home else []), Path("/usr/local/cuda")]
    include = tuple(h for r in roots for h in [r / "include"] if (h / "cuda_bf16.h").exists())
    for root in roots:
        for folder in (root / "lib", root / "lib64", root / "bin"):
            for name in ("libnvrtc.so.*", "nvrtc64_*.dll"):
                for file in sorted(folder.glob(name), reverse=True):
                    if "builtins" not in file.name and "alt" not in file.name:
                        return Nvrtc(file, _identity(file), include)
    raise MissingTool(f"no NVRTC library was found, so CUDA cannot be compiled. Install: {INSTALL}")


def wheel_folders() -> list[Path]:
    """Folders of NVIDIA's wheels that may hold a library or headers, newest CUDA first."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    found = [folder for place in places for folder in Path(place).glob("cu[0-9]*")]
    found.sort(key=lambda folder: folder.name, reverse=True)
    found += [Path(p) / name for p in places for name in ("cuda_nvrtc", "cuda_runtime")]
    return [folder for folder in found if folder.is_dir()]


def _identity(file: Path) -> str:
    """One string that changes whenever the library may produce other code."""
    stat = file.resolve().stat()
    versions = []
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return "\n".join([file.name, str(stat.st_size), str(int(stat.st_mtime)), *versions])


def device_arch(device: str = "cuda") -> str:
    """The architecture of a device, such as ``sm_90``; raises BadInput without a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise BadInput("there is no CUDA device here; give the architecture, such as arch='sm_90'")
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def build_cuda(
    source: str,
    entries: tuple[str, ...],
    *,
    cache: Path,
    arch: str | None = None,
    time_limit: float = 60,
    memory_limit: int = MEMORY_LIMIT,
) -> CudaBuilt | CompileFailed:
    """Compile ``source`` to a cubin that defines every one of ``entries``.

    Args:
        source: CUDA C++17, device code only; untrusted.
        entries: names of its ``extern "C" __global__`` functions.
        cache: folder of finished builds, made if missing; safe to share between processes.
        arch: such as ``sm_90``; that of the current device if not given.
        time_limit: seconds; the compiler's process is killed then.
        memory_limit: bytes of address space for the compiler's process.

    Returns:
        The cubin, or the failure as a value.

    Raises:
        MissingTool: there is no NVRTC, or it is too old for the architecture.
        BadInput: no architecture was given and there is no GPU.
        ContractBreach: an entry is no C identifier, or the source is too long or holds NUL.
    """
    nvrtc = find_nvrtc()
    arch = arch or device_arch()
    _check(source, entries, arch)
    home = cache / cache_key(source, entries, arch, nvrtc)
    found = _cached(home)
    if found is not None:
        return found
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".build-", dir=cache))
    try:
        made = _compile(source, entries, arch, nvrtc, folder, time_limit, memory_limit)
        if isinstance(made, CompileFailed):
            return made
        _publish(folder, home, made)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return CudaBuilt(home / CUBIN_NAME, **made)


def cache_key(source: str, entries: tuple[str, ...], arch: str, nvrtc: Nvrtc) -> str:
    """Content address (hex) of a build for this architecture with this NVRTC."""
    parts = [source, *entries, *OPTIONS, arch, nvrtc.identity]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _check(source: str, entries: tuple[str, ...], arch: str) -> None:
    wrong = [name for name in entries if not _ENTRY.fullmatch(name)]
    if wrong or not entries:
        raise ContractBreach(f"the entries {wrong!r:.80} are not plain C identifiers")
    if len(source) > MAX_SOURCE or "\0" in source:
        raise ContractBreach(
            f"the source has {len(source)} characters (at most {MAX_SOURCE}) or holds NUL"
        )
    if not _ARCH.fullmatch(arch):
        raise BadInput(f"{arch!r:.40} is no GPU architecture; one looks like 'sm_90'")


def _compile(
    source: str,
    entries: tuple[str, ...],
    arch: str,
    nvrtc: Nvrtc,
    folder: Path,
    time_limit: float,
    memory_limit: int,
) -> dict[str, Any] | CompileFailed:
    includes = [f"--include-path={path}" for path in nvrtc.include]
    options = [f"--gpu-architecture={arch}", *OPTIONS, *includes]
    request = {
        "library": str(nvrtc.library),
        "source": source,
        "name": SOURCE_NAME,
        "options": options,
    }
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    child = Path(__file__).with_name("nvrtc_child.py")
    outcome = run_limited(
        [sys.executable, "-I", "-S", str(child)],
        folder=folder,
        environment={"LC_ALL": "C", "TMPDIR": str(folder), "PATH": "/usr/bin:/bin"},
        time_limit=time_limit,
        memory_limit=memory_limit,
    )
    if outcome.timed_out:
        text = f"the compiler was stopped after {time_limit:g} s"
        return CompileFailed(outcome.log, text, True, outcome.seconds)
    answer = _answer(folder)
    if answer is None:
        text = f"the compiler's process ended with status {outcome.status}: {outcome.log[-300:]}"
        return CompileFailed(outcome.log, text, False, outcome.seconds)
    _check_arch(arch, answer, nvrtc)
    if answer["status"] != 0:
        return CompileFailed(answer["log"], _distil(answer, source), False, answer["seconds"])
    resources = kernel_resources(answer["log"])
    image = (folder / CUBIN_NAME).read_bytes()
    missing = [name for name in entries if f".text.{name}\0".encode() not in image]
    if missing:
        text = f'the source defines no extern "C" __global__ function {", ".join(missing)}'
        return CompileFailed(answer["log"], text, False, answer["seconds"])
    return {
        "arch": arch,
        "seconds": answer["seconds"],
        "log": answer["log"],
        "cached": False,
        "compiler": f"NVRTC {answer['version']}",
        "resources": resources,
    }


def _answer(folder: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads((folder / "answer.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None  # the process died before it could answer; the caller reports its log


def _check_arch(arch: str, answer: dict[str, Any], nvrtc: Nvrtc) -> None:
    known = answer["archs"]
    if known and int(re.sub(r"\D", "", arch)) not in known:
        raise MissingTool(
            f"NVRTC {answer['version']} ({nvrtc.library.name}) cannot compile for {arch} "
            f"(it knows {', '.join(map(str, known))}). Install a newer one: "
            "pip install -U nvidia-cuda-nvrtc"
        )


def _distil(answer: dict[str, Any], source: str) -> str:
    """The first errors with the lines they are about; else the end of the log."""
    lines, found = source.splitlines(), []
    for entry in answer["log"].splitlines():
        match = _ERROR.match(entry)
        if match is None:
            continue
        number = int(match["line"])
        if match["file"].endswith(SOURCE_NAME):
            quoted = lines[number - 1].strip()[:200] if 0 < number <= len(lines) else ""
            text = f"line {number}: error: {match['text']}" + (f"\n    {quoted}" if quoted else "")
        else:
            text = f"{Path(match['file']).name}:{number}: error: {match['text']}"
        if text not in found:
            found.append(text)
    if not found:
        tail = [line for line in answer["log"].splitlines() if line.strip()][-6:]
        return "\n".join(tail) or answer["message"]
    more = len(found) - _MAX_ERRORS
    return "\n".join(found[:_MAX_ERRORS]) + (f"\n… and {more} more" if more > 0 else "")


def kernel_resources(log: str) -> dict[str, Resources]:
    """What the assembler reported of each kernel."""
    found: dict[str, Resources] = {}
    name, stack, stores, loads = "", 0, 0, 0
    for line in log.splitlines():
        if function := _FUNCTION.search(line):
            name = function[1]
        elif spills := _SPILLS.search(line):
            stack, stores, loads = (int(n) for n in spills.groups())
        elif (used := _USED.search(line)) and name:
            shared = _SHARED.search(line)
            size = int(shared[1]) if shared else 0
            found[name] = Resources(int(used[1]), stack, stores, loads, size)
    return found


def _publish(folder: Path, home: Path, made: dict[str, Any]) -> None:
    """Rename a finished build to its place; if another process was first, its build stays."""
    digest = hashlib.sha256((folder / CUBIN_NAME).read_bytes()).hexdigest()
    resources = {name: asdict(entry) for name, entry in made["resources"].items()}
    info = {**made, "resources": resources, "sha256": digest}
    (folder / "info.json").write_text(json.dumps(info), encoding="utf-8")
    if home.exists() and _cached(home) is None:
        shutil.rmtree(home, ignore_errors=True)
    try:
        folder.rename(home)
    except OSError:
        if _cached(home) is None:
            raise


def _cached(home: Path) -> CudaBuilt | None:
    try:
        info = json.loads((home / "info.json").read_text(encoding="utf-8"))
        digest = hashlib.sha256((home / CUBIN_NAME).read_bytes()).hexdigest()
        if info.pop("sha256") != digest:
            return None
        info["resources"] = {n: Resources(**entry) for n, entry in info["resources"].items()}
        return CudaBuilt(home / CUBIN_NAME, **{**info, "cached": True, "seconds": 0.0})
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or damaged: built again
