"""Check a kernel of unknown origin as the judge would: policy, compile, correctness in a runner.

Nothing of the kernel runs in this process before all of that has passed. Timing is left out: the
guard measures in the model whether a kernel helps, here it only matters whether it is right.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.plan import DTYPE_BYTES, resolve, validate
from kforge_nb.compilers import cpp
from kforge_nb.errors import BadInput, ContractBreach, DocumentError
from kforge_nb.judge import policy
from kforge_nb.judge.binary import library_folder, runner_binary
from kforge_nb.judge.cases import build_cases, secret_generator
from kforge_nb.judge.runner_handle import Limits, RunnerFailed
from kforge_nb.judge.session import LoadedCandidate
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.settings import cache_dir
from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.document import graph_from_document
from kforge_nb.targets.fingerprint import fingerprint
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.target import Target, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.guard.accepted import Accepted

__all__ = ["fingerprint_of", "verify"]

MAX_BYTES = 2 << 30
CALL_SECONDS = 20.0


def fingerprint_of(kernel: Accepted) -> str:
    """The fingerprint of the kernel's graph with its variant, computed anew.

    Raises:
        DocumentError: the graph cannot be run on such inputs, they are absurdly large, or they are
            on a GPU that this machine does not have.
    """
    gm = graph_from_document(kernel.graph_document)
    specs = (*kernel.inputs, *kernel.outputs)
    if any(spec.dtype not in DTYPE_BYTES for spec in specs):
        raise DocumentError("it has a tensor of a dtype that kernels cannot take")
    if sum(_extent(spec) * DTYPE_BYTES[spec.dtype] for spec in specs) > MAX_BYTES:
        raise DocumentError(f"its tensors are larger than {MAX_BYTES} bytes together")
    for device in {spec.device for spec in specs}:
        _check_device(device)
    inputs = [
        torch.zeros(_extent(s), dtype=getattr(torch, s.dtype), device=s.device).as_strided(
            s.shape, s.stride
        )
        for s in kernel.inputs
    ]
    flow = analyse(gm, inputs)
    nodes = list(gm.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    body = [node for node in nodes if node.op not in ("placeholder", "output")]
    outputs = list(nodes[-1].all_input_nodes)
    found = tuple(flow.specs[flow.index[node]] for node in outputs)
    if found != kernel.outputs or len(placeholders) != len(inputs):
        raise DocumentError("its graph does not give the outputs that it names")
    return fingerprint(flow, body, placeholders, outputs)


def _extent(spec: TensorSpec) -> int:
    """Elements from the first to the last, at least one."""
    return 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True) if n)


def verify(kernel: Accepted, looks: Sequence[Sequence[float]]) -> Accepted:
    """The kernel with a library built and checked just now.

    Args:
        kernel: from anywhere; only its source and plan are used.
        looks: for each input mean and spread (floats) or least and most (others).

    Raises:
        DocumentError: it breaks the contract or the policy, does not compile, or is wrong.
        MissingTool: there is no C++ compiler (the runners are built with it).
    """
    candidate = kernel.candidate
    try:
        validate(candidate.plan, candidate.language, kernel.inputs, kernel.outputs)
        built = _cubin(kernel) if candidate.language == "cuda" else _library(candidate)
        wrong = _run(kernel, looks, built)
    except (ContractBreach, BadInput) as problem:
        raise DocumentError(str(problem)) from problem
    except RunnerFailed as problem:
        raise DocumentError(f"it failed in the runner: {problem.reason}") from problem
    except torch.OutOfMemoryError as problem:
        first = str(problem).splitlines()[0][:200]
        raise DocumentError(f"the GPU's memory does not suffice to check it: {first}") from None
    if wrong is not None:
        raise DocumentError(f"it is wrong: {wrong}")
    return replace(kernel, library=built)


def _library(candidate: Candidate) -> Path:
    """The shared library of a C++ candidate whose source and symbols pass the policy."""
    _refuse(policy.scan_source(candidate.source))
    entry = candidate.plan.kernels[0].name
    built = cpp.build(candidate.source, entry, cache=cache_dir() / "cpp")
    if isinstance(built, cpp.CompileFailed):
        raise DocumentError(f"it does not compile: {built.distilled[:200]}")
    _refuse(policy.inspect_library(built.library, entry))
    return built.library


def _cubin(kernel: Accepted) -> Path:
    from kforge_nb.guard.verify_cuda import built_cubin, findings_in

    _refuse(findings_in(kernel.candidate.source))
    return built_cubin(kernel)


def _check_device(device: str) -> None:
    """Raise DocumentError for a device that this machine does not have."""
    try:
        place = torch.device(device)
    except RuntimeError:
        raise DocumentError(f"its tensors are on {device!r:.40}, which is no device") from None
    if place.type == "cpu":
        return
    if place.type != "cuda" or (place.index or 0) >= torch.cuda.device_count():
        raise DocumentError(f"its tensors are on {device}, which this machine does not have")


def _refuse(findings: Sequence[policy.Finding]) -> None:
    if findings:
        raise DocumentError("; ".join(dict.fromkeys(str(f) for f in findings))[:500])


def _run(kernel: Accepted, looks: Sequence[Sequence[float]], library: Path) -> str | None:
    """What is wrong on captured-like, redrawn and hard inputs, in the sandboxed runner."""
    device = kernel.outputs[0].device
    generator = secret_generator(device)
    captured = CapturedInputs()
    drawn = [_draw(s, look, generator) for s, look in zip(kernel.inputs, looks, strict=True)]
    captured.add(drawn)
    target = Target(
        kernel.target_fingerprint,
        kernel.name,
        "other",
        kernel.granularity,
        graph_from_document(kernel.graph_document),
        kernel.inputs,
        kernel.outputs,
        captured=captured,
    )
    if kernel.candidate.language == "cuda":
        from kforge_nb.guard.verify_cuda import check_on_gpu

        return check_on_gpu(kernel, target, drawn, library, CALL_SECONDS)
    cases = build_cases(target, generator)
    timed = TimedInputs(kernel.inputs, drawn, generator)
    try:
        with LoadedCandidate(
            target,
            resolve(kernel.candidate.plan, kernel.inputs, kernel.outputs),
            timed,
            binary=runner_binary(),
            library=library,
            threads=len(os.sched_getaffinity(0)),
            limits=Limits(call_seconds=CALL_SECONDS),
            library_folder=library_folder(),
        ) as loaded:
            loaded.load()
            return loaded.check(cases).wrong
    finally:
        timed.close()


def _draw(spec: TensorSpec, look: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Values that look like those seen, with the variant's strides."""
    first, second = (x if math.isfinite(x) else 1.0 for x in look)
    dtype: Any = getattr(torch, spec.dtype)
    count = max(_extent(spec), 1)
    if dtype.is_floating_point:
        noise = torch.randn(count, generator=generator, device=generator.device)
        flat = first + max(abs(second), 1e-3) * noise
    else:
        least, most = sorted((int(first), int(second)))
        flat = torch.randint(
            least, most + 1, (count,), generator=generator, device=generator.device
        )
    return flat.to(dtype).as_strided(spec.shape, spec.stride)
