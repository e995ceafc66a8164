"""The device that a run works on: which one it is, and whether its tools are here.

What is missing is said before anything is searched, in one message with what to do; the model is
only looked at.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput, KForgeError, MissingTool, install
from kforge_nb.profile.device import facts, kind_of, no_cuda
from kforge_nb.settings import cache_dir
from kforge_nb.workload.devices import gpus_of, main_device, memory_told

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target
    from kforge_nb.workload.capture import Workload

__all__ = [
    "check_same_gpu",
    "check_tools",
    "device_of_targets",
    "device_of_workload",
    "elsewhere",
    "facts_for",
    "tool_notes",
]

PROBE = 'extern "C" __global__ void kforge_probe(int* out) { *out = 1; }\n'


def device_of_workload(workload: Workload) -> str:
    """The device of a workload's model; BadInput for one that is split over several GPUs."""
    gpus = gpus_of(workload)
    if len(gpus) > 1:
        raise BadInput(
            f"the model is split over {', '.join(sorted(gpus))}, and a run works on one GPU: move "
            f"it there whole (model.to({gpus[0]!r})), or optimise the part on one GPU by a cell "
            "that calls only that part. The model is as it was"
        )
    return main_device(workload)


def device_of_targets(targets: Iterable[Target]) -> str:
    """The device that the targets of a stored run live on: a GPU where there is one among them."""
    found = list(dict.fromkeys(target.device for target in targets))
    return next((d for d in found if kind_of(d) == "cuda"), next(iter(found), "cpu"))


def elsewhere(target: Target, device: str) -> str | None:
    """Why a target on another device, or without inputs, is not searched; None if it may be."""
    if target.device != device:
        return f"it lives on {target.device}, and this run works on {device}"
    if target.captured is None or not len(target.captured):
        return "no inputs of it could be captured"
    return None


def check_tools(device: str) -> None:
    """MissingTool where candidates for this device cannot be compiled or run here."""
    from kforge_nb.compilers.cpp import find_compiler

    find_compiler()
    if kind_of(device) != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise MissingTool(no_cuda(device))
    _check_nvrtc(device)


def _check_nvrtc(device: str) -> None:
    """Compiles a line for the device's own architecture: a GPU may be newer than NVRTC."""
    from kforge_nb.compilers.nvrtc import CompileFailed, build_cuda, device_arch

    cache, arch = cache_dir() / "cuda", device_arch(device)
    built = build_cuda(PROBE, ("kforge_probe",), cache=cache, arch=arch)
    if isinstance(built, CompileFailed):
        raise MissingTool(
            f"NVRTC cannot compile one line for {arch}: {built.distilled[:500]}; "
            "`%kforge doctor` checks it"
        )


def check_same_gpu(recorded: Mapping[str, Any]) -> None:
    """BadInput where a run's kernels were measured on another GPU than the one that is here.

    ``recorded`` are the device facts of the run. On another GPU nobody knows that they are faster.
    MissingTool where there is no GPU at all.
    """
    if recorded.get("kind") != "cuda":
        return
    here = facts(str(recorded.get("device", "cuda:0")))
    if (here["name"], here["arch"]) != (recorded.get("name"), recorded.get("arch")):
        raise BadInput(
            f"the kernels of this run were measured on {recorded.get('name')} "
            f"({recorded.get('arch')}), and this machine has {here['name']} ({here['arch']}): "
            "optimise here anew, since nobody knows that they are faster on it"
        )


def tool_notes(device: str) -> list[str]:
    """What an optimize run on this device would lack, for a profile that needs none of it."""
    if kind_of(device) != "cuda":
        return []
    notes = []
    try:
        check_tools(device)
    except KForgeError as problem:
        notes.append(f"kernels for {device} cannot be searched here: {problem}")
    if importlib.util.find_spec("cupy") is None:
        notes.append(
            "cupy is not installed: kernels are launched by the C++ launch op only, and need a "
            f"C++ compiler wherever they are used ({install('cuda')})"
        )
    return notes


def facts_for(device: str) -> dict[str, Any]:
    """Plain facts with the calibrated bandwidth (GB/s) and peaks by dtype (GFLOP/s).

    Proposers and readers need them: a roofline is drawn from the two.
    """
    from kforge_nb.profile.calibration import calibrate

    known = facts(device)
    with memory_told("measuring what the device can do"):
        limits = calibrate(device)
    measured = {"bandwidth_gbs": limits.bandwidth_gbs, "flops_gflops": limits.flops_gflops}
    return {**known, "device": device, **measured, "calibrated_busy": limits.busy}
