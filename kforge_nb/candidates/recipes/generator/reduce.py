"""Reductions and normalisations of ATen, lowered to reductions plus element-wise arithmetic."""

from __future__ import annotations

import math
from typing import Any

from kforge_nb.candidates.recipes.generator.ir import Node, Reduce, ReduceKind, Unsupported, View
from kforge_nb.candidates.recipes.generator.lower import Call, Handler, cast, point
from kforge_nb.candidates.recipes.generator.views import reshape, unsqueeze_at

__all__ = ["TABLE"]


def _dims(value: Any, ndim: int) -> tuple[int, ...]:
    if value is None or value == []:
        return tuple(range(ndim))
    listed = [value] if isinstance(value, int) else list(value)
    return tuple(sorted(dim % ndim if ndim else 0 for dim in listed)) if ndim else ()


def reduced(kind: ReduceKind, source: Node, dims: tuple[int, ...], *, keep: bool) -> Node:
    """A reduction, with the reduced dimensions kept as size 1 if ``keep``."""
    shape = tuple(size for dim, size in enumerate(source.shape) if dim not in dims)
    if all(source.shape[dim] == 1 for dim in dims) and kind != "m2":
        node: Node = View(shape, source.dtype, source, _lift(dims, len(source.shape)))
    else:
        node = Reduce(shape, source.dtype, kind, source, dims)
    for dim in dims if keep else ():
        node = unsqueeze_at(node, dim)
    return node


def _lift(dims: tuple[int, ...], ndim: int) -> Any:
    """Index map that puts index 0 at the reduced dimensions (all of size 1)."""
    from kforge_nb.candidates.recipes.generator.index import Ix

    def lift(index: tuple[Ix, ...]) -> tuple[Ix, ...]:
        rest = iter(index)
        return tuple(Ix() if dim in dims else next(rest) for dim in range(ndim))

    return lift


def _float(call: Call, node: Node) -> Node:
    """The source in the dtype that the reduction is computed in."""
    return cast(node, "float64" if call.dtype == "float64" else "float32")


def _sum(call: Call) -> Node:
    source = cast(call.args[0], call.dtype)
    dims = _dims(call.arg(1, "dim"), len(source.shape)) if call.overload != "default" else None
    dims = tuple(range(len(source.shape))) if dims is None else dims
    kind: ReduceKind = {"sum": "sum", "mean": "mean", "prod": "prod"}[call.name]  # type: ignore[assignment]
    return reduced(kind, source, dims, keep=bool(call.arg(2, "keepdim", False)))


def _extreme(call: Call) -> Node:
    if call.overload not in ("default", ""):
        raise Unsupported(f"{call.name}.{call.overload}, which also returns positions")
    source = call.args[0]
    dims = _dims(call.arg(1, "dim"), len(source.shape))
    low = call.name in ("amin", "min")
    kind: ReduceKind = "minnan" if low else "maxnan"
    return reduced(kind, source, dims, keep=bool(call.arg(2, "keepdim", False)))


def _logical(call: Call) -> Node:
    source = call.args[0]
    truth = point("!=", "bool", source.shape, source, 0, of=source.dtype)
    dims = _dims(call.arg(1, "dim"), len(source.shape))
    kind: ReduceKind = "any" if call.name == "any" else "all"
    return cast(reduced(kind, truth, dims, keep=bool(call.arg(2, "keepdim", False))), call.dtype)


def moments(call: Call, source: Node, dims: tuple[int, ...]) -> tuple[Node, Node]:
    """Mean and sum of squared distances to it, both with the dimensions kept.

    The mean is taken of distances to the row's first element, so that a row without spread, or with
    a mean far above it, loses nothing.
    """
    pivot = _first(source, dims)
    shifted = point("-", source.dtype, source.shape, source, pivot)
    offset = reduced("mean", shifted, dims, keep=True)
    mean = point("+", source.dtype, offset.shape, pivot, offset)
    if call.choices.moments == "chunked":
        return mean, reduced("m2", shifted, dims, keep=True)
    centred = point("-", source.dtype, source.shape, source, mean)
    square = point("*", source.dtype, source.shape, centred, centred)
    return mean, reduced("sum", square, dims, keep=True)


def _first(source: Node, dims: tuple[int, ...]) -> Node:
    """The first element along ``dims``, which are kept with size 1."""
    shape = tuple(1 if dim in dims else size for dim, size in enumerate(source.shape))
    return View(shape, source.dtype, source, lambda index: index)


def _var(call: Call) -> Any:
    source = _float(call, call.args[0])
    dims = _dims(call.arg(1, "dim"), len(source.shape))
    if call.overload in ("", "default", "dim"):  # (x, unbiased) and (x, dim, unbiased, keepdim)
        raise Unsupported(f"{call.name}.{call.overload or 'default'}")
    correction = call.kwargs.get("correction")
    correction = 1 if correction is None else correction
    mean, squares = moments(call, source, dims)
    count = math.prod(source.shape[dim] for dim in dims) - correction
    scale = 1.0 / count if count > 0 else math.nan
    var = point("*", call.dtype, squares.shape, squares, scale)
    if not call.kwargs.get("keepdim", False):
        var, mean = reshape(var, call.shape), reshape(mean, call.shape)
    return (var, mean) if call.name == "var_mean" else var


def _softmax(call: Call) -> Node:
    x = cast(call.args[0], "float64" if call.dtype == "float64" else "float32")
    dims = _dims(call.args[1], len(x.shape))
    top = reduced("max", x, dims, keep=True)
    shifted = point("-", x.dtype, x.shape, x, top)
    powers = point("exp_flush", x.dtype, x.shape, shifted)
    if call.choices.softmax == "online":
        total = reduced("sumexp", x, dims, keep=True)
    else:
        total = reduced("sum", powers, dims, keep=True)
    if call.name == "_log_softmax":
        log = point("log", x.dtype, total.shape, total)
        return cast(point("-", x.dtype, x.shape, shifted, log), call.dtype)
    inverse = point("reciprocal", x.dtype, total.shape, total)
    return cast(point("*", x.dtype, x.shape, powers, inverse), call.dtype)


def _normalise(call: Call, x: Node, dims: tuple[int, ...], eps: float) -> tuple[Node, Node, Node]:
    """(x - mean) / sqrt(var + eps) with mean and reciprocal deviation."""
    mean, squares = moments(call, x, dims)
    count = math.prod(x.shape[dim] for dim in dims)
    var = point("*", x.dtype, squares.shape, squares, 1.0 / count)
    inverse = point("rsqrt", x.dtype, var.shape, point("+", x.dtype, var.shape, var, eps))
    centred = point("-", x.dtype, x.shape, x, mean)
    return point("*", x.dtype, x.shape, centred, inverse), mean, inverse


def _affine(normal: Node, weight: Node | None, bias: Node | None, dtype: str) -> Node:
    if weight is not None:
        normal = point("*", normal.dtype, normal.shape, normal, weight)
    if bias is not None:
        normal = point("+", normal.dtype, normal.shape, normal, bias)
    return cast(normal, dtype)


def _layer_norm(call: Call) -> tuple[Node, Node, Node]:
    x = _float(call, call.args[0])
    size, weight, bias, eps = call.args[1:5]
    dims = tuple(range(len(x.shape) - len(size), len(x.shape)))
    normal, mean, inverse = _normalise(call, x, dims, eps)
    return _affine(normal, weight, bias, call.dtype), mean, inverse


def _rms_norm(call: Call) -> tuple[Node, Node]:
    x = _float(call, call.args[0])
    size, weight, eps = call.arg(1, "normalized_shape"), call.arg(2, "weight"), call.arg(3, "eps")
    if eps is None:
        eps = {"float64": 2.0**-52, "float32": 2.0**-23}.get(call.dtype, 2.0**-7)
    dims = tuple(range(len(x.shape) - len(size), len(x.shape)))
    square = point("*", x.dtype, x.shape, x, x)
    mean = reduced("mean", square, dims, keep=True)
    inverse = point("rsqrt", x.dtype, mean.shape, point("+", x.dtype, mean.shape, mean, eps))
    return _affine(point("*", x.dtype, x.shape, x, inverse), weight, None, call.dtype), inverse


def _group_norm(call: Call) -> tuple[Node, Node, Node]:
    x = _float(call, call.args[0])
    weight, bias, batch, channels, spatial, groups, eps = call.args[1:8]
    grouped = reshape(x, (batch, groups, channels // groups, spatial))
    normal, mean, inverse = _normalise(call, grouped, (2, 3), eps)
    affine_shape = (1, groups, channels // groups, 1)
    weight = reshape(weight, affine_shape) if weight is not None else None
    bias = reshape(bias, affine_shape) if bias is not None else None
    result = reshape(_affine(normal, weight, bias, call.dtype), x.shape)
    return result, reshape(mean, (batch, groups)), reshape(inverse, (batch, groups))


def _batch_norm(call: Call) -> tuple[Node, None, None]:
    x = _float(call, call.args[0])
    weight, bias, mean, var = call.args[1:5]
    training = call.name == "native_batch_norm" and bool(call.args[5])
    if training or mean is None or var is None:
        raise Unsupported("batch norm in training")
    eps = call.args[-1]
    shape = (1, x.shape[1]) + (1,) * (len(x.shape) - 2)
    per_channel = [None if p is None else cast(reshape(p, shape), x.dtype) for p in
                   (weight, bias, mean, var)]  # fmt: skip
    weight, bias, mean, var = per_channel
    scale = point("rsqrt", x.dtype, shape, point("+", x.dtype, shape, var, eps))
    if weight is not None:
        scale = point("*", x.dtype, shape, scale, weight)
    centred = point("-", x.dtype, x.shape, x, mean)
    normal = point("*", x.dtype, x.shape, centred, scale)
    return _affine(normal, None, bias, call.dtype), None, None


def _vector_norm(call: Call) -> Node:
    source = _float(call, call.args[0])
    order = float(call.arg(1, "ord", 2))
    dims = _dims(call.arg(2, "dim"), len(source.shape))
    keep = bool(call.arg(3, "keepdim", False))
    size = point("abs", source.dtype, source.shape, source)
    if order == 2:
        square = point("*", source.dtype, source.shape, source, source)
        total = reduced("sum", square, dims, keep=keep)
        return cast(point("sqrt", source.dtype, total.shape, total), call.dtype)
    kinds: dict[float, ReduceKind] = {1.0: "sum", math.inf: "maxnan", -math.inf: "minnan"}
    if order not in kinds:
        raise Unsupported(f"a vector norm of order {order:g}")
    return cast(reduced(kinds[order], size, dims, keep=keep), call.dtype)


TABLE: dict[str, Handler] = {
    **dict.fromkeys(("sum", "mean", "prod"), _sum),
    **dict.fromkeys(("amax", "amin", "max", "min"), _extreme),
    **dict.fromkeys(("any", "all"), _logical),
    **dict.fromkeys(("var", "var_mean"), _var),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "native_group_norm": _group_norm,
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    "linalg_vector_norm": _vector_norm,
}
