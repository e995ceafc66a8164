"""Watch a workload: which modules it calls from outside, with what, and their Dynamo graphs.

Nothing global outlives the watch. While it lasts, ``nn.Module.__call__`` goes through a counter of
the watching thread. (Torch's global forward hooks would do, but they see no keyword arguments, miss
interrupts, and make compiled modules of the user recompile; Dynamo never looks at ``__call__``.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.fx import _symbolic_trace

from kforge_nb.errors import BadInput
from kforge_nb.workload.calls import (
    GradState,
    ModuleCall,
    RandomState,
    WrittenState,
    signature,
    snapshot,
    tensors_of,
    versions,
)
from kforge_nb.workload.devices import main_device
from kforge_nb.workload.graphs import CapturedGraph, graphs_of
from kforge_nb.workload.names import name_in

__all__ = ["CapturedGraph", "ModuleCall", "Workload", "capture_graphs", "watch"]

MAX_SIGNATURES = 4
OUTSIDE_SHARE, OUTSIDE_S = 0.25, 0.02
"""From which share and seconds of its CPU time a cell is told of work outside modules."""


@dataclass(eq=False)
class Workload:
    """A user's callable and the outermost module calls it made.

    ``calls`` holds one entry for each module and input signature, in order of first call; ``notes``
    says in words what could not be seen or traced; ``graphs`` is filled by ``capture_graphs``.
    ``layout`` says how the graphs lie: as the model has them, or laid out ``channels_last``.
    """

    fn: Callable[[], Any]
    result: Any = None
    calls: list[ModuleCall] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    graphs: list[CapturedGraph] = field(default_factory=list)
    layout: Literal["keep", "channels_last"] = "keep"

    @property
    def modules(self) -> list[nn.Module]:
        """The modules called from outside, each once, in order of first call."""
        return list({id(c.module): c.module for c in self.calls}.values())

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)


def watch(fn: Callable[[], Any]) -> Workload:
    """Run ``fn`` once and record its outermost ``nn.Module`` calls.

    An exception of ``fn`` passes through unchanged. Raises BadInput if no module was called, or if
    a called module has parameters on the ``meta`` device.
    """
    workload = Workload(fn)
    watcher = _Watcher(workload)
    start = time.thread_time()
    with watcher.installed():
        workload.result = fn()
    watcher.report(time.thread_time() - start)
    if not workload.calls:
        why = "".join(f" ({note})" for note in workload.notes)
        raise BadInput(
            "nothing to measure or to optimise: the cell called no torch.nn.Module; call the model "
            f"in it, for example `model(x)`{why}"
        )
    return workload


def capture_graphs(workload: Workload) -> Workload:
    """Fill ``workload.graphs`` by tracing each recorded call once; returns the workload.

    What cannot be traced becomes a note; the rest still comes.
    """
    workload.graphs.clear()
    workload.layout = "keep"
    for call in workload.calls:
        for graph in graphs_of(call, workload.note):
            graph.index = len(workload.graphs)
            workload.graphs.append(graph)
    return workload


_INSTALL = threading.RLock()
_WATCHERS: dict[int, _Watcher] = {}
_ORIGINAL_CALL = nn.Module.__call__


def _watched_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        # A model that is compiled in the cell keeps this function, and Dynamo traces it: nothing
        # below this line may be seen by it, now or after the watch.
        return _ORIGINAL_CALL(module, *args, **kwargs)
    watcher = _WATCHERS.get(threading.get_ident())
    if watcher is None:
        for other in list(_WATCHERS.values()):
            other.elsewhere = True
        return _ORIGINAL_CALL(module, *args, **kwargs)
    return watcher.call(module, args, kwargs)


def _with_stand_ins() -> bool:
    """Whether values here are those of a transform or a tracer, which mean nothing after it."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or _symbolic_trace._is_fx_tracing_flag
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def _statistics(module: nn.Module, known: list[torch.Tensor]) -> list[torch.Tensor]:
    """Running statistics that a call in training mode writes to: no version counts that."""
    taken = {id(t) for t in known}
    return [
        statistic
        for child in module.modules()
        if isinstance(child, nn.modules.batchnorm._NormBase) and child.training
        for statistic in (child.running_mean, child.running_var)
        if statistic is not None and id(statistic) not in taken
    ]


class _Watcher:
    """Records the calls at depth 1 of one thread."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.depth = 0
        self.inside_s = 0.0
        self.elsewhere = False
        self.seen: dict[Any, ModuleCall] = {}
        self.signatures: dict[int, int] = {}
        self.last: dict[int, ModuleCall] = {}
        self.folded: dict[int, int] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Send module calls of this thread through ``call`` while the body runs."""
        thread = threading.get_ident()
        with _INSTALL:
            outer = _WATCHERS.get(thread)
            _WATCHERS[thread] = self
            nn.Module.__call__ = _watched_call  # type: ignore[method-assign]
        try:
            yield
        finally:
            with _INSTALL:
                if outer is not None:
                    _WATCHERS[thread] = outer
                else:
                    del _WATCHERS[thread]
                if not _WATCHERS:
                    nn.Module.__call__ = _ORIGINAL_CALL  # type: ignore[method-assign]

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one module call, recording it if it comes from outside."""
        if self.depth:
            return _ORIGINAL_CALL(module, *args, **kwargs)
        if _with_stand_ins():
            self.workload.note("modules called under torch.func or by a tracer were not recorded")
            return _ORIGINAL_CALL(module, *args, **kwargs)
        self.depth += 1
        start = time.thread_time()
        try:
            recorded = self._record(module, args, kwargs)
            state = WrittenState(module) if recorded.count == 1 else None
            before = versions((args, kwargs))
            try:
                result = _ORIGINAL_CALL(module, *args, **kwargs)
            except BaseException as error:
                self._take_back(recorded, error)
                raise
            if recorded.count == 1 and recorded.random is not None and not recorded.random.moved():
                recorded.random = None
            recorded.writes = recorded.writes or versions((args, kwargs)) != before
            if state is not None:
                recorded.written_state += state.written()
                recorded.written_state += _statistics(module, recorded.written_state)
            return result
        finally:
            self.inside_s += time.thread_time() - start  # with what watching costs
            self.depth -= 1

    def _take_back(self, recorded: ModuleCall, error: BaseException) -> None:
        """A call that raised is none: the cell may have caught the error, a replay would not."""
        recorded.count -= 1
        if recorded.count == 0:
            self.workload.calls.remove(recorded)
            self.seen = {key: call for key, call in self.seen.items() if call is not recorded}
            self.signatures[id(recorded.module)] -= 1
        self.workload.note(
            f"a call of {recorded.module_name} raised {type(error).__name__} and was left out"
        )

    def _record(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ModuleCall:
        _refuse_meta(module)
        state = GradState.current()
        key = (id(module), state, module.training, signature(args, kwargs))
        known = self.seen.get(key)
        if known is not None:
            known.count += 1
            return known
        number = self.signatures.get(id(module), 0)
        if number >= MAX_SIGNATURES:
            self.folded[id(module)] = self.folded.get(id(module), 0) + 1
            self.last[id(module)].count += 1
            return self.last[id(module)]
        self.signatures[id(module)] = number + 1
        kept_args, kept_kwargs = snapshot((args, kwargs))
        name = name_in(self.workload.fn, module)
        drawn = RandomState.of(tensors_of(module, args, kwargs))
        call = ModuleCall(module, name, kept_args, kept_kwargs, state, random=drawn)
        self.seen[key] = self.last[id(module)] = call
        self.workload.calls.append(call)
        return call

    def report(self, seconds: float) -> None:
        """Turn what was left out into notes; ``seconds`` is what the cell took."""
        for call in {id(c.module): c for c in self.workload.calls}.values():
            more = self.folded.get(id(call.module), 0)
            if more:
                self.workload.note(
                    f"{call.module_name} was called with more than {MAX_SIGNATURES} different "
                    f"inputs; {more} further calls are counted with the last of them"
                )
        if self.elsewhere:
            self.workload.note("modules called in other threads were not recorded")
        outside = seconds - self.inside_s
        if outside < max(OUTSIDE_SHARE * seconds, OUTSIDE_S) or not self.workload.calls:
            return
        if not main_device(self.workload).startswith("cuda"):  # where calls return before they end
            self.workload.note(
                f"{outside / seconds:.0%} of the cell's computing was outside module calls, where "
                "kforge sees nothing (work on tensors is seen if it is in a module's forward)"
            )


def _refuse_meta(module: nn.Module) -> None:
    for name, tensor in module.named_parameters():
        if tensor.device.type == "meta":
            raise BadInput(
                f"{type(module).__name__} is on the meta device (parameter {name} has no data); "
                "load its weights or call to_empty(device=...) first"
            )
        break
