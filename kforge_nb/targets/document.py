"""Target graphs as plain JSON: for worker processes, for resume, and for the registry.

A document is data that anybody may have written. Operators are looked up by an allow-list of
names in a few torch namespaces; arguments are a closed set of kinds. Nothing is evaluated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import fx

from kforge_nb.errors import BadInput, DocumentError
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.operators import KINDS, base_name, spelling
from kforge_nb.targets.target import Occurrence, Target, TensorSpec

__all__ = [
    "graph_from_document",
    "graph_to_document",
    "target_from_document",
    "target_to_document",
]

SCHEMA = "kforge.graph/1"
MAX_NODES = 20_000
_SPACES: dict[str, Any] = {
    "torch": torch,
    "torch.functional": torch.functional,
    "torch.nn.functional": torch.nn.functional,
    "torch.special": torch.special,
    "torch._C._nn": torch._C._nn,
    **{f"torch._C.{name}": getattr(torch._C, name) for name in ("_linalg", "_special")},
    "operator": operator,
}
_REFUSED_KINDS = {"opaque", "barrier"}
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8,
        torch.int8, torch.int16, torch.int32, torch.int64,
    )
}  # fmt: skip
_FORMATS = {
    str(f).removeprefix("torch."): f
    for f in (torch.contiguous_format, torch.preserve_format, torch.channels_last,
              torch.channels_last_3d)
}  # fmt: skip


def graph_to_document(gm: fx.GraphModule) -> dict[str, Any]:
    """The graph as JSON-ready data. Raises BadInput for an operator outside the allow-list."""
    rows: list[dict[str, Any]] = []
    place = {node: i for i, node in enumerate(gm.graph.nodes)}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            rows.append({"op": "placeholder", "name": str(node.target)})
        elif node.op == "output":
            rows.append({"op": "output", "args": _encode(node.args[0], place)})
        elif node.op in ("call_function", "call_method"):
            found = spelling(node.target)
            if found is None or not _allowed(*found):
                raise BadInput(f"{node.target} cannot be written to a document; cut around it")
            rows.append(
                {
                    "op": "call",
                    "home": found[0],
                    "name": found[1],
                    "args": [_encode(a, place) for a in node.args],
                    "kwargs": {k: _encode(v, place) for k, v in node.kwargs.items()},
                }
            )
        else:
            raise BadInput(f"a {node.op} node ({node.name}) cannot be written to a document")
    return {"schema": SCHEMA, "nodes": rows}


def graph_from_document(document: dict[str, Any]) -> fx.GraphModule:
    """Inverse of :func:`graph_to_document`. Raises DocumentError for anything not allowed."""
    rows = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(rows, list) or document.get("schema") != SCHEMA:
        raise DocumentError(f"not a graph document of schema {SCHEMA}; save the run again")
    if len(rows) > MAX_NODES:
        raise DocumentError(f"a graph of {len(rows)} nodes is above the limit of {MAX_NODES}")
    graph = fx.Graph()
    made: list[fx.Node] = []
    try:
        for row in rows:
            made.append(_read_row(graph, row, made))
        graph.lint()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DocumentError(f"damaged graph document: {error!r} at node {len(made)}") from error
    if not made or made[-1].op != "output":
        raise DocumentError("damaged graph document: it does not end with its output")
    return fx.GraphModule({}, graph)


def _read_row(graph: fx.Graph, row: dict[str, Any], made: list[fx.Node]) -> fx.Node:
    op = row["op"]
    if op == "placeholder":
        if not str(row["name"]).isidentifier():
            raise ValueError(f"placeholder name {row['name']!r}")
        return graph.placeholder(str(row["name"]))
    if op == "output":
        return graph.output(_decode(row["args"], made))
    if op != "call":
        raise ValueError(f"unknown op {op!r}")
    home, name = str(row["home"]), str(row["name"])
    args = tuple(_decode(a, made) for a in row["args"])
    kwargs = {str(k): _decode(v, made) for k, v in row["kwargs"].items()}
    if home == "method":
        if not _allowed(home, name) or not hasattr(torch.Tensor, name):
            raise ValueError(f"method {name!r} is not allowed")
        return graph.call_method(name, args, kwargs)
    return graph.call_function(_resolve(home, name), args, kwargs)


def _allowed(home: str, name: str) -> bool:
    canonical, _ = base_name(home, name)
    known = KINDS.get(canonical, "opaque") not in _REFUSED_KINDS
    return known and (home in _SPACES or home in ("method", "aten"))


def _resolve(home: str, name: str) -> Callable[..., Any]:
    if not _allowed(home, name):
        raise ValueError(f"operator {home}.{name} is not allowed")
    if home == "aten":
        packet, _, overload = name.partition(".")
        return getattr(getattr(torch.ops.aten, packet), overload or "default")
    found = getattr(_SPACES[home], name)
    if not callable(found):
        raise TypeError(f"{home}.{name} is not a function")
    return found


def _encode(value: Any, place: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return {"node": place[value]}
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_encode(v, place) for v in value]}
    if isinstance(value, slice):
        return {"slice": [_encode(v, place) for v in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    kinds: tuple[tuple[str, type], ...] = (
        ("dtype", torch.dtype),
        ("memory_format", torch.memory_format),
        ("device", torch.device),
        ("layout", torch.layout),
    )
    for label, expected in kinds:
        if isinstance(value, expected):
            return {label: str(value).removeprefix("torch.")}
    raise BadInput(f"an argument of type {type(value).__name__} cannot be written to a document")


def _decode(value: Any, made: list[fx.Node]) -> Any:
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError(f"unknown argument {value!r}")
    ((label, body),) = value.items()
    if label == "node":
        if not isinstance(body, int) or not 0 <= body < len(made):
            raise ValueError(f"node {body!r} does not exist yet")
        return made[body]
    if label in ("list", "tuple", "slice"):
        items = [_decode(v, made) for v in body]
        return {"list": list, "tuple": tuple}[label](items) if label != "slice" else slice(*items)
    simple: dict[str, Callable[[Any], Any]] = {
        "float": float,
        "ellipsis": lambda _: Ellipsis,
        "dtype": _DTYPES.__getitem__,
        "memory_format": _FORMATS.__getitem__,
        "device": torch.device,
        "layout": {"strided": torch.strided}.__getitem__,
    }
    return simple[label](body)


def target_to_document(target: Target, folder: Path | None = None) -> dict[str, Any]:
    """The target as JSON-ready data; its captured inputs are saved under ``folder`` if given."""
    document = {
        "fingerprint": target.fingerprint,
        "name": target.name,
        "family": target.family,
        "granularity": target.granularity,
        "vendor": target.vendor,
        "graph": graph_to_document(target.graph),
        "inputs": [asdict(s) for s in target.inputs],
        "outputs": [asdict(s) for s in target.outputs],
        "occurrences": [asdict(o) for o in target.occurrences],
        "captured": None,
    }
    if folder is not None and target.captured is not None:
        place = Path(folder) / target.fingerprint[:16]
        target.captured.save(place)
        document["captured"] = place.name
    return document


def target_from_document(document: dict[str, Any], folder: Path | None = None) -> Target:
    """Inverse of :func:`target_to_document`. Raises DocumentError if it is not valid."""
    try:
        captured = None
        if document["captured"] is not None and folder is not None:
            captured = CapturedInputs.load(_inside(Path(folder), str(document["captured"])))
        return Target(
            fingerprint=str(document["fingerprint"]),
            name=str(document["name"]),
            family=str(document["family"]),
            granularity=document["granularity"],
            graph=graph_from_document(document["graph"]),
            inputs=tuple(_spec(s) for s in document["inputs"]),
            outputs=tuple(_spec(s) for s in document["outputs"]),
            occurrences=[
                Occurrence(
                    int(o["graph"]), str(o["module_path"]), tuple(o["nodes"]), int(o["calls"])
                )
                for o in document["occurrences"]
            ],
            vendor=bool(document["vendor"]),
            captured=captured,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentError(f"damaged target document: {error!r}") from error


def _inside(folder: Path, name: str) -> Path:
    if Path(name).name != name or name in ("", ".", ".."):
        raise DocumentError(f"the captured inputs lie outside the document's folder: {name!r}")
    return folder / name


def _spec(row: dict[str, Any]) -> TensorSpec:
    return TensorSpec(
        tuple(int(s) for s in row["shape"]),
        tuple(int(s) for s in row["stride"]),
        str(row["dtype"]),
        str(row["device"]),
    )
