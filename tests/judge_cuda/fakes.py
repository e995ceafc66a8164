"""A fake CUDA driver for tests without a GPU, and candidates that run on it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kforge_nb.candidates.candidate import Kernel, LaunchPlan, Scratch
from kforge_nb.candidates.plan import resolve
from kforge_nb.compilers.toolchain import find_compiler
from kforge_nb.judge.cases import secret_generator
from kforge_nb.judge.cuda.binary import cuda_runner_binary
from kforge_nb.judge.cuda.handle import CudaLimits
from kforge_nb.judge.cuda.session import CudaCandidate
from kforge_nb.judge.cuda.slots import DeviceInputs
from kforge_nb.targets.target import Target

SOURCE = Path(__file__).with_name("fake_driver.cpp")
CODE = """FAKE sm_90
flush 8 0 1024 8,8,8
tick 8 0 1024 8
stage 16 0 1024 8,8,8,8,8,8,4
sample 16 0 1024 8,8,8,8,8,8,4,4
idle 16 0 1024 8,8,8
lazy 16 0 1024 8,8,8
stash 16 0 1024 8,8,8
twice 16 0 1024 8,8,8
scale 16 0 1024 8,8,8,4
beside 16 0 1024 8,8,8,8
vandal 16 0 1024 8,8,8
illegal 16 0 1024 8,8,8
trap 16 0 1024 8,8,8
hang 16 0 1024 8,8,8
dies 16 0 1024 8,8,8
partial 16 0 1024 8,8,8
apply 16 0 1024 8,8,8,8
overrun 16 0 1024 8,8,8,8,8
restless 16 0 1024 8,8,8
trusting 16 0 1024 8,8,8
finds 16 0 1024 8,8,8
grid 16 0 1024 8,8,8
scalars 16 0 1024 8,8,8,8,4,4,8
sprawling 16 0 1024 8,8,8
"""


def build_fake(folder: Path) -> Path:
    """The fake driver's library."""
    library = folder / "libfakecuda.so"
    flags = ["-shared", "-fPIC", "-std=c++17", "-O1", "-fvisibility=hidden"]
    command = [*find_compiler().command, *flags, str(SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True, timeout=120)
    return library


def plan_of(*kernels: Kernel, **scratch: Scratch) -> LaunchPlan:
    """A plan of these kernels; the number of elements is ``N``."""
    return LaunchPlan(tuple(kernels), {"N": "numel(in0)"}, dict(scratch))


def one(name: str, *more: str, shared: str = "0", block: str = "128") -> LaunchPlan:
    """A plan of one kernel with the usual arguments and ``more``."""
    args = ("in0", "out0", "i64:N", *more)
    return plan_of(Kernel(name, args, ("ceil_div(N, 128)", "2", "1"), (block, "1", "1"), shared))


def on_device(target: Target) -> Target:
    """The target as it would be on a GPU: same values, other device names and memory layout."""
    target.inputs = tuple(replace(spec, device="cuda:0") for spec in target.inputs)
    target.outputs = tuple(replace(spec, device="cuda:0") for spec in target.outputs)
    return target


def timed_of(target: Target, seen: Sequence[torch.Tensor]) -> DeviceInputs:
    """Timed inputs of a target."""
    return DeviceInputs(target.inputs, list(seen), secret_generator())


def start(
    target: Target,
    timed: DeviceInputs,
    plan: LaunchPlan,
    cubin: Path,
    driver: str,
    **limits: object,
) -> CudaCandidate:
    """A candidate on the fake driver, not loaded yet."""
    return CudaCandidate(
        target,
        resolve(plan, target.inputs, target.outputs),
        timed,
        binary=cuda_runner_binary(),
        cubin=cubin,
        limits=CudaLimits(**{"call_seconds": 5.0, **limits}),
        flush=cubin,
        device=0,
        driver=driver,
    )
