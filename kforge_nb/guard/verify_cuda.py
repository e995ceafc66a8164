"""What a kernel of unknown origin goes through on a GPU: policy, NVRTC, the judge's runner.

A cubin cannot be told from what its source says, so it is compiled anew from the source, for the
GPU at hand. Where there is no NVRTC, a cubin that was kept for this architecture is taken, and has
to pass the same check in the runner; one for another architecture is refused in words.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kforge_nb.candidates.plan import resolve
from kforge_nb.compilers.nvrtc import CompileFailed, build_cuda, device_arch
from kforge_nb.errors import DocumentError, MissingTool
from kforge_nb.judge.cases import build_cases, secret_generator
from kforge_nb.judge.cuda.binary import cuda_runner_binary
from kforge_nb.judge.cuda.cubin import inspect_cubin
from kforge_nb.judge.cuda.handle import CudaLimits
from kforge_nb.judge.cuda.policy import scan_cuda
from kforge_nb.judge.cuda.session import CudaCandidate
from kforge_nb.judge.shelf import Shelf
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.settings import cache_dir
from kforge_nb.workload.devices import free_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.judge.policy import Finding
    from kforge_nb.targets.target import Target

__all__ = ["built_cubin", "check_on_gpu", "findings_in"]

CASE_BYTES = 2 << 30
ROOM = 0.25
"""Part of the free GPU memory that inputs and expected values may take."""


def findings_in(source: str) -> list[Finding]:
    """What the CUDA source may not contain."""
    return scan_cuda(source)


def built_cubin(kernel: Accepted) -> Path:
    """A cubin of the kernel's source for its GPU, inspected.

    Raises:
        DocumentError: it does not compile, holds what it may not, or there is no NVRTC and no
            kept cubin for this architecture.
    """
    arch = device_arch(kernel.outputs[0].device)
    names = tuple(dict.fromkeys(entry.name for entry in kernel.candidate.plan.kernels))
    try:
        built = build_cuda(kernel.candidate.source, names, cache=cache_dir() / "cuda", arch=arch)
    except MissingTool as problem:
        cubin = _kept(kernel, arch, problem)
    else:
        if isinstance(built, CompileFailed):
            raise DocumentError(f"it does not compile for {arch}: {built.distilled[:200]}")
        cubin = built.cubin
    findings = inspect_cubin(cubin)
    if findings:
        raise DocumentError("; ".join(dict.fromkeys(str(f) for f in findings))[:500])
    return cubin


def _kept(kernel: Accepted, arch: str, problem: MissingTool) -> Path:
    if str(kernel.library) == os.devnull:
        raise DocumentError(f"it has no cubin, and none can be built: {problem}") from None
    if kernel.arch != arch:
        raise DocumentError(
            f"its cubin is for {kernel.arch or 'an unknown architecture'}, this GPU is {arch}, and "
            f"it cannot be built anew: {problem}"
        ) from None
    return kernel.library


def check_on_gpu(
    kernel: Accepted, target: Target, drawn: Sequence[torch.Tensor], cubin: Path, seconds: float
) -> str | None:
    """What is wrong on captured-like, redrawn and hard inputs, in a runner of its own.

    Raises:
        RunnerFailed: it crashed, hung or was refused there.
    """
    shelf = Shelf(str(target.device), int(ROOM * free_bytes(target.device)))
    made = build_cases(
        target,
        secret_generator(target.device),
        memory=CASE_BYTES,
        make=shelf.make,
        keep=shelf.keep,
    )
    timed = TimedInputs(kernel.inputs, list(drawn), secret_generator(target.device), most=3)
    try:
        with CudaCandidate(
            target,
            resolve(kernel.candidate.plan, kernel.inputs, kernel.outputs),
            timed,
            binary=cuda_runner_binary(),
            limits=CudaLimits(call_seconds=seconds),
            cubin=cubin,
        ) as loaded:
            loaded.load()
            return loaded.check(shelf.fill(made)).wrong
    finally:
        timed.close()
