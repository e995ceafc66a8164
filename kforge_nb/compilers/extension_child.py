"""The process that builds a torch extension: ``torch.utils.cpp_extension``, and nothing is loaded.

Started by path with ``python -I`` in the private folder of one build; ``request.json`` says where
Python's packages are, the sources, the flags and where the CUDA runtime library lies. Setuptools'
way is taken because ``cpp_extension.load`` would load the library into this process, and because it
leaves a lock file behind when it is killed, at which every later build of that name waits for ever.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["NAME", "main"]

NAME = "kforge_candidate"


def _build(request: dict[str, Any]) -> None:
    from setuptools import setup
    from torch.utils import cpp_extension
    from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

    if request["cuda"]:
        cpp_extension.CUDA_HOME = request["cuda"]  # a torch without CUDA does not look for it
    kind = CUDAExtension if request["cuda"] else CppExtension
    extension = kind(
        NAME,
        request["sources"],
        extra_compile_args={"cxx": request["cxx"], "nvcc": request["nvcc"]},
        extra_link_args=request["link"],
        include_dirs=request["include"],
        library_dirs=request["libraries"],
    )
    setup(
        name=NAME,
        ext_modules=[extension],
        cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
        script_args=["--quiet", "build_ext", "--build-lib", ".", "--build-temp", "objects"],
    )


def main() -> int:
    """Serve the one request of the current folder; the log goes to standard output."""
    request = json.loads(Path("request.json").read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    _build(request)
    return 0


if __name__ == "__main__":
    sys.exit(main())
