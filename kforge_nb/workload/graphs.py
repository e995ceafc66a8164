"""Dynamo graphs of one module call, taken by a backend that only records.

The module's ``_call_impl`` is compiled from a small entry function with a code object of its own,
as the guard does, so both see the same graph, also for modules of ``torch.nn`` (a ``Sequential``),
which Dynamo skips when they are compiled directly. Dynamo's cache belongs to code objects: what was
traced goes away with the entry. Only frames behind a graph break are cached on the module's own
code; those entries are dropped afterwards, unless the user has compiled that code too.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn

from kforge_nb.workload.calls import GradState, ModuleCall
from kforge_nb.workload.copies import Copier
from kforge_nb.workload.fixed_sizes import compiled

__all__ = ["CapturedGraph", "Source", "graphs_of"]

Source = Literal["param", "buffer", "input"]
MAX_GRAPHS = 64


@dataclass(eq=False)
class CapturedGraph:
    """One graph as Dynamo gave it, with the real tensors it was traced on.

    ``calls`` is how often one run of the workload executes it; ``sources`` tells parameters,
    buffers and inputs apart by identity; ``state`` holds the switches at the graph's entry.
    """

    gm: fx.GraphModule
    example_inputs: list[Any]
    call: ModuleCall
    sources: dict[str, Source]
    state: GradState
    index: int = 0
    executions: int = 0

    @property
    def calls(self) -> int:
        """Executions in one run of the workload."""
        return self.executions * self.call.count

    @property
    def is_state(self) -> list[bool]:
        """For each placeholder: whether it is a parameter or buffer of the module."""
        names = [n.name for n in self.gm.graph.nodes if n.op == "placeholder"]
        return [self.sources[name] != "input" for name in names]


class _Recorder:
    """The backend: keeps each graph, returns it unchanged with a counter around it."""

    def __init__(self, call: ModuleCall) -> None:
        self.call = call
        self.graphs: list[CapturedGraph] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # The cutter runs graphs under the state they were traced in (autocast, above all).
        gm.meta["kforge_state"] = state = GradState.current()
        sources = _sources(gm, example_inputs, self.call)
        inputs = _as_they_are(gm, example_inputs, sources)
        graph = CapturedGraph(gm, inputs, self.call, sources, state)
        if len(self.graphs) < MAX_GRAPHS:
            self.graphs.append(graph)

        def counted(*args: Any) -> Any:
            graph.executions += 1
            return gm.forward(*args)

        return counted


def graphs_of(call: ModuleCall, note: Callable[[str], None]) -> list[CapturedGraph]:
    """The graphs of one call, in order of first execution; what went wrong goes to ``note``.

    The call is run once on fresh arguments. An exception of the tracer gives no graphs and a note.
    """
    recorder = _Recorder(call)
    code = _entry.__code__.replace(co_name="kforge_capture")
    entry = types.FunctionType(code, _entry.__globals__, "kforge_capture")
    traced = compiled(entry, recorder, dynamic=False)
    try:
        call.run(lambda *args, **kwargs: traced(call.module, args, kwargs))
    except Exception as error:  # noqa: BLE001 - the profile goes on without this module
        first = str(error).strip().splitlines() or [""]
        note(
            f"{call.module_name} could not be traced by torch.compile "
            f"({type(error).__name__}: {first[0][:200]}); it stays as it is"
        )
        return []
    finally:
        _forget(recorder)
    if not recorder.graphs:
        note(f"torch.compile found no graph in {call.module_name}; it stays as it is")
    if len(recorder.graphs) > 1:
        note(f"{call.module_name} breaks into {len(recorder.graphs)} graphs; each is cut alone")
    return recorder.graphs


def _entry(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return module._call_impl(*args, **kwargs)


def _forget(recorder: _Recorder) -> None:
    """Drop what Dynamo cached for the recorder on code that nobody else compiled."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
    from torch._dynamo import convert_frame

    for reference in list(convert_frame.input_codes.seen):
        code = reference()
        entries = _debug_get_cache_entry_list(code) if code is not None else []
        ours = [e for e in entries if _innermost(e.backend) is recorder]
        if code is not None and ours and len(ours) == len(entries):
            reset_code(code)


def _innermost(backend: Any) -> Any:
    """The user's backend inside torch.compile's wrappers."""
    while True:
        inside = getattr(backend, "_torchdynamo_orig_backend", None)
        inside = inside if inside is not None else getattr(backend, "compiler_fn", None)
        if inside is None:
            return backend
        backend = inside


def _as_they_are(
    gm: fx.GraphModule, example_inputs: Sequence[Any], sources: dict[str, Source]
) -> list[Any]:
    """The inputs before the graph runs on them: copies, where it may write to its arguments.

    Parameters and buffers are kept by reference; a replay puts those back that are written to.
    """
    if not any(_may_write(n) for n in gm.graph.nodes):
        return list(example_inputs)
    kinds = [sources[n.name] for n in gm.graph.nodes if n.op == "placeholder"]
    given = [
        v for v, k in zip(example_inputs, kinds, strict=True)
        if isinstance(v, torch.Tensor) and k == "input"
    ]  # fmt: skip
    copier = Copier(given)
    known = {id(v) for v in given}
    return [copier.copy(v) if id(v) in known else v for v in example_inputs]


def _may_write(node: fx.Node) -> bool:
    """Whether a call's spelling allows that it works in place."""
    if not node.op.startswith("call"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    spelled = name.endswith("_") or name.startswith("i") or name == "setitem"
    return spelled or bool(node.kwargs.get("inplace")) or True in node.args or "out" in node.kwargs


def _sources(
    gm: fx.GraphModule, example_inputs: Sequence[Any], call: ModuleCall
) -> dict[str, Source]:
    kinds: dict[int, Source] = {id(p): "param" for p in call.module.parameters()}
    kinds.update({id(b): "buffer" for b in call.module.buffers()})
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return {
        node.name: kinds.get(id(value), "input")
        for node, value in zip(placeholders, example_inputs, strict=False)
    }
