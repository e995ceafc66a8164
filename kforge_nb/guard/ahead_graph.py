"""Whole graphs as plain JSON for a process that compiles them ahead: operators, sizes, no values.

Unlike the documents of ``targets``, these are written and read by the guard itself within one
moment, so any operator of torch may be in them, also the launch op. Tensors are given by their
specs alone: no weight and no input leaves the notebook's process.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from kforge_nb.errors import BadInput
from kforge_nb.targets.operators import spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["graph_to_rows", "rows_to_graph", "specs_of"]

_MODULES = ("torch", "_operator", "operator", "math")
_NAMED: dict[str, tuple[type, Callable[[str], Any]]] = {
    "dtype": (torch.dtype, lambda name: getattr(torch, name)),
    "memory_format": (torch.memory_format, lambda name: getattr(torch, name)),
    "layout": (torch.layout, lambda name: getattr(torch, name)),
    "device": (torch.device, torch.device),
}


def graph_to_rows(gm: fx.GraphModule) -> list[list[Any]]:
    """The graph, node by node.

    Raises:
        BadInput: it holds a function or an argument that has no name in torch.
    """
    rows: list[list[Any]] = []
    place = {node: i for i, node in enumerate(gm.graph.nodes)}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            rows.append(["input", node.name, _is_static(node)])
        elif node.op == "output":
            rows.append(["output", _write(node.args[0], place)])
        elif node.op in ("call_function", "call_method"):
            args = [_write(value, place) for value in node.args]
            kwargs = {key: _write(value, place) for key, value in node.kwargs.items()}
            rows.append(["call", _path(node), args, kwargs])
        else:
            raise BadInput(f"a {node.op} node ({node.name}) has a value of its own")
    return rows


def rows_to_graph(rows: Sequence[Sequence[Any]]) -> fx.GraphModule:
    """Inverse of :func:`graph_to_rows`; the graph passes for one of Dynamo's."""
    graph = fx.Graph()
    made: list[fx.Node] = []
    for kind, *row in rows:
        if kind == "input":
            made.append(_input(graph, *row))
        elif kind == "output":
            made.append(graph.output(_read(row[0], made)))
        else:
            path, args, kwargs = row
            values = tuple(_read(value, made) for value in args)
            named = {key: _read(value, made) for key, value in kwargs.items()}
            if path[0] == "method":
                made.append(graph.call_method(path[1], values, named))
            else:
                made.append(graph.call_function(_resolve(*path), values, named))
    gm = fx.GraphModule({}, graph)
    gm.meta["dynamo_compile_id"] = None
    gm.__dict__["_param_name_to_source"] = {}
    return gm


def specs_of(example_inputs: Sequence[Any]) -> list[list[Any]]:
    """Sizes, strides, dtype, device and ``requires_grad`` of each input.

    Raises:
        BadInput: an input is no tensor (a size that changes).
    """
    found = []
    for value in example_inputs:
        if not isinstance(value, torch.Tensor) or not all(type(n) is int for n in value.shape):
            raise BadInput("its sizes change from call to call")
        dtype = str(value.dtype).removeprefix("torch.")
        sizes = [list(value.shape), list(value.stride())]
        found.append([*sizes, dtype, str(value.device), value.requires_grad])
    return found


def _input(graph: fx.Graph, name: str, static: bool) -> fx.Node:
    node = graph.placeholder(name)
    node.meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"} if static else {}
    node._dynamo_source = None
    return node


def _is_static(node: fx.Node) -> bool:
    return bool((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"))


def _path(node: fx.Node) -> list[str]:
    """Where a node's function is found again."""
    target: Any = node.target
    if node.op == "call_method":
        return ["method", str(target)]
    if isinstance(target, torch._ops.OpOverload):
        return ["op", str(target)]
    named = [getattr(target, "__module__", None), getattr(target, "__qualname__", None)]
    for path in (spelling(target), named):
        if path and all(path) and str(path[0]).partition(".")[0] in _MODULES:
            try:
                if _resolve(*path) is target:
                    return [str(part) for part in path]
            except (AttributeError, ImportError):
                continue
    name = getattr(target, "__name__", type(target).__name__)
    raise BadInput(f"{name} cannot be named to another process, as it is no function of torch")


def _resolve(home: str, name: str) -> Any:
    if home == "op":
        space, packet, overload = name.split(".")
        return getattr(getattr(getattr(torch.ops, space), packet), overload)
    found: Any = torch if home == "torch" else _module(home)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _module(home: str) -> Any:
    if home.startswith("torch._C."):  # namespaces of the binding are attributes, not modules
        found: Any = torch
        for part in home.split(".")[1:]:
            found = getattr(found, part)
        return found
    return importlib.import_module(home)


def _write(value: Any, place: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return {"node": place[value]}
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.Size | tuple):
        return {"tuple": [_write(item, place) for item in value]}
    if isinstance(value, list):
        return {"list": [_write(item, place) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[key, _write(item, place)] for key, item in value.items()]}
    if isinstance(value, slice):
        return {"slice": [_write(part, place) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": 0}
    for label, (kind, _) in _NAMED.items():
        if isinstance(value, kind):
            return {label: str(value).removeprefix("torch.")}
    raise BadInput(f"an argument of type {type(value).__name__} cannot be written")


def _read(value: Any, made: Sequence[fx.Node]) -> Any:
    if not isinstance(value, dict):
        return value
    ((label, body),) = value.items()
    if label == "node":
        return made[body]
    if label == "dict":
        return {key: _read(item, made) for key, item in body}
    if label in ("list", "tuple", "slice"):
        items = [_read(item, made) for item in body]
        return slice(*items) if label == "slice" else {"list": list, "tuple": tuple}[label](items)
    if label == "float":
        return float(body)
    return Ellipsis if label == "ellipsis" else _NAMED[label][1](body)
