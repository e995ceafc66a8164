"""Which nvcc this machine has, whether it fits torch, and how to get one that does.

NVRTC (:mod:`kforge_nb.compilers.nvrtc`) compiles device code only. A torch extension has host code,
so it needs the whole toolkit: nvcc, its headers and the CUDA runtime library, of the same major
version as torch's CUDA.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kforge_nb.compilers.nvrtc import wheel_folders
from kforge_nb.errors import MissingTool

__all__ = ["Toolkit", "find_toolkit"]

_RELEASE = re.compile(r"release (\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """An nvcc that answered: its file, the folder above ``bin``, and its version (``13.0``)."""

    nvcc: Path
    home: Path
    version: str

    @property
    def identity(self) -> str:
        """One string that changes whenever nvcc may produce other code."""
        stat = self.nvcc.stat()
        return "\n".join([str(self.nvcc), self.version, str(stat.st_size), str(int(stat.st_mtime))])

    @property
    def include(self) -> tuple[Path, ...]:
        """The folder with the runtime's headers, where it does not lie beside nvcc."""
        header = Path("include") / "cuda_runtime.h"
        if (self.home / header).exists():
            return ()
        return tuple(p / "include" for p in wheel_folders() if (p / header).exists())[:1]

    def runtime(self) -> Path | None:
        """The CUDA runtime library; None if there is none to link against."""
        places = [self.home, *wheel_folders()]
        folders = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
        for folder in (place / name for place in places for name in folders):
            found = sorted(folder.glob("libcudart.so*"))
            if found:
                return found[0]
        return None


def find_toolkit() -> Toolkit:
    """The nvcc to use with this torch.

    Looked for in ``CUDA_HOME``, ``CUDA_PATH``, on the PATH, in /usr/local/cuda and in the wheels.

    Raises:
        MissingTool: torch is built without CUDA, there is no nvcc, or none of torch's CUDA.
    """
    import torch

    wanted = torch.version.cuda
    if wanted is None:
        raise MissingTool(
            f"torch {torch.__version__} is built without CUDA, so a CUDA extension cannot be built "
            "here. Install a CUDA build of torch (https://pytorch.org/get-started/locally) and nvcc"
        )
    homes = tuple(os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH"))
    return _find(wanted, homes, os.environ.get("PATH", os.defpath))


@lru_cache(maxsize=8)
def _find(wanted: str, homes: tuple[str, ...], path: str) -> Toolkit:
    major = wanted.split(".", 1)[0]
    others = []
    for file in _candidates(homes, path):
        version = _version(file)
        if version is not None and version.split(".", 1)[0] == major:
            return Toolkit(file, file.parent.parent, version)
        others.append(f"{file} is {version or 'not answering'}")
    found = f" ({'; '.join(others)})" if others else ""
    raise MissingTool(
        f"building a CUDA extension needs nvcc {major}.x, as torch's CUDA is {wanted}, and there "
        f"is none{found}. Install CUDA toolkit {wanted} and set CUDA_HOME, or pip install "
        f"'nvidia-cuda-nvcc=={major}.*' 'nvidia-cuda-runtime=={major}.*'"
    )


def _candidates(homes: tuple[str, ...], path: str) -> list[Path]:
    """Every nvcc, those with the toolkit's headers beside them first."""
    on_path = shutil.which("nvcc", path=path)
    files = [Path(home) / "bin" / "nvcc" for home in homes if home]
    files += [Path(on_path).resolve()] if on_path else []
    places = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]
    files += [place / "bin" / "nvcc" for place in [*places, *wheel_folders()]]
    there = [file for file in dict.fromkeys(files) if os.access(file, os.X_OK)]
    header = Path("include") / "cuda_runtime.h"
    return sorted(there, key=lambda file: not (file.parent.parent / header).exists())


def _version(nvcc: Path) -> str | None:
    try:
        done = subprocess.run(
            [str(nvcc), "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _RELEASE.search(done.stdout)
    return f"{found[1]}.{found[2]}" if found else None
