"""The many spellings of an operator in an FX graph, brought to one name with named arguments.

``x.softmax(-1)``, ``torch.softmax(x, -1)``, ``F.softmax(x, dim=-1)`` and
``aten.softmax.int(x, -1)`` are the same thing to a recipe. What is not in these tables is
unknown, and an unknown operator means that no tuned family takes the target.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

__all__ = ["Call", "read_call"]

_REQUIRED = object()

Call = tuple[str, dict[str, Any]]
"""Canonical name and arguments by name (fx nodes stay fx nodes)."""

_BINARY = {"input": _REQUIRED, "other": _REQUIRED}
_UNARY = {"input": _REQUIRED}

# Canonical name -> parameters in the order of torch's own builtin, with defaults.
_BUILTIN: dict[str, dict[str, Any]] = {
    "add": {**_BINARY, "alpha": 1},
    "sub": {**_BINARY, "alpha": 1},
    "mul": _BINARY,
    "div": {**_BINARY, "rounding_mode": None},
    "pow": {"input": _REQUIRED, "exponent": _REQUIRED},
    "square": _UNARY,
    "neg": _UNARY,
    "rsqrt": _UNARY,
    "sqrt": _UNARY,
    "exp": _UNARY,
    "tanh": _UNARY,
    "sigmoid": _UNARY,
    "reciprocal": _UNARY,
    "relu": {"input": _REQUIRED, "inplace": False},
    "silu": {"input": _REQUIRED, "inplace": False},
    "gelu": {"input": _REQUIRED, "approximate": "none"},
    "softmax": {"input": _REQUIRED, "dim": _REQUIRED, "dtype": None},
    "log_softmax": {"input": _REQUIRED, "dim": _REQUIRED, "dtype": None},
    "mean": {"input": _REQUIRED, "dim": _REQUIRED, "keepdim": False, "dtype": None},
    "rms_norm": {
        "input": _REQUIRED,
        "normalized_shape": _REQUIRED,
        "weight": None,
        "eps": None,
    },
    "layer_norm": {
        "input": _REQUIRED,
        "normalized_shape": _REQUIRED,
        "weight": None,
        "bias": None,
        "eps": 1e-5,
        "cudnn_enable": True,
    },
    "group_norm": {
        "input": _REQUIRED,
        "num_groups": _REQUIRED,
        "weight": None,
        "bias": None,
        "eps": 1e-5,
        "cudnn_enabled": True,
    },
    "batch_norm": {
        "input": _REQUIRED,
        "weight": _REQUIRED,
        "bias": _REQUIRED,
        "running_mean": _REQUIRED,
        "running_var": _REQUIRED,
        "training": _REQUIRED,
        "momentum": _REQUIRED,
        "eps": _REQUIRED,
        "cudnn_enabled": True,
    },
    "cat": {"tensors": _REQUIRED, "dim": 0},
    "getitem": {"input": _REQUIRED, "index": _REQUIRED},
    "avg_pool2d": {
        "input": _REQUIRED,
        "kernel_size": _REQUIRED,
        "stride": None,
        "padding": 0,
        "ceil_mode": False,
        "count_include_pad": True,
        "divisor_override": None,
    },
    "max_pool2d": {
        "input": _REQUIRED,
        "kernel_size": _REQUIRED,
        "stride": None,
        "padding": 0,
        "dilation": 1,
        "ceil_mode": False,
    },
    "adaptive_avg_pool2d": {"input": _REQUIRED, "output_size": _REQUIRED},
    "conv1d": {
        "input": _REQUIRED,
        "weight": _REQUIRED,
        "bias": None,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
    },
    "embedding": {
        "weight": _REQUIRED,
        "input": _REQUIRED,
        "padding_idx": -1,
        "scale_grad_by_freq": False,
        "sparse": False,
        "max_norm": None,
    },
    "type_as": _BINARY,
    "contiguous": {"input": _REQUIRED, "memory_format": torch.contiguous_format},
}
# Where torch.nn.functional's order or defaults differ from the builtin's.
_FUNCTIONAL: dict[str, dict[str, Any]] = {
    "softmax": {"input": _REQUIRED, "dim": None, "_stacklevel": 3, "dtype": None},
    "log_softmax": {"input": _REQUIRED, "dim": None, "_stacklevel": 3, "dtype": None},
    "batch_norm": {
        "input": _REQUIRED,
        "running_mean": _REQUIRED,
        "running_var": _REQUIRED,
        "weight": None,
        "bias": None,
        "training": False,
        "momentum": 0.1,
        "eps": 1e-5,
    },
    "embedding": {
        "input": _REQUIRED,
        "weight": _REQUIRED,
        "padding_idx": None,
        "max_norm": None,
        "norm_type": 2.0,
        "scale_grad_by_freq": False,
        "sparse": False,
    },
    "dropout": {"input": _REQUIRED, "p": 0.5, "training": True, "inplace": False},
    "max_pool2d": {**_BUILTIN["max_pool2d"], "return_indices": False},
    "cross_entropy": {
        "input": _REQUIRED,
        "target": _REQUIRED,
        "weight": None,
        "size_average": None,
        "ignore_index": -100,
        "reduce": None,
        "reduction": "mean",
        "label_smoothing": 0.0,
    },
}
_SPELLINGS: dict[str, str] = {
    "iadd": "add",
    "add_": "add",
    "__add__": "add",
    "__radd__": "add",
    "isub": "sub",
    "sub_": "sub",
    "subtract": "sub",
    "imul": "mul",
    "mul_": "mul",
    "multiply": "mul",
    "truediv": "div",
    "itruediv": "div",
    "true_divide": "div",
    "divide": "div",
    "div_": "div",
    "negative": "neg",
    "relu_": "relu",
    "silu_": "silu",
    "_softmax": "aten_softmax",
    "_log_softmax": "aten_log_softmax",
}
IN_PLACE_NAMES = frozenset(
    {"iadd", "add_", "isub", "sub_", "imul", "mul_", "itruediv", "div_", "relu_", "silu_"},
)
_DTYPE_METHODS = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
_VIEW_NAMES = frozenset(
    {"unsqueeze", "squeeze", "view", "reshape", "expand", "expand_as", "transpose", "permute"}
    | {"flatten", "slice", "select", "narrow", "movedim", "swapaxes", "t", "mT", "unflatten"}
    | {"alias", "detach", "view_as", "chunk", "split", "unbind"},
)
_FUNCTION_OBJECTS: dict[Any, str] = {
    F.max_pool2d: "max_pool2d",
    F.adaptive_avg_pool2d: "adaptive_avg_pool2d",
}


def _bind(table: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arguments by name with defaults, or None where they do not fit the table."""
    names = list(table)
    if len(args) > len(names):
        return None
    bound = dict(table)
    bound.update(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in table or names.index(name) < len(args):
            return None
        bound[name] = value
    return None if any(v is _REQUIRED for v in bound.values()) else bound


def _spelled(node: fx.Node) -> tuple[str, str]:
    """``(style, name)``: style is ``functional``, ``method`` or ``builtin``."""
    if node.op == "call_method":
        return "method", str(node.target)
    target = node.target
    if target in _FUNCTION_OBJECTS:
        return "functional", _FUNCTION_OBJECTS[target]
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace != "aten":
            return "builtin", "?"
        return "builtin", str(target.overloadpacket.__name__)
    name = getattr(target, "__name__", "?")
    if getattr(target, "__module__", None) == "torch.nn.functional":
        return "functional", name
    known = getattr(torch, name, None), getattr(operator, name, None), getattr(F, name, None)
    if any(target is k for k in known if k is not None):
        return "builtin", name
    return "builtin", "?"


def _is_device(value: Any, device: str) -> bool:
    """Whether a value of a graph names this device; ``cuda`` alone stands for any of them."""
    if not isinstance(value, str | torch.device):
        return False
    found = torch.device(value)
    return str(found) == device or (found.index is None and found.type == device.partition(":")[0])


def _cast_of(style: str, name: str, node: fx.Node, device: str) -> Call | None:
    """``to``, ``float``, ``half``, ``bfloat16`` and ``aten._to_copy`` as a ``cast``."""
    if style == "method" and name in _DTYPE_METHODS and len(node.args) == 1 and not node.kwargs:
        return "cast", {"input": node.args[0], "dtype": _DTYPE_METHODS[name]}
    if name not in ("to", "_to_copy", "type"):
        return None
    extras = [*node.args[1:], *node.kwargs.values()]
    dtypes = [v for v in extras if isinstance(v, torch.dtype)]
    others = [v for v in extras if v not in (None, False) and not isinstance(v, torch.dtype)]
    others = [v for v in others if not _is_device(v, device)]
    if len(dtypes) != 1 or others or set(node.kwargs) - {"dtype", "device", "copy"}:
        return None
    return "cast", {"input": node.args[0], "dtype": dtypes[0]}


def _view_of(name: str, node: fx.Node) -> Call | None:
    """A view operator; what it does is found by running it on meta tensors."""
    if name not in _VIEW_NAMES:
        return None
    return "view", {"input": node.args[0]} if node.args else {}


def read_call(node: fx.Node, device: str = "cpu") -> Call | None:
    """The canonical name and arguments of a call node, or None where it is unknown.

    ``device`` is where the tensors are: a cast may name it. In-place spellings come back under the
    plain name with ``inplace=True``. Views come back as ``("view", {"input": ...})``.
    """
    if node.op not in ("call_function", "call_method"):
        return None
    style, name = _spelled(node)
    cast = _cast_of(style, name, node, device)
    if cast is not None:
        return cast
    view = _view_of(name, node)
    if view is not None:
        return view
    plain = _SPELLINGS.get(name, name)
    table = _FUNCTIONAL.get(plain) if style == "functional" else None
    table = table or _BUILTIN.get(plain)
    if table is None:
        return None
    bound = _bind(table, node.args, dict(node.kwargs))
    if bound is None:
        return None
    if name in IN_PLACE_NAMES:
        bound["inplace"] = True
    bound.pop("_stacklevel", None)
    return plain, bound
