"""The doctor's checks of a GPU: device and driver, compilers, launch, and tools that look closer.

Without a GPU all of them are optional: kernels are then for the CPU, and NVRTC is only asked
whether CUDA could be compiled here.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path

from kforge_nb.checks import Check, installed
from kforge_nb.errors import KForgeError, MissingTool, install

__all__ = ["cuda_probes"]

CUPYS = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")


def cuda_probes() -> list[tuple[str, Callable[[], Check]]]:
    """Name and probe of each check, in order."""
    return [
        ("CUDA device", _device),
        ("NVRTC", _nvrtc),
        ("CuPy", _cupy),
        ("nvcc", _nvcc),
        ("compute-sanitizer", _sanitizer),
    ]


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _device() -> Check:
    import torch

    from kforge_nb.profile.device import facts, no_cuda

    if not _has_gpu():
        words = no_cuda("a GPU").partition(", but ")[2]
        return Check("CUDA device", "optional", f"none: {words.partition(';')[0]}")
    known = facts("cuda:0")
    more = torch.cuda.device_count() - 1
    found = (
        f"{known['name']}, {known['arch']}, {known['ram_gb']:g} GB, "
        f"{known['cache_kb']['L2'] // 1024} MB L2, {known['multiprocessors']} multiprocessors; "
        f"driver for CUDA {known['driver']}, torch for CUDA {known['cuda']}"
    )
    if more:
        return Check("CUDA device", "ok", f"{found}; {more} more")
    return Check("CUDA device", "ok", found)


def _nvrtc() -> Check:
    from kforge_nb.compilers.nvrtc import find_nvrtc

    try:
        version, archs = _known_archs(find_nvrtc().library)
    except MissingTool as problem:
        if _has_gpu():
            raise
        return Check("NVRTC", "optional", "not here; CUDA cannot be compiled", str(problem))
    words = f"{version}, up to sm_{max(archs)}" if archs else version
    if not _has_gpu():
        return Check("NVRTC", "optional", words)
    from kforge_nb.run.devices import check_tools

    check_tools("cuda:0")
    return Check("NVRTC", "ok", f"{words}; compiles for this device")


def _known_archs(library: Path) -> tuple[str, list[int]]:
    """Version of an NVRTC library and the architectures it compiles for (80, 90, …)."""
    nvrtc = ctypes.CDLL(str(library))
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    archs: list[int] = []
    if nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0:
        found = (ctypes.c_int * count.value)()
        nvrtc.nvrtcGetSupportedArchs(found)
        archs = list(found)
    return f"{major.value}.{minor.value}", archs


def _cupy() -> Check:
    found = next(((n, v) for n in CUPYS if (v := installed(n)) is not None), None)
    if found is None or importlib.util.find_spec("cupy") is None:
        words = "not installed; the C++ launch op is the only way to launch CUDA kernels"
        hint = install("cuda") if _has_gpu() else ""
        return Check("CuPy", "optional", words, hint)
    name, version = found
    if not _has_gpu():
        return Check("CuPy", "optional", f"{name} {version}")
    import torch

    wanted = str(torch.version.cuda).partition(".")[0]
    built = name.removeprefix("cupy-cuda").removesuffix("x")
    if name != "cupy" and built != wanted:
        return Check(
            "CuPy",
            "optional",
            f"{name} {version} is for CUDA {built}, and torch for CUDA {wanted}",
            f"pip uninstall {name}; pip install cupy-cuda{wanted}x",
        )
    return _launching_cupy(f"{name} {version}")


def _launching_cupy(words: str) -> Check:
    """Whether it really starts: a wrong build is noticed by its first call only."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
        version = cupy.cuda.runtime.runtimeGetVersion()
    except Exception as problem:  # noqa: BLE001  whatever a wrong build raises
        first = str(problem).strip().splitlines() or [type(problem).__name__]
        hint = "install the cupy-cudaNNx that fits the driver"
        return Check("CuPy", "optional", f"{words} does not work here: {first[0][:200]}", hint)
    return Check("CuPy", "ok", f"{words}, runtime {version // 1000}.{version % 1000 // 10}")


def _nvcc() -> Check:
    """Only torch extensions (``--backend cuda_extension``) need it."""
    from kforge_nb.compilers.cuda_toolkit import find_toolkit

    try:
        toolkit = find_toolkit()
    except KForgeError as problem:
        return Check("nvcc", "optional", "none that fits torch", str(problem))
    return Check("nvcc", "ok", f"{toolkit.version} ({toolkit.nvcc}), for cuda_extension")


def _sanitizer() -> Check:
    """Looks into accepted kernels for accesses out of bounds and for races."""
    from kforge_nb.judge.cuda.sanitizer import sanitizer_path

    path = sanitizer_path()
    if path is None:
        words = "not here; accepted kernels are not looked into for races"
        return Check("compute-sanitizer", "optional", words, "part of the CUDA toolkit")
    return Check("compute-sanitizer", "ok", str(path))
