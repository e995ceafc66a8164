"""The file that an accepted kernel is installed from: a library for the CPU, a cubin for a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge_nb.compilers import cpp
from kforge_nb.errors import MissingTool
from kforge_nb.settings import cache_dir

if TYPE_CHECKING:
    from pathlib import Path

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["INSTALLABLE", "build_for_model"]

INSTALLABLE = ("cpp", "cuda")
"""Languages that the launch op runs: those with a launch plan."""


def build_for_model(candidate: Candidate, target: Target) -> Path:
    """Compile an accepted candidate on this machine, or find it in the judge's cache.

    Raises MissingTool where it does not compile (any more), or its compiler is not here.
    """
    distilled = ""
    if candidate.language == "cuda":
        from kforge_nb.compilers import nvrtc

        names = tuple(dict.fromkeys(kernel.name for kernel in candidate.plan.kernels))
        arch = nvrtc.device_arch(target.device)
        cubin = nvrtc.build_cuda(candidate.source, names, cache=cache_dir() / "cuda", arch=arch)
        if isinstance(cubin, nvrtc.CudaBuilt):
            return cubin.cubin
        distilled = cubin.distilled
    else:
        entry = candidate.plan.kernels[0].name
        built = cpp.build(candidate.source, entry, cache=cache_dir() / "cpp")
        if isinstance(built, cpp.Built):
            return built.library
        distilled = built.distilled
    raise MissingTool(
        f"an accepted kernel ({candidate.title}) does not compile any more: {distilled}; "
        "was the compiler changed? `%kforge doctor` checks it"
    )
