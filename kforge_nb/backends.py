"""What ``--backend`` means: which compiler, for which language, on which device.

========================  ==================  =======  ===========================================
backend                   language            device   how it is built
========================  ==================  =======  ===========================================
``cpp``                   ``cpp``             CPU      g++, a library with one C function
``cupy_raw``              ``cuda``            GPU      NVRTC, device code only, launched by a plan
``cuda_extension``        ``cuda_extension``  both     nvcc (on the CPU: g++) through
                                                       ``torch.utils.cpp_extension``; host code
========================  ==================  =======  ===========================================

Pure: it is told what the machine has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kforge_nb.errors import BadInput, MissingTool

if TYPE_CHECKING:
    from collections.abc import Collection

    from kforge_nb.candidates.candidate import Language

__all__ = ["BACKENDS", "Backend", "check_backend", "language_of", "unfit"]

Backend = Literal["auto", "cpp", "cupy_raw", "cuda_extension"]
BACKENDS = ("cpp", "cupy_raw", "cuda_extension")
_LANGUAGES: dict[str, Language] = {
    "cpp": "cpp",
    "cupy_raw": "cuda",
    "cuda_extension": "cuda_extension",
}
_WITH_PLANS = frozenset({"recipes"})  # proposers that write kernels with a plan only


def language_of(backend: str, device: str) -> Language:
    """What candidates for a target on ``device`` are written in; raises BadInput if unfit."""
    if backend == "auto":
        return "cpp" if device == "cpu" else "cuda"
    words = unfit(backend, device)
    if words is not None:
        raise BadInput(words)
    return _LANGUAGES[backend]


def unfit(backend: str, device: str) -> str | None:
    """Why a backend cannot serve a target on ``device``, with what would; None if it can."""
    on_cpu = device == "cpu"
    if backend == "cpp" and not on_cpu:
        return (
            f"--backend cpp compiles for the CPU, and the target lives on {device}: use "
            "--backend cupy_raw, or leave the option out"
        )
    if backend == "cupy_raw" and on_cpu:
        return (
            "--backend cupy_raw compiles for a GPU, and the target lives on the CPU: move the "
            "model to the GPU, use --backend cpp, or leave the option out"
        )
    return None


def check_backend(
    backend: str,
    *,
    gpu: bool,
    allow_host_code: bool = False,
    proposer: str | None = None,
    devices: Collection[str] = (),
) -> None:
    """Refuse, in words, what cannot work.

    Args:
        backend: one of ``BACKENDS``, or ``auto``.
        gpu: whether torch sees a CUDA device.
        allow_host_code: whether torch extensions may be judged.
        proposer: what writes candidates; None for a kernel by hand.
        devices: where the targets live, once that is known.

    Raises:
        BadInput: it does not fit the proposer or any of the devices, or host code is not allowed.
        MissingTool: it needs a GPU and there is none.
    """
    if backend == "cupy_raw" and not gpu:
        raise MissingTool(
            "--backend cupy_raw needs a CUDA device, and torch sees none on this machine: leave "
            "the option out (or use --backend cpp) to optimise for the CPU"
        )
    if backend == "cuda_extension" and not allow_host_code:
        raise BadInput(
            "--backend cuda_extension builds torch extensions, whose host code can do anything "
            "that its process may: add --allow-host-code if you trust where they come from"
        )
    if backend == "cuda_extension" and proposer in _WITH_PLANS:
        raise BadInput(
            f"--proposer {proposer} writes kernels with a launch plan, no torch extensions: leave "
            "--backend out, or judge an extension of yours by "
            "%%kforge kernel --backend cuda_extension --allow-host-code"
        )
    reasons = [unfit(backend, device) for device in devices]
    if reasons and None not in reasons:
        raise BadInput(str(reasons[0]))
