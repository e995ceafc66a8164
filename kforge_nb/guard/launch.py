"""The launch op in Python: registering kernels, the fake implementation, counters, kill switch.

``torch.ops.kforge.launch(Tensor[] inputs, int handle)`` is one opaque op for eager, Inductor, CUDA
graphs and export. The work of a call is done in ``launch.cpp``. Two more ops are only ever called
from there: ``kforge::original`` runs the replaced subgraph, ``kforge::shadow`` compares a kernel's
outputs with it on the first calls.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.plan import resolve, validate
from kforge_nb.errors import BadInput, ContractBreach
from kforge_nb.guard import native
from kforge_nb.guard.layout import encode
from kforge_nb.guard.shadow import difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import fx

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import TensorSpec

__all__ = [
    "REASONS",
    "Kernel",
    "counters",
    "enable",
    "kernel",
    "load",
    "originals",
    "register",
    "running",
    "set_running",
    "shadow_calls",
]

REASONS = {
    0: "none",
    1: "another number of inputs",
    2: "another dtype",
    3: "another device",
    4: "another shape",
    5: "a layout that cannot be copied",
    6: "a gradient is needed",
    7: "the kill switch is on",
    8: "disabled after a mismatch",
}
SHADOW_CALLS = 2
_QUIET = {7, 8}  # what the user asked for, and what has had its own warning, is no news


@dataclass(slots=True)
class Kernel:
    """A registered kernel: what the op falls back to, and what it promises."""

    handle: int
    name: str
    fingerprint: str
    digest: str
    reference: fx.GraphModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    note: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


_kernels: dict[int, Kernel] = {}
_by_key: dict[tuple[str, str, str], int] = {}
_lock = threading.RLock()
_native: ctypes.CDLL | None = None
_library: torch.library.Library | None = None
_warned: set[int] = set()


def load() -> ctypes.CDLL:
    """Build (once a machine), load and define the launch op; cheap when already done.

    Raises:
        MissingTool: there is no C++ compiler.
    """
    global _native, _library
    with _lock:
        if _native is None:
            path = native.launch_library()
            if _library is None:
                _library = _define()
            torch.ops.load_library(str(path))
            _native = ctypes.CDLL(str(path))
            _declare(_native)
    return _native


def _define() -> torch.library.Library:
    library = torch.library.Library("kforge", "DEF")
    exact = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    tags = (exact, torch.Tag.pt2_compliant_tag)
    library.define("launch(Tensor[] inputs, int handle) -> Tensor[]", tags=tags)
    library.define("original(Tensor[] inputs, int handle, int reason) -> Tensor[]")
    library.define("shadow(Tensor[] inputs, Tensor[] ours, int handle) -> Tensor[]")
    library.impl("launch", torch.library.fallthrough_kernel, "Autograd")
    library.impl("original", _original, "CompositeImplicitAutograd")
    library.impl("shadow", _shadow, "CompositeImplicitAutograd")
    torch.library.register_fake("kforge::launch", _fake, lib=library)
    return library


def _declare(native_library: ctypes.CDLL) -> None:
    word, small, pointer = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p
    words = ctypes.POINTER(ctypes.c_int64)
    for name, arguments, result in (
        ("add", [pointer, pointer, words, word], word),
        ("run", [small], None),
        ("running", [], small),
        ("enable", [word, small], None),
        ("enabled", [word], small),
        ("shadow", [word, word], None),
        ("counters", [word, words], None),
        ("error", [ctypes.c_char_p], None),
        ("dtype", [ctypes.c_char_p], small),
        ("device", [ctypes.c_char_p], small),
    ):
        function = getattr(native_library, f"kforge_{name}")
        function.argtypes, function.restype = arguments, result


def register(
    candidate: Candidate,
    library: Path,
    reference: fx.GraphModule,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    fingerprint: str = "",
    name: str = "",
    shadow: int = SHADOW_CALLS,
) -> int:
    """Put a compiled C++ candidate into the launch table.

    Args:
        candidate: what the library was built from; its plan is validated and resolved here.
        library: the shared library with the candidate's entry. It is loaded into this process.
        reference: the target's graph, which runs where the kernel does not fit.
        inputs: the variant, specs of ``in0 …``.
        outputs: specs of ``out0 …``; outputs are allocated with these strides.
        fingerprint: the target's; the same target and candidate share a handle.
        name: for messages.
        shadow: how many first calls are checked against ``reference``.

    Returns:
        The handle for ``torch.ops.kforge.launch``.

    Raises:
        ContractBreach: the plan does not fit the variant, or the library lacks the entry.
        BadInput: the language cannot be launched here.
        MissingTool: there is no C++ compiler.
    """
    if candidate.language != "cpp":
        raise BadInput(f"the launch op runs cpp candidates, not {candidate.language}")
    inputs, outputs = tuple(inputs), tuple(outputs)
    key = (fingerprint, candidate.digest, str(library))
    module = load()
    with _lock:
        if fingerprint and key in _by_key:
            return _by_key[key]
        validate(candidate.plan, candidate.language, inputs, outputs)
        plan = resolve(candidate.plan, inputs, outputs)
        call = plan.calls[0]
        layout = encode(module, plan, inputs, outputs)
        handle = module.kforge_add(
            native.trampoline(native.signature(call.args)),
            _entry(library, call.name),
            (ctypes.c_int64 * len(layout))(*layout),
            shadow,
        )
        if handle < 0:
            raise BadInput(f"the launch table refused {name or call.name} (code {handle})")
        _kernels[handle] = Kernel(
            handle, name or call.name, fingerprint, candidate.digest, reference, inputs, outputs
        )
        _by_key[key] = handle
    return handle


def _entry(library: Path, entry: str) -> int:
    try:
        return native.entry_address(library, entry)
    except (OSError, AttributeError) as problem:
        raise ContractBreach(f"{library.name} has no usable entry {entry!r}: {problem}") from None


def _fake(inputs: list[torch.Tensor], handle: int) -> list[torch.Tensor]:
    """What the op returns, without data: the variant's outputs, or what the original would give.

    Symbolic or other sizes go through the original subgraph, so its outputs carry the right
    expressions and no size is specialised; at run time the op chooses by the real sizes.
    """
    found = kernel(handle)
    if len(inputs) == len(found.inputs) and all(
        _same(tensor, spec) for tensor, spec in zip(inputs, found.inputs, strict=True)
    ):
        return [
            torch.empty_strided(
                spec.shape, spec.stride, dtype=getattr(torch, spec.dtype), device=spec.device
            )
            for spec in found.outputs
        ]
    return _own(list(found.reference(*inputs)), inputs)


def _same(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    if str(tensor.dtype).removeprefix("torch.") != spec.dtype or tensor.dim() != len(spec.shape):
        return False
    if tensor.device != torch.device(spec.device):
        return False
    return all(
        isinstance(size, int) and size == wanted
        for size, wanted in zip(tensor.shape, spec.shape, strict=True)
    )


def _own(outputs: list[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Clone outputs that are inputs or views of them: an op may not alias what it was given."""
    taken = {tensor.untyped_storage()._cdata for tensor in inputs}
    owned = []
    for tensor in outputs:
        storage = tensor.untyped_storage()._cdata
        owned.append(tensor.clone() if storage in taken else tensor)
        taken.add(owned[-1].untyped_storage()._cdata)
    return owned


def _original(inputs: list[torch.Tensor], handle: int, reason: int) -> list[torch.Tensor]:
    found = kernel(handle)
    if reason not in _QUIET and reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"kforge: {found.name} runs its original, because of {REASONS[reason]}; "
            "counters() counts these, and says so once for each reason",
            RuntimeWarning,
            stacklevel=2,
        )
    return _run(found, inputs)


def _run(found: Kernel, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    try:
        return _own(list(found.reference(*inputs)), inputs)
    except Exception as problem:
        # Exceptions lose their text on the way through the C ABI; C++ asks for it again.
        load().kforge_error(f"{type(problem).__name__}: {problem}".encode())
        raise


def _shadow(
    inputs: list[torch.Tensor], ours: list[torch.Tensor], handle: int
) -> list[torch.Tensor]:
    found = kernel(handle)
    with torch.no_grad():
        expected = _run(found, inputs)
        problem = _difference(ours, expected, found, inputs)
    if problem is None:
        return ours
    enable(handle, False, f"shadow check: {problem}")
    warnings.warn(
        f"kforge: {found.name} differs from its original ({problem}); it is switched off and the "
        "original's result is used",
        RuntimeWarning,
        stacklevel=2,
    )
    return expected


def _difference(
    ours: list[torch.Tensor],
    expected: list[torch.Tensor],
    found: Kernel,
    inputs: list[torch.Tensor],
) -> str | None:
    try:
        return difference(ours, expected, found.reference, inputs)
    except Exception as problem:  # noqa: BLE001 (what cannot be checked is not trusted)
        return f"it could not be checked: {type(problem).__name__}: {problem}"


def kernel(handle: int) -> Kernel:
    """The registered kernel; raises BadInput for an unknown handle."""
    try:
        return _kernels[handle]
    except KeyError:
        raise BadInput(f"no kernel is registered under handle {handle}") from None


def counters(handle: int) -> dict[str, Any]:
    """Launches, copies, shadow checks and fallbacks by reason of one kernel since registration."""
    out = (ctypes.c_int64 * (3 + 9))()
    load().kforge_counters(handle, out)
    fallbacks = {REASONS[i]: out[3 + i] for i in range(1, 9) if out[3 + i]}
    return {"launches": out[0], "copies": out[1], "shadowed": out[2], "fallbacks": fallbacks}


def enable(handle: int, on: bool = True, note: str = "") -> None:
    """Switch one kernel on or off; off sends its calls to the original."""
    found = kernel(handle)
    found.note = "" if on else note
    load().kforge_enable(handle, int(on))


def shadow_calls(handle: int, calls: int) -> None:
    """Check the next ``calls`` launches of a kernel against its original."""
    kernel(handle)
    load().kforge_shadow(handle, calls)


def set_running(on: bool) -> None:
    """The kill switch for the whole process: False sends every launch to its original."""
    load().kforge_run(int(on))


def running() -> bool:
    """Whether kernels run at all."""
    return bool(load().kforge_running())


@contextmanager
def originals() -> Iterator[None]:
    """Within this block every launch of this process runs its original."""
    before = running()
    set_running(False)
    try:
        yield
    finally:
        set_running(before)
