"""Which C++ compiler this machine has, what it is exactly, and how to get one if it is missing.

The compiler is looked for the way ``torch.utils.cpp_extension`` does (``CXX``, then ``c++``,
``g++``, ``clang++``), but without importing torch. Its identity (path, version, target) and that of
the CPU go into every cache key: ``-march=native`` code must never travel between machines.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from kforge_nb.errors import MissingTool

__all__ = ["Compiler", "clean_environment", "cpu_identity", "find_compiler", "install_command"]


SYSTEM = ("/usr/bin", "/bin")
"""Where a system's package manager is, also where PATH was lost."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler that answered: command line, kind, version line and target triple."""

    command: tuple[str, ...]
    kind: Literal["gcc", "clang"]
    version: str
    target: str

    @property
    def path(self) -> Path:
        """The executable."""
        return Path(self.command[0])

    @property
    def identity(self) -> str:
        """One string that changes whenever the compiler may produce other code."""
        return "\n".join([*self.command, self.version, self.target])


def find_compiler() -> Compiler:
    """The compiler to use.

    Raises:
        MissingTool: none was found or none answered; the message holds the install command.
    """
    return _find(os.environ.get("CXX", ""), os.environ.get("PATH", os.defpath))


@lru_cache(maxsize=8)
def _find(cxx: str, path: str) -> Compiler:
    problems = []
    for words in [shlex.split(cxx), ["c++"], ["g++"], ["clang++"]]:
        if not words:
            continue
        found = shutil.which(words[0], path=path)
        if found is None:
            problems.append(f"{words[0]}: not found")
            continue
        try:
            return _ask((str(Path(found).absolute()), *words[1:]))
        except (OSError, subprocess.SubprocessError) as problem:
            problems.append(f"{words[0]}: {problem}")
    tried = "; ".join(problems)
    raise MissingTool(
        f"no working C++ compiler ({tried} on PATH). Put the folder of one on PATH, or install "
        f"one: {install_command()}"
    )


def _ask(command: tuple[str, ...]) -> Compiler:
    """Ask a compiler who it is; raises SubprocessError if it does not answer in ten seconds."""

    def answer(flag: str) -> str:
        done = subprocess.run(
            [*command, flag],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env=clean_environment(Path(command[0])),
        )
        return done.stdout.strip()

    version = answer("--version").splitlines()[0]
    kind: Literal["gcc", "clang"] = "clang" if "clang" in version.lower() else "gcc"
    return Compiler(command, kind, version, answer("-dumpmachine"))


def clean_environment(compiler: Path, home: Path | None = None) -> dict[str, str]:
    """The whole environment a compiler gets: nothing of the user's but where programs are.

    ``CPATH``, ``LIBRARY_PATH``, ``LD_PRELOAD`` and the like would change what is built without
    changing the cache key, and secrets in the environment are none of a candidate's business.
    """
    folders = [str(compiler.parent), "/usr/local/bin", "/usr/bin", "/bin"]
    environment = {"PATH": os.pathsep.join(dict.fromkeys(folders)), "LC_ALL": "C", "LANG": "C"}
    if home is not None:
        environment |= {"HOME": str(home), "TMPDIR": str(home)}
    for name in ("SDKROOT", "DEVELOPER_DIR", "SYSTEMROOT"):  # compilers there need them to start
        if name in os.environ:
            environment[name] = os.environ[name]
    return environment


def install_command() -> str:
    """The command that installs a C++ compiler on this system."""
    if sys.platform == "darwin":
        return "xcode-select --install && brew install libomp"
    if sys.platform == "win32":
        return "winget install -e --id MSYS2.MSYS2, then pacman -S mingw-w64-ucrt-x86_64-gcc"
    for tool, command in {
        "apt-get": "sudo apt-get install -y g++",
        "dnf": "sudo dnf install -y gcc-c++",
        "yum": "sudo yum install -y gcc-c++",
        "zypper": "sudo zypper install -y gcc-c++",
        "pacman": "sudo pacman -S --noconfirm gcc",
        "apk": "sudo apk add g++ libgomp",
    }.items():
        if shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", ""), *SYSTEM])):
            return command
    return "conda install -c conda-forge gxx"


@lru_cache(maxsize=1)
def cpu_identity() -> str:
    """A hash of the CPU's architecture, model and instruction sets (hex, 16 characters)."""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    lines = [platform.machine(), platform.processor()]
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
        lines += [line for line in first.splitlines() if line.startswith(wanted)]
    except OSError:
        lines.append(platform.platform())  # not Linux: the platform is all there is to ask cheaply
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
