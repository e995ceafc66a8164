"""The exact reference: the same graph in float64, upcasting each value only when it is used.

``module.double()`` does not do this: models cast to float32 in the middle. Here every cast to a
lower precision becomes a cast to float64, and weights are upcast one node at a time, so that a
model that fills the memory once still runs. Where a GPU's memory does not suffice all the same, the
graph is run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from kforge_nb.targets.onhost import to_host
from kforge_nb.targets.operators import describe

__all__ = ["FALLBACKS", "Float64Interpreter", "reference"]

_LOW = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = ("float", "half", "bfloat16", "double")


def reference(
    gm: fx.GraphModule, inputs: Sequence[Any], *, on_cpu: bool = False
) -> list[torch.Tensor]:
    """Outputs of ``gm`` on ``inputs`` in float64 (integers and booleans as they are).

    Works for target graphs and whole-model graphs; the inputs are never changed. Nested outputs
    come flattened, tensors only; on the CPU where a GPU's memory did not suffice for float64, or
    where ``on_cpu`` says so.
    """
    with torch.no_grad():
        try:
            result = None if on_cpu else Float64Interpreter(gm).run(*inputs)
        except torch.OutOfMemoryError:
            result = None
            torch.cuda.empty_cache()
        if result is None:
            held = pytree.tree_map(to_host, list(inputs))
            result = Float64Interpreter(gm, on_cpu=True).run(*held)
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


class Float64Interpreter(fx.Interpreter):
    """Runs a graph in float64. ``notes`` names the operators that needed a fallback.

    With ``on_cpu`` the devices that are named in the graph are taken for the CPU.
    """

    def __init__(self, gm: fx.GraphModule, *, on_cpu: bool = False) -> None:
        super().__init__(gm, garbage_collect_values=True)
        self.notes: list[str] = []
        self._on_cpu = on_cpu
        self._written = _written_sources(gm)

    def run_node(self, n: fx.Node) -> Any:
        """One node, with its arguments and its result raised to float64."""
        if n.op == "placeholder":
            value = super().run_node(n)
            if n in self._written:
                return pytree.tree_map(_copy_up, value)
            return value
        if n.op in ("call_function", "call_method"):
            return self._call(n)
        if n.op == "output":
            return pytree.tree_map(_up, super().run_node(n))
        return pytree.tree_map(_up, super().run_node(n))

    def _call(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        args, kwargs = pytree.tree_map(_up, (args, kwargs))
        if self._on_cpu:
            args, kwargs = pytree.tree_map(to_host, (args, kwargs))
        if n.op == "call_method":
            name = str(n.target)
            if name in _CASTS:
                return _up(args[0].double())
            if name == "cuda" and self._on_cpu:
                return args[0]
            function: Callable[..., Any] = getattr(torch.Tensor, name)
        else:
            function = n.target  # type: ignore[assignment]
        try:
            result = function(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            result = self._fall_back(n, args, kwargs, error)
        return pytree.tree_map(_up, result)

    def _fall_back(self, n: fx.Node, args: Any, kwargs: Any, error: Exception) -> Any:
        """Operators that refuse float64: a named replacement, else raise what happened."""
        name = describe(n).name
        replacement = FALLBACKS.get(name)
        if replacement is None:
            raise error
        self.notes.append(f"{name} refuses float64: {replacement.__doc__}")
        return replacement(*args, **kwargs)


def _up(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW:
        return value.detach().to(torch.float64)
    if isinstance(value, torch.dtype) and value in _LOW:
        return torch.float64
    return value


def _copy_up(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    raised = value.detach().to(torch.float64) if value.dtype in _LOW else value.detach()
    return raised.clone() if raised.data_ptr() == value.data_ptr() else raised


def _written_sources(gm: fx.GraphModule) -> set[fx.Node]:
    """Placeholders that an in-place operator may reach through views: they are copied first."""
    found: set[fx.Node] = set()
    for node in gm.graph.nodes:
        op = describe(node)
        if not (op.in_place or op.kind in ("write", "opaque")):
            continue
        queue = list(node.all_input_nodes) if op.kind == "opaque" else list(node.args[:1])
        seen: set[fx.Node] = set()
        while queue:
            source = queue.pop()
            if not isinstance(source, fx.Node) or source in seen:
                continue
            seen.add(source)
            if source.op == "placeholder":
                found.add(source)
            elif describe(source).kind in ("view", "cheap", "write"):
                queue.extend(source.args[:1])
    return found


def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    """Computed group by group with matmul."""
    if offs is None:
        return torch.matmul(a, b)
    ends = [int(e) for e in offs.tolist()]
    starts = [0, *ends[:-1]]
    if a.dim() == 2 and b.dim() == 3:
        out = a.new_zeros(a.shape[0], b.shape[-1])
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            out[start:end] = a[start:end] @ b[group]
        return out
    pairs = zip(starts, ends, strict=True)
    return torch.stack([a[:, s:e] @ b[s:e] for s, e in pairs])


FALLBACKS: dict[str, Callable[..., Any]] = {"_grouped_mm": _grouped_mm, "grouped_mm": _grouped_mm}
