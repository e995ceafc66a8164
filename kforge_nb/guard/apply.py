"""Install accepted kernels in live modules, in place or in a copy, and take them out again.

In place means ``nn.Module.compile``'s own hook, ``_compiled_call_impl``: ``state_dict``, pickle and
deepcopy do not see it, and what stood there before (the user's own compiled call) is put back by
``undo``. Nothing is installed before every warm-up call has succeeded, so an exception leaves the
model as it was.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.errors import BadInput
from kforge_nb.guard import launch
from kforge_nb.guard.backend import Backend
from kforge_nb.guard.bypass import compiled_parents
from kforge_nb.guard.entry import GuardedCall
from kforge_nb.guard.policy import dynamic_for
from kforge_nb.workload.calls import signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.guard.missed import Place
    from kforge_nb.workload.calls import ModuleCall

__all__ = ["Applied", "apply", "compiled_copy", "installed"]

WARM_UPS = 2
CALLS = ("calls", "compiled", "bypassed", "hooked", "original")
"""What is counted of the calls of guarded modules."""


class Applied:
    """One installation; a context manager that undoes itself at the end of the block."""

    def __init__(
        self, guarded: Sequence[GuardedCall], backend: Backend, notes: Sequence[str] = ()
    ) -> None:
        self.guarded = tuple(guarded)
        self.notes = tuple(notes)
        """What is to be known of the choice of these kernels, in words."""
        self.backend = backend
        self.active = False
        for call in self.guarded:
            call.owner = self
        self._own = dict.fromkeys(CALLS, 0)
        self._base = {h: launch.counters(h) for h in backend.handles.values()}
        for handle in backend.handles.values():
            launch.shadow_calls(handle, launch.SHADOW_CALLS)

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """The modules that run guarded kernels."""
        return tuple(call.module for call in self.guarded)

    def install(self) -> None:
        """Put the guarded calls into the modules; done by ``apply``, and again after ``undo``."""
        if self.active:
            return
        for call in self.guarded:
            call.before = call.module._compiled_call_impl
            if isinstance(call.before, GuardedCall):
                call.before.release()
                call.before.backend.release()
            call.module._compiled_call_impl = call
        self.active = True

    def undo(self) -> list[str]:
        """Put back the very objects of before; returns what could not be put back, in words.

        A module that somebody compiled again after ``apply`` keeps that.
        """
        if not self.active:
            return []
        left = []
        for call in self.guarded:
            if call.module._compiled_call_impl is call:
                _put_back(call.module, _standing(call.before))
            else:
                left.append(
                    f"{_label(call.module)} was compiled again after apply(); that was left alone"
                )
            call.release()
        self.backend.release()
        self.active = False
        return left

    def counters(self) -> dict[str, Any]:
        """What happened since installation: launches, copies, fallbacks by reason, calls.

        ``replayed`` counts runs of kernels inside CUDA graphs, which the launch op does not see;
        ``fallbacks`` are runs of an original at a kernel's place, also in graphs that were compiled
        without the kernel. ``kernels`` has one entry for each kernel. ``calls`` counts module
        calls: ``compiled`` ran compiled graphs, ``original`` of these had a place in them that ran
        an original, ``bypassed`` ran plain although kforge is installed, ``hooked`` ran plain
        because hooks were added. Calls with which ``apply`` itself compiles and warms up are left
        out of ``calls``; what they launched is in the other figures.
        """
        kernels, fallbacks = [], Counter[str]()
        for fingerprint, handle in self.backend.handles.items():
            now, base = launch.counters(handle), self._base[handle]
            reasons = Counter(now["fallbacks"])
            reasons.subtract(base["fallbacks"])
            reasons += self.backend.missed(fingerprint)
            for call in self.guarded:
                reasons += Counter(call.went_past(fingerprint))
            found = launch.kernel(handle)
            fallbacks.update(+reasons)
            kernels.append(
                {
                    "name": found.name,
                    "fingerprint": fingerprint,
                    **{k: now[k] - base[k] for k in ("launches", "copies", "shadowed")},
                    "replayed": self.backend.replayed(fingerprint),
                    "fallbacks": dict(+reasons),
                    "note": found.note,
                }
            )
        counted = ("launches", "replayed", "copies", "shadowed")
        totals = {k: sum(row[k] for row in kernels) for k in counted}
        calls = {name: n - self._own[name] for name, n in self._called().items()}
        return {**totals, "fallbacks": dict(fallbacks), "calls": calls, "kernels": kernels}

    def leave_out_own_calls(self) -> None:
        """All calls up to now were made by ``apply`` itself."""
        self._own = self._called()

    def _called(self) -> dict[str, int]:
        found = {name: sum(getattr(c, name) for c in self.guarded) for name in CALLS[:-1]}
        return {**found, "original": self.backend.original}

    def report(self) -> dict[str, Any]:
        """Graphs with what was replaced, kernels refused, and what silently bypasses kforge."""
        return {
            "active": self.active,
            "rest": self.backend.rest,
            "notes": list(self.notes),
            "graphs": [
                {
                    "index": g.index,
                    "nodes": g.nodes,
                    "rest": g.rest,
                    "calls": g.calls,
                    "replaced": dict(g.replaced),
                    "reasons": g.remarks,
                }
                for g in self.backend.graphs
            ],
            "refused": dict(self.backend.refused),
            "bypassed": self.bypasses(),
            "counters": self.counters(),
        }

    def bypasses(self) -> list[str]:
        """In words, every way in which calls are known to go past the kernels now."""
        found = []
        for call in self.guarded:
            found += self._bypasses_of(call)
        if self.active:
            found += compiled_parents(self.guarded)
        for handle in self.backend.handles.values():
            if launch.kernel(handle).note:
                found.append(f"{launch.kernel(handle).name} is off: {launch.kernel(handle).note}")
        if not launch.running():
            found.append("the kill switch is on: every kernel runs its original")
        return found

    def _bypasses_of(self, call: GuardedCall) -> list[str]:
        name, found = _label(call.module), []
        if call.new_hooks:
            said = {"": "the module itself", "*": "all modules"}
            where = ", ".join(said.get(path, path) for path in call.new_hooks[:5])
            found.append(f"{name}: hooks were added after apply() (on {where}), so it runs plain")
        if call.untraceable:
            found.append(f"{name} cannot be compiled, so it runs plain: {call.untraceable}")
        elif call.bypassed:
            found.append(
                f"{name}: {call.bypassed} of {call.calls} calls ran no compiled graph; Dynamo's "
                "recompile limit was reached, or the call cannot be traced"
            )
        if call.grown:
            found.append(
                f"{name}: more shapes came than are compiled one by one; only regions whose own "
                "sizes stand still keep their kernels"
            )
        if self.active and call.module._compiled_call_impl is not call:
            found.append(f"{name} was compiled again after apply(), so kforge is not called")
        return found

    def __enter__(self) -> Applied:
        """The installation itself, which is already active."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo."""
        self.undo()

    def __repr__(self) -> str:
        names = ", ".join(_label(module) for module in self.modules)
        state = "active" if self.active else "undone"
        return f"<Applied to {names}: {self._placed()}, {state}>"

    def _placed(self) -> str:
        """How many kernels there are, and how many of them found a place so far."""
        handles, graphs = self.backend.handles.keys(), self.backend.graphs
        text = f"{len(handles)} kernel{'' if len(handles) == 1 else 's'}"
        if handles and not graphs:
            return f"{text} that wait for the first call"
        placed = handles & {fingerprint for graph in graphs for fingerprint in graph.replaced}
        return text if placed == handles else f"{len(placed)} of {text} in place"


def apply(
    modules: Iterable[torch.nn.Module],
    accepted: Iterable[Accepted],
    rest: str = "eager",
    *,
    calls: Sequence[ModuleCall] = (),
    others: Iterable[Place] = (),
    notes: Sequence[str] = (),
) -> Applied:
    """Run guarded kernels in these modules from now on, in place.

    Args:
        modules: the modules that are called from outside.
        accepted: kernels to install.
        rest: what compiles the remaining graph; ``none`` leaves the modules alone (the guard
            recommends it where the untouched model is fastest).
        calls: recorded calls; those of each module choose its shape policy and warm it up, so that
            the user's next call is fast.
        others: targets that keep their original on purpose, so that they count as no fallbacks.
        notes: what the report is to say of the choice of kernels.

    Raises:
        BadInput: no module, an unknown rest, or a module that Dynamo cannot compile in place.
        MissingTool: there is no C++ compiler.
    """
    wanted = list({id(module): module for module in modules}.values())
    if not wanted:
        raise BadInput("apply() was given no module; pass the modules that your code calls")
    for module in wanted:
        _check(module)
    if rest == "none":
        return Applied([], Backend([], "eager"), notes)
    backend = Backend(accepted, rest, others=others)
    guarded = [_guard(module, backend, calls) for module in wanted]
    applied = Applied(guarded, backend, notes)
    for call in guarded:
        _warm_up(call, calls)
    applied.leave_out_own_calls()
    applied.install()
    return applied


def compiled_copy(
    model: torch.nn.Module,
    accepted: Iterable[Accepted],
    rest: str = "eager",
    *,
    calls: Sequence[ModuleCall] = (),
    others: Iterable[Place] = (),
    notes: Sequence[str] = (),
) -> torch.nn.Module:
    """A copy of the model that runs guarded kernels, sharing every parameter and buffer.

    In-place changes of weights are seen by both; replacing a weight object (``assign=True``,
    ``.to()``) changes one of them. ``calls`` recorded on ``model`` warm the copy up;
    ``installed(copy)`` is its :class:`Applied`. Raises as :func:`apply` does.
    """
    twin = copy.deepcopy(model, {id(t): t for t in _tensors(model)})
    own = [call for call in calls if call.module is model]
    moved = [_moved(call, twin) for call in own]
    apply([twin], accepted, rest, calls=moved, others=others, notes=notes)
    return twin


def installed(module: torch.nn.Module) -> Applied | None:
    """The installation whose kernels this module runs now, if any."""
    call = module._compiled_call_impl
    return call.owner if isinstance(call, GuardedCall) else None


def _standing(before: Any) -> Any:
    """What to put back: not a guarded call that was itself undone meanwhile, but what it covers."""
    while isinstance(before, GuardedCall) and not (before.owner and before.owner.active):
        before = before.before
    return before


def _put_back(module: torch.nn.Module, before: Any) -> None:
    """What a module's attributes held: none of its own, where its class's None stood there."""
    if before is None:
        del module._compiled_call_impl
    else:
        module._compiled_call_impl = before


def _moved(call: ModuleCall, module: torch.nn.Module) -> ModuleCall:
    twin = copy.copy(call)
    twin.module = module
    return twin


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers and plain tensor attributes of all submodules."""
    found: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        found += [v for v in vars(module).values() if isinstance(v, torch.Tensor)]
    return found


def _check(module: torch.nn.Module) -> None:
    if not isinstance(module, torch.nn.Module):
        raise BadInput(f"apply() wants nn.Module objects, not {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise BadInput(f"{_label(module)} is a TorchScript module, which Dynamo cannot compile")
    if isinstance(module, torch._dynamo.OptimizedModule):
        raise BadInput(
            f"{_label(module)} is the result of torch.compile(model); apply to the model itself "
            "(its _orig_mod), or compile with backend='kforge'"
        )


def _guard(module: torch.nn.Module, backend: Backend, calls: Sequence[ModuleCall]) -> GuardedCall:
    own = [signature(call.args, call.kwargs) for call in calls if call.module is module]
    return GuardedCall(module, backend, dynamic_for(own))


def _warm_up(guarded: GuardedCall, calls: Sequence[ModuleCall]) -> None:
    """Compile for the known calls, and let the shadow checks of the first launches happen."""
    for call in calls:
        if call.module is guarded.module:
            for _ in range(WARM_UPS):
                call.run(guarded)


def _label(module: torch.nn.Module) -> str:
    return type(module).__name__
