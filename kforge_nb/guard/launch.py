"""The launch op in Python: registering kernels, the fake implementation, counters, kill switch.

``torch.ops.kforge.launch`` is one opaque op for eager, Inductor, CUDA graphs and export. It takes
lists (``launch.default(Tensor[] inputs, int handle) -> Tensor[]``) or, which costs the host less,
up to eight inputs and two outputs as they are (``launch.in1(Tensor in0, int handle) -> Tensor`` to
``launch.in8out2``). The work of a call is done in ``launch.cpp``, or in
:mod:`kforge_nb.guard.cupy_op` where no C++ compiler exists. Two more ops are only ever called from
there: ``kforge::original`` runs the replaced subgraph, ``kforge::shadow`` compares a kernel's
outputs with it on the first calls.

The environment variable ``KFORGE_LAUNCH`` chooses an implementation: ``c++`` or ``cupy``.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.plan import resolve, validate
from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.errors import install as install_extra
from kforge_nb.guard.cupy_op import CupyTable
from kforge_nb.guard.shadow import difference
from kforge_nb.guard.table import FAILED, REASONS, NativeTable, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import fx

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import TensorSpec

__all__ = [
    "REASONS",
    "Kernel",
    "counters",
    "enable",
    "implementation",
    "kernel",
    "load",
    "originals",
    "register",
    "running",
    "set_running",
    "shadow_calls",
    "short_name",
]

SHADOW_CALLS = 2
SHORT = tuple((count, outputs) for outputs in (1, 2) for count in range(1, 9))
"""Numbers of inputs and outputs for which a short form exists, without a list on either way."""
_QUIET = {7, 8, FAILED}  # what the user asked for, and what has had its own warning, is no news


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
_table: Table | None = None
_library: torch.library.Library | None = None
_warned: set[int] = set()


def load() -> Table:
    """Build (once a machine), load and define the launch op; cheap when already done.

    Raises:
        MissingTool: there is no C++ compiler, and no GPU with CuPy either.
        BadInput: ``KFORGE_LAUNCH`` names no implementation.
    """
    global _table, _library
    if _table is None:
        with _lock:
            if _library is None:
                _library = _define()
            if _table is None:
                _table = _choose(_library)
    return _table


def implementation() -> str:
    """How launches run here: ``c++``, or ``cupy`` where there is no C++ compiler; loads the op."""
    return load().name


def _choose(library: torch.library.Library) -> Table:
    wanted = os.environ.get("KFORGE_LAUNCH", "")
    if wanted not in ("", "c++", "cupy"):
        raise BadInput(f"KFORGE_LAUNCH is {wanted!r}; use c++ or cupy, or leave it unset")
    if wanted != "cupy":
        try:
            return NativeTable()
        except MissingTool as problem:
            if wanted or (lacking := _lacks_cupy()):
                text = "" if wanted else f" CUDA kernels could run through CuPy, but {lacking}."
                raise MissingTool(f"{problem}{text}") from None
    table = CupyTable(_original, _shadow)
    for key in ("CPU", "CUDA"):
        library.impl("launch", table.launch, key)
        for count, outputs in SHORT:
            name = f"launch.{short_name(count, outputs)}"
            library.impl(name, _shortened(table.launch, outputs), key)
    return table


def short_name(count: int, outputs: int) -> str:
    """The overload that takes ``count`` tensors and a handle, and gives ``outputs`` tensors."""
    return f"in{count}" if outputs == 1 else f"in{count}out{outputs}"


def _shortened(
    function: Callable[..., list[torch.Tensor]], outputs: int
) -> Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]:
    """A function of tensors, as the short forms are called, from one of a list of them."""

    def short(*inputs_and_handle: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        *inputs, handle = inputs_and_handle
        found = function(inputs, handle)
        return found[0] if outputs == 1 else tuple(found)

    return short


def _lacks_cupy() -> str:
    """What the Python implementation would need and is missing; empty if it can run."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if importlib.util.find_spec("cupy") is None:
        return f"CuPy is not installed ({install_extra('cuda')})"
    return ""


def _define() -> torch.library.Library:
    library = torch.library.Library("kforge", "DEF")
    exact = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    tags = (exact, torch.Tag.pt2_compliant_tag)
    for count, outputs in SHORT:  # first: torch tries a packet's overloads in this order
        tensors = ", ".join(f"Tensor in{i}" for i in range(count))
        result = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
        schema = f"launch.{short_name(count, outputs)}({tensors}, int handle) -> {result}"
        _declare(library, schema, tags, _shortened(_fake, outputs))
    _declare(library, "launch(Tensor[] inputs, int handle) -> Tensor[]", tags, _fake)
    library.define("original(Tensor[] inputs, int handle, int reason) -> Tensor[]")
    library.define("shadow(Tensor[] inputs, Tensor[] ours, int handle) -> Tensor[]")
    library.impl("original", _original, "CompositeImplicitAutograd")
    library.impl("shadow", _shadow, "CompositeImplicitAutograd")
    return library


def _declare(
    library: torch.library.Library, schema: str, tags: Any, fake: Callable[..., Any]
) -> None:
    """One overload of the launch op, without what runs it."""
    name = schema.partition("(")[0]
    library.define(schema, tags=tags)
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"kforge::{name}", fake, lib=library)


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
    """Put a compiled candidate into the launch table.

    Args:
        candidate: what the library was built from; its plan is validated and resolved here.
        library: of a ``cpp`` candidate the shared library with its entry, of a ``cuda`` candidate
            the cubin. Its code is loaded into this process (and onto the device) for good.
        reference: the target's graph, which runs where the kernel does not fit.
        inputs: the variant, specs of ``in0 …``.
        outputs: specs of ``out0 …``; outputs are allocated with these strides.
        fingerprint: the target's; the same target and candidate share a handle.
        name: for messages.
        shadow: how many first calls are checked against ``reference``.

    Returns:
        The handle for ``torch.ops.kforge.launch``.

    Raises:
        ContractBreach: the plan does not fit the variant, or the library lacks a kernel or is for
            another device.
        BadInput: the language, or tensors on these devices, cannot be launched here.
        MissingTool: there is no C++ compiler, or no CUDA driver.
    """
    if candidate.language not in ("cpp", "cuda"):
        raise BadInput(f"the launch op runs cpp and cuda candidates, not {candidate.language}")
    inputs, outputs = tuple(inputs), tuple(outputs)
    key = (fingerprint, candidate.digest, str(library))
    table = load()
    with _lock:
        if fingerprint and key in _by_key:
            return _by_key[key]
        validate(candidate.plan, candidate.language, inputs, outputs)
        plan = resolve(candidate.plan, inputs, outputs)
        if candidate.language == "cpp":
            handle = table.add_cpu(library, plan, inputs, outputs, shadow)
        else:
            device = _cuda_device([*inputs, *outputs])
            handle = table.add_cuda(library, plan, inputs, outputs, shadow, device)
        name = name or plan.calls[0].name
        _kernels[handle] = Kernel(
            handle, name, fingerprint, candidate.digest, reference, inputs, outputs
        )
        _by_key[key] = handle
    return handle


def _cuda_device(specs: Sequence[TensorSpec]) -> int:
    """The one GPU that all tensors of a CUDA kernel are on."""
    devices = sorted({spec.device for spec in specs})
    kind, _, index = devices[0].partition(":")
    if len(devices) != 1 or kind != "cuda":
        raise BadInput(f"a CUDA kernel needs all its tensors on one GPU, not on {devices}")
    return int(index or 0)


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
    if reason == FAILED:
        found.note = load().fault(handle)
        warnings.warn(
            f"kforge: {found.name} is switched off and runs its original: {found.note}",
            RuntimeWarning,
            stacklevel=2,
        )
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
        load().error(f"{type(problem).__name__}: {problem}")
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
    """Launches, copies, shadow checks and fallbacks by reason of one kernel since registration.

    A replay of a CUDA graph does not come through here; what is counted is its capture.
    """
    kernel(handle)
    launches, copies, shadowed, *reasons = load().counts(handle)
    fallbacks = {REASONS[i]: count for i, count in enumerate(reasons) if count}
    return {"launches": launches, "copies": copies, "shadowed": shadowed, "fallbacks": fallbacks}


def enable(handle: int, on: bool = True, note: str = "") -> None:
    """Switch one kernel on or off; off sends its calls to the original."""
    found = kernel(handle)
    found.note = "" if on else note
    load().enable(handle, on)


def shadow_calls(handle: int, calls: int) -> None:
    """Check the next ``calls`` launches of a kernel against its original."""
    kernel(handle)
    load().shadow(handle, calls)


def set_running(on: bool) -> None:
    """The kill switch for the whole process: False sends every launch to its original."""
    load().run(on)


def running() -> bool:
    """Whether kernels run at all."""
    return load().running()


@contextmanager
def originals() -> Iterator[None]:
    """Within this block every launch of this process runs its original."""
    before = running()
    set_running(False)
    try:
        yield
    finally:
        set_running(before)
