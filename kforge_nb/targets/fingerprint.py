"""The identity of a cut: equal fingerprints mean that one kernel serves both.

The hash covers the canonical graph (operators by canonical name, arguments by place and constants
by value, in-place forms apart) and the variant (shapes, strides, dtypes, devices). Node names,
spellings and module paths are left out: they differ between torch versions and instances.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kforge_nb.targets.dataflow import Dataflow
from kforge_nb.targets.operators import Operator

__all__ = ["canonical_call", "fingerprint"]

# Names of the leading positional parameters, per canonical operator; where torch.nn.functional
# orders them differently (``softmax`` has ``_stacklevel``), the spelling's own entry comes first.
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "torch.nn.functional.softmax": ("input", "dim", "_stacklevel", "dtype"),
    "torch.nn.functional.log_softmax": ("input", "dim", "_stacklevel", "dtype"),
    "softmax": ("input", "dim", "dtype"),
    "log_softmax": ("input", "dim", "dtype"),
    "mean": ("input", "dim", "keepdim"),
    "sum": ("input", "dim", "keepdim"),
    "amax": ("input", "dim", "keepdim"),
    "amin": ("input", "dim", "keepdim"),
    "logsumexp": ("input", "dim", "keepdim"),
    "add": ("input", "other"),
    "sub": ("input", "other"),
    "mul": ("input", "other"),
    "div": ("input", "other"),
    "pow": ("input", "exponent"),
    "clamp": ("input", "min", "max"),
    "where": ("condition", "input", "other"),
    "masked_fill": ("input", "mask", "value"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "gelu": ("input",),
    "cat": ("tensors", "dim"),
    "linear": ("input", "weight", "bias"),
    "transpose": ("input", "dim0", "dim1"),
    "unsqueeze": ("input", "dim"),
}
_RENAMED = {
    "axis": "dim",
    "self": "input",
    "keepdims": "keepdim",
    "x": "input",
    "out_dtype": "dtype",
}
_DEFAULTS: dict[str, Any] = {
    "keepdim": False,
    "inplace": False,
    "dtype": None,
    "_stacklevel": 3,
    "alpha": 1,
    "approximate": "none",
    "rounding_mode": None,
    "training": False,
}
_LAYOUT_ONLY = {"non_blocking", "copy"}


def fingerprint(
    flow: Dataflow,
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
) -> str:
    """sha256 (hex) of the canonical form of these nodes with their variant."""
    names = {node: f"in{i}" for i, node in enumerate(inputs)}
    rows: list[Any] = [[_spec(flow, n) for n in inputs]]
    for node in nodes:
        at = flow.index[node]
        source = flow.stands_for(at)
        if source is not None:
            names[node] = names[source]
            continue
        names[node] = f"v{len(rows)}"
        name, arguments = canonical_call(node, flow.operators[at], names)
        rows.append([name, arguments, _spec(flow, node)])
    rows.append([names[n] for n in outputs])
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def canonical_call(
    node: fx.Node, op: Operator, names: dict[fx.Node, str]
) -> tuple[str, dict[str, Any]]:
    """Canonical operator (``add``, in place ``add_``) and its arguments by parameter name."""
    label = f"{op.name}_" if op.in_place else op.name
    if op.name == "cast":
        # The result's dtype is in the spec; how it was spelled does not matter.
        fmt = node.kwargs.get("memory_format")
        given = {} if fmt is None else {"memory_format": str(fmt)}
        return label, {"input": _plain(node.args[0], names), **given}
    home = getattr(node.target, "__module__", "") or ""
    spelled = f"{home}.{op.name}"
    order = _PARAMETERS.get(spelled) or _PARAMETERS.get(op.name, ())
    found: dict[str, Any] = {}
    args = list(node.args)
    if op.name in ("permute", "view", "reshape", "expand", "mean", "sum") and len(args) > 2:
        args = _gather_sizes(op.name, args)
    for i, value in enumerate(args):
        found[order[i] if i < len(order) else f"arg{i}"] = value
    for key, value in node.kwargs.items():
        found[_RENAMED.get(key, key)] = value
    kept = {
        key: _plain(value, names)
        for key, value in found.items()
        if key not in _LAYOUT_ONLY and not (key in _DEFAULTS and value == _DEFAULTS[key])
    }
    return label, kept


def _gather_sizes(name: str, args: list[Any]) -> list[Any]:
    """``x.view(2, 3)`` and ``x.view((2, 3))`` are the same call."""
    if name in ("mean", "sum") or not all(isinstance(a, int) for a in args[1:]):
        return args
    return [args[0], tuple(args[1:])]


def _plain(value: Any, names: dict[fx.Node, str]) -> Any:
    if isinstance(value, fx.Node):
        return {"node": names[value]}
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return {"number": repr(float(value)) if isinstance(value, float) else repr(value)}
    if isinstance(value, slice):
        return {"slice": [_plain(v, names) for v in (value.start, value.stop, value.step)]}
    if isinstance(value, list | tuple | torch.Size):
        return [_plain(v, names) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v, names) for k, v in value.items()}
    return {"other": str(value)}


def _spec(flow: Dataflow, node: fx.Node) -> Any:
    spec = flow.specs[flow.index[node]]
    if spec is None:
        return None
    return [list(spec.shape), list(spec.stride), spec.dtype, spec.device]
