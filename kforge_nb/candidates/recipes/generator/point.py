"""Element-wise operators of ATen, lowered to the operations that the emitter can print."""

from __future__ import annotations

import math
from typing import Any

import torch

from kforge_nb.candidates.recipes.generator.ir import Const, Iota, Node, Point, Unsupported
from kforge_nb.candidates.recipes.generator.lower import Call, Handler, cast, number, point
from kforge_nb.candidates.recipes.quirks import gelu_loses_infinity

__all__ = ["TABLE"]

_UNARY = (
    "abs", "neg", "sign", "relu", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "expm1",
    "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf", "erfc", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "floor", "ceil", "round", "trunc",
)  # fmt: skip
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_BINARY = {"mul": "*", "maximum": "maximum", "minimum": "minimum", "atan2": "atan2", "fmod": "fmod"}


def _common(*values: Any) -> str:
    """The dtype that a comparison of these values happens in."""
    tensors = [
        torch.empty((1,) * len(v.shape), dtype=getattr(torch, v.dtype), device="meta")
        if isinstance(v, Node)
        else v
        for v in values
    ]
    return str(torch.result_type(*tensors)).removeprefix("torch.")


def _unary(call: Call) -> Node:
    return point(call.name, call.dtype, call.shape, call.args[0])


def _binary(call: Call) -> Node:
    return point(_BINARY[call.name], call.dtype, call.shape, call.args[0], call.args[1])


def _add(call: Call) -> Node:
    left, right = call.args[0], call.args[1]
    alpha = call.arg(2, "alpha", 1)
    if call.name == "rsub":
        left, right = right, left
    if alpha != 1:
        scaled = left if call.name == "rsub" else right
        shape = scaled.shape if isinstance(scaled, Node) else ()
        product = point("*", call.dtype, shape, scaled, alpha)
        left, right = (product, right) if call.name == "rsub" else (left, product)
    return point("+" if call.name == "add" else "-", call.dtype, call.shape, left, right)


def _div(call: Call) -> Node:
    mode = call.arg(2, "rounding_mode") if call.name == "div" else "floor"
    if mode is None and isinstance(call.args[1], int | float) and call.args[1] != 0:
        mantissa, _ = math.frexp(abs(float(call.args[1])))
        if mantissa == 0.5:  # a power of two: multiplying is exact
            return point("*", call.dtype, call.shape, call.args[0], 1.0 / float(call.args[1]))
    op = {None: "/", "floor": "floordiv", "trunc": "truncdiv"}[mode]
    return point(op, call.dtype, call.shape, call.args[0], call.args[1])


def _compare(call: Call) -> Node:
    of = _common(call.args[0], call.args[1])
    return point(_COMPARE[call.name], "bool", call.shape, call.args[0], call.args[1], of=of)


def _truth(value: Any) -> Node:
    node = number(value, "bool")
    return node if node.dtype == "bool" else point("!=", "bool", node.shape, node, 0, of=node.dtype)


def _logical(call: Call) -> Node:
    left, right = _truth(call.args[0]), _truth(call.args[1])
    return point(_LOGICAL[call.name], "bool", call.shape, left, right)


def _bitwise(call: Call) -> Node:
    if call.dtype == "bool":
        op = {"&": "and", "|": "or", "^": "xor"}[_BITWISE[call.name]]
        return point(op, "bool", call.shape, call.args[0], call.args[1])
    return point(_BITWISE[call.name], call.dtype, call.shape, call.args[0], call.args[1])


def _not(call: Call) -> Node:
    if call.name == "bitwise_not" and call.dtype != "bool":
        return point("~", call.dtype, call.shape, call.args[0])
    return point("not", "bool", call.shape, _truth(call.args[0]))


def _where(call: Call) -> Node:
    condition = _truth(call.args[0])
    left, right = (cast(number(a, call.dtype), call.dtype) for a in call.args[1:3])
    return _choose(call.dtype, call.shape, condition, left, right)


def _choose(dtype: str, shape: tuple[int, ...], condition: Node, yes: Node, no: Node) -> Node:
    return Point(shape, dtype, "where", (condition, yes, no))


def _clamp(call: Call) -> Node:
    value = cast(number(call.args[0], call.dtype), call.dtype)
    low, high = call.arg(1, "min"), call.arg(2, "max")
    if call.name == "clamp_max":
        low, high = None, call.arg(1, "max")
    if low is not None:
        value = point("clamp_min", call.dtype, call.shape, value, low)
    if high is not None:
        value = point("clamp_max", call.dtype, call.shape, value, high)
    return value


def _pow(call: Call) -> Node:
    base, power = call.args[0], call.args[1]
    if isinstance(power, int | float) and isinstance(base, Node):
        known = _known_power(call, base, float(power))
        if known is not None:
            return known
    return point("pow", call.dtype, call.shape, base, power)


def _known_power(call: Call, base: Node, power: float) -> Node | None:
    square = point("*", call.dtype, call.shape, base, base)
    if power == 2:
        return square
    if power == 3:
        return point("*", call.dtype, call.shape, square, base)
    if power == 4:
        return point("*", call.dtype, call.shape, square, square)
    ops = {1.0: "copy", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if power in ops:
        return point(ops[power], call.dtype, call.shape, base)
    return None


def _test(call: Call) -> Node:
    source = call.args[0]
    return point(call.name, "bool", call.shape, source, of=source.dtype)


def _silu(call: Call) -> Node:
    gate = point("sigmoid", call.dtype, call.shape, call.args[0])
    return point("*", call.dtype, call.shape, call.args[0], gate)


def _gelu(call: Call) -> Node:
    if call.arg(1, "approximate", "none") == "tanh":
        op = "gelu_tanh"
    else:
        loses = call.source is not None and gelu_loses_infinity(call.source)
        op = "gelu_finite" if loses else "gelu_erf"
    return point(op, call.dtype, call.shape, call.args[0])


def _softplus(call: Call) -> Node:
    dtype, shape, x = call.dtype, call.shape, call.args[0]
    beta, threshold = call.arg(1, "beta", 1), call.arg(2, "threshold", 20)
    scaled = x if beta == 1 else point("*", dtype, shape, x, beta)
    soft = point("log1p", dtype, shape, point("exp", dtype, shape, scaled))
    if beta != 1:
        soft = point("/", dtype, shape, soft, beta)
    beyond = point(">", "bool", shape, scaled, threshold, of=dtype)
    return _choose(dtype, shape, beyond, cast(x, dtype), soft)


def _mish(call: Call) -> Node:
    gate = point("tanh", call.dtype, call.shape, _softplus(call))
    return point("*", call.dtype, call.shape, call.args[0], gate)


def _hard(call: Call) -> Node:
    dtype, shape, x = call.dtype, call.shape, call.args[0]
    shifted = point("clamp_min", dtype, shape, point("+", dtype, shape, x, 3), 0)
    gate = point("*", dtype, shape, point("clamp_max", dtype, shape, shifted, 6), 1 / 6)
    return gate if call.name == "hardsigmoid" else point("*", dtype, shape, x, gate)


def _log_sigmoid(call: Call) -> tuple[Node, None]:
    dtype, shape, x = call.dtype, call.shape, call.args[0]
    tail = point("exp", dtype, shape, point("neg", dtype, shape, point("abs", dtype, shape, x)))
    low = point("minimum", dtype, shape, x, 0)
    return point("-", dtype, shape, low, point("log1p", dtype, shape, tail)), None


def _elu(call: Call) -> Node:
    dtype, shape, x = call.dtype, call.shape, call.args[0]
    alpha, scale = float(call.arg(1, "alpha", 1)), float(call.arg(2, "scale", 1))
    inner = float(call.arg(3, "input_scale", 1))
    low = point("expm1", dtype, shape, point("*", dtype, shape, x, inner))
    positive = point(">", "bool", shape, x, 0, of=dtype)
    high = point("*", dtype, shape, x, scale)
    return _choose(dtype, shape, positive, high, point("*", dtype, shape, low, alpha * scale))


def _leaky(call: Call) -> Node:
    dtype, shape, x = call.dtype, call.shape, call.args[0]
    positive = point(">", "bool", shape, x, 0, of=dtype)
    low = point("*", dtype, shape, x, float(call.arg(1, "negative_slope", 0.01)))
    return _choose(dtype, shape, positive, cast(x, dtype), low)


def _remainder(call: Call) -> Node:
    return point("remainder", call.dtype, call.shape, call.args[0], call.args[1])


def _full(call: Call) -> Node:
    position = {"full": 1, "full_like": 1, "fill": 1, "scalar_tensor": 0}[call.name]
    value = call.args[position]
    if isinstance(value, Node):
        return point("copy", call.dtype, call.shape, value)
    return Const(call.shape, call.dtype, value)


def _filled(value: float) -> Handler:
    return lambda call: Const(call.shape, call.dtype, value)


def _arange(call: Call) -> Node:
    numbers = [a for a in call.args if isinstance(a, int) and not isinstance(a, bool)]
    if call.name == "iota":
        start, step = call.kwargs.get("start", 0), call.kwargs.get("step", 1)
    elif call.overload == "default":
        start, step = 0, 1
    else:
        start, step = numbers[0], numbers[2] if len(numbers) > 2 else 1
    if not isinstance(start, int) or not isinstance(step, int):
        raise Unsupported("arange with steps that are not integers")
    return cast(Iota(call.shape, "int64", start, step), call.dtype)


TABLE: dict[str, Handler] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_COMPARE, _compare),
    **dict.fromkeys(_LOGICAL, _logical),
    **dict.fromkeys(_BITWISE, _bitwise),
    **dict.fromkeys(("add", "sub", "rsub"), _add),
    **dict.fromkeys(("div", "floor_divide"), _div),
    **dict.fromkeys(("logical_not", "bitwise_not"), _not),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh"), _clamp),
    **dict.fromkeys(("isnan", "isinf", "isfinite"), _test),
    **dict.fromkeys(("hardswish", "hardsigmoid"), _hard),
    **dict.fromkeys(("full", "full_like", "fill", "scalar_tensor"), _full),
    **dict.fromkeys(("zeros", "zeros_like"), _filled(0)),
    **dict.fromkeys(("ones", "ones_like"), _filled(1)),
    **dict.fromkeys(("arange", "iota"), _arange),
    "where": _where,
    "pow": _pow,
    "silu": _silu,
    "gelu": _gelu,
    "softplus": _softplus,
    "mish": _mish,
    "log_sigmoid_forward": _log_sigmoid,
    "elu": _elu,
    "leaky_relu": _leaky,
    "remainder": _remainder,
}
