"""The ways in which a model runs that are timed: eager, torch.compile, each rest with and without.

A side is what stands in ``module._compiled_call_impl`` while it is timed; it is put there outside
the clock. *guarded* is what ``run.apply(rest=...)`` installs, the kernels that the run decided for
that rest; *empty* is the same rest without any kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu_models_kernels import Kernels
from benchmarks.gpu_models_profile import workload_of
from benchmarks.models import Case

if TYPE_CHECKING:
    from torch import nn

    from kforge_nb.workload.capture import Workload

__all__ = ["EAGER", "MODES", "RESTS", "Sides", "ahead_of", "all_sides"]

EAGER = "eager"
MODES = {
    "compile": None,
    "reduce-overhead": "reduce-overhead",
    "max-autotune": "max-autotune-no-cudagraphs",
}
RESTS = ("eager", "inductor", "cudagraphs", "inductor-cudagraphs")
WARM_UPS = 4


def all_sides(device: str, best: str) -> list[str]:
    """All sides that a device has, the most telling first; ``best`` is the guard's own rest.

    With little time the first ones are all that is timed: the eager rest takes no compiler, then
    the guard's own rest, then what a user has without kforge.
    """
    rests = [r for r in RESTS if device.startswith("cuda") or "cudagraphs" not in r]
    order = [
        r
        for r in dict.fromkeys(["eager", best, "inductor-cudagraphs", "cudagraphs", *rests])
        if r in rests
    ]
    told = [f"{kind}-{rest}" for rest in order for kind in ("empty", "guarded")]
    pairs = 4 if best in order[1:] else 2
    modes = [m for m in MODES if device.startswith("cuda") or m != "reduce-overhead"]
    modes.sort(key=("reduce-overhead", "compile", "max-autotune").index)
    return [EAGER, *told[:pairs], *modes[:-1], *told[pairs:], modes[-1]]


def ahead_of(side: str, alone: Collection[str] = ()) -> str:
    """The side that a child compiles ahead for this one, empty where Inductor has no part in it.

    CUDA graphs over what Inductor compiled need nothing but that. ``alone`` are the rests that keep
    no kernel: with them guarded is empty.
    """
    if side in MODES:
        return side
    kind, _, rest = side.partition("-")
    if "inductor" not in rest:
        return ""
    return f"{'empty' if rest in alone else kind}-{rest.removesuffix('-cudagraphs')}"


class Sides:
    """One model and the sides that were made ready for it."""

    def __init__(self, case: Case, kernels: Kernels, device: str) -> None:
        from kforge_nb.workload.capture import watch

        kernels.register()
        self._fn = workload_of(case)
        self._kernels = kernels
        self._device = device
        self.workload: Workload = watch(self._fn)
        self.calls: dict[str, list[tuple[nn.Module, Any]]] = {
            EAGER: [(module, None) for module in self.workload.modules]
        }
        self.installed: dict[str, int] = {}
        self.decided: dict[str, str] = {}
        """Of each guarded side the rest that its kernels were decided for."""
        self.told: dict[str, list[str]] = {}

    def add(self, side: str) -> None:
        """Make a side ready and warm; whatever its compiler raises passes through."""
        if side in MODES:
            self.calls[side] = [
                (module, torch.compile(module._call_impl, dynamic=False, mode=MODES[side]))
                for module in self.workload.modules
            ]
        elif side != EAGER:
            self._add_rest(side)
        call = self.side(side)
        try:
            for _ in range(WARM_UPS):
                call()
        except BaseException:
            del self.calls[side]
            raise

    def _add_rest(self, side: str) -> None:
        """The product's own apply, taken out of the modules again at once.

        Where a rest keeps no kernel the guarded side is the empty one, and is compiled once.
        """
        from kforge_nb.guard.apply import apply

        kind, _, rest = side.partition("-")
        kernels = self._kernels.by_rest.get(rest, []) if kind == "guarded" else []
        if kind == "guarded":
            self.decided[side] = self._kernels.decided.get(rest, "")
        twin = f"{'empty' if kind == 'guarded' else 'guarded'}-{rest}"
        if not kernels and twin in self.calls and not self.installed[twin]:
            self.calls[side], self.installed[side] = self.calls[twin], 0
            return
        applied = apply(self.workload.modules, kernels, rest, calls=self.workload.calls)
        self.calls[side] = [(call.module, call) for call in applied.guarded]
        for call in applied.guarded:
            call.module._compiled_call_impl = None
        report = applied.report()
        self.installed[side] = len({f for g in report["graphs"] for f in g["replaced"]})
        why = [text for graph in report["graphs"] for text in graph["reasons"]]
        self.told[side] = [*why, *report["refused"].values()][:6]

    def side(self, name: str) -> Callable[[], Any]:
        """One run of the workload on this side, until the device is done."""
        chosen = self.calls[name]
        wait = torch.cuda.synchronize if self._device.startswith("cuda") else None

        def call() -> Any:
            for module, compiled in chosen:
                module._compiled_call_impl = compiled
            result = self._fn()
            if wait is not None:
                wait()
            return result

        return call

    def leave(self) -> None:
        """Put the modules back as they were."""
        for module in self.workload.modules:
            module._compiled_call_impl = None
