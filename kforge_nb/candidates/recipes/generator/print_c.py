"""Print terms as C expressions."""

from __future__ import annotations

import math

from kforge_nb.candidates.recipes.generator import mathlib
from kforge_nb.candidates.recipes.generator.ir import Unsupported
from kforge_nb.candidates.recipes.generator.terms import Term

__all__ = ["C_TYPES", "constant", "load", "operation", "store"]

C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t",
    "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t",
    "uint8": "uint8_t", "bool": "uint8_t",
}  # fmt: skip
_INFIX = {"+", "-", "*", "==", "!=", "<", "<=", ">", ">=", "&", "|", "^"}
_LIBM = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "erfc", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "sqrt", "floor", "ceil", "trunc", "pow",
    "fmod", "atan2",
}  # fmt: skip
_LOGIC = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "!{0}"}
_ANY = {
    "neg": "-{0}",
    "~": "~{0}",
    "where": "{0} ? {1} : {2}",
    "relu": "{0} < 0 ? 0 : {0}",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
    "sign": "({0} > 0) - ({0} < 0)",
}
_FLOATING = {
    "/": "{0} / {1}",
    "reciprocal": "1 / {0}",
    "rsqrt": "1 / {sqrt}({0})",
    "abs": "{fabs}({0})",
    "round": "{rint}({0})",
    "maximum": "({0} > {1} || {0} != {0}) ? {0} : {1}",
    "minimum": "({0} < {1} || {0} != {0}) ? {0} : {1}",
    "isnan": "{0} != {0}",
    "isinf": "{fabs}({0}) == {inf}",
    "isfinite": "{fabs}({0}) < {inf}",
    "floordiv": "{floor}({0} / {1})",
    "truncdiv": "{trunc}({0} / {1})",
    "remainder": "{0} - {floor}({0} / {1}) * {1}",
    "exp_flush": "{exp}({0})",
    "sigmoid": "1 / (1 + {exp}(-{0}))",
    "gelu_erf": "{0} * (1 + {erf}({0} * 0.70710678118654752440)) / 2",
    "gelu_tanh": "{0} / (1 + {exp}({0} * -1.5957691216057308 * (1 + {0} * {0} * 0.044715)))",
}
_INTEGER = {
    "abs": "{0} < 0 ? -{0} : {0}",
    "maximum": "{0} > {1} ? {0} : {1}",
    "minimum": "{0} < {1} ? {0} : {1}",
    "truncdiv": "{1} == 0 ? 0 : {0} / {1}",
    "floordiv": "{1} == 0 ? 0 : {0} / {1} - (({0} % {1} != 0) & (({0} < 0) != ({1} < 0)))",
    "remainder": "{1} == 0 ? 0 : ({0} % {1} + {1}) % {1}",
    "fmod": "{1} == 0 ? 0 : {0} % {1}",
    "isnan": "false",
    "isinf": "false",
    "isfinite": "true",
}


def constant(term: Term) -> str:
    """A literal of the term's type."""
    value = term.data
    if term.ctype == "bool":
        return "true" if value else "false"
    if term.ctype == "int64_t":
        number = int(value)  # type: ignore[call-overload]
        return f"INT64_C({number})" if number > -(2**63) else "(-INT64_C(9223372036854775807) - 1)"
    return _floating(float(value), "f" if term.ctype == "float" else "")  # type: ignore[arg-type]


def _floating(number: float, suffix: str) -> str:
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    largest = 3.4028235677973366e38 if suffix else math.inf
    if abs(number) >= largest:
        return f"({'-' if number < 0 else ''}__builtin_inf{suffix}())"
    text = f"{number!r}{suffix}"
    return f"({text})" if math.copysign(1, number) < 0 else text


def load(name: str, dtype: str, index: str, needs: set[str]) -> str:
    """One element of an input, converted to its compute type."""
    element = f"{name}[{index}]"
    if dtype in ("bfloat16", "float16"):
        function = "from_bf16" if dtype == "bfloat16" else "from_f16"
        needs.add(function)
        return f"kf_{function}({element})"
    if dtype == "bool":
        return f"{element} != 0"
    return element if dtype in ("float32", "float64", "int64") else f"(int64_t){element}"


def store(value: str, dtype: str, needs: set[str]) -> str:
    """A value converted to what an output of ``dtype`` holds."""
    if dtype in ("bfloat16", "float16"):
        function = "to_bf16" if dtype == "bfloat16" else "to_f16"
        needs.add(function)
        return f"kf_{function}((float){value})"
    return f"({C_TYPES[dtype]}){value}"


def operation(term: Term, args: list[str], needs: set[str]) -> str:
    """The C expression of an operation; names of math functions it uses go to ``needs``.

    Raises:
        Unsupported: there is no such operation for the type of its arguments.
    """
    op, kind, target = term.name, term.args[0].ctype if term.args else "", term.ctype
    if ":" in op:
        return _conversion(op, args[0], target, needs)
    if op in _INFIX:
        return f"{args[0]} {op} {args[1]}"
    if op in _LOGIC:
        return _LOGIC[op].format(*args)
    if kind == "float" and mathlib.has(op) and op not in ("sqrt",):
        needs.add(op)
        return f"kf_{op}({args[0]})"
    if op in _ANY:
        return _ANY[op].format(*args)
    if kind == "int64_t" or kind == "bool":
        return _integer(op, args, kind)
    return _function(op, args, kind)


def _integer(op: str, args: list[str], kind: str) -> str:
    if op not in _INTEGER or (kind == "bool" and op not in ("isnan", "isinf", "isfinite")):
        raise Unsupported(f"the operator {op} on {kind.removesuffix('_t')} values")
    return _INTEGER[op].format(*args)


def _function(op: str, args: list[str], kind: str) -> str:
    suffix = "f" if kind == "float" else ""
    names = {n: f"__builtin_{n}{suffix}" for n in ("sqrt", "fabs", "rint", "floor", "trunc")}
    names |= {n: f"__builtin_{n}{suffix}" for n in ("exp", "erf")}
    names["inf"] = f"__builtin_inf{suffix}()"
    if op in _FLOATING:
        return _FLOATING[op].format(*args, **names)
    if op in _LIBM:
        return f"__builtin_{op}{suffix}({', '.join(args)})"
    raise Unsupported(f"the operator {op}")


def _conversion(op: str, value: str, target: str, needs: set[str]) -> str:
    how, _, to = op.partition(":")
    if how == "round":
        pair = ("from_bf16", "to_bf16") if to == "bfloat16" else ("from_f16", "to_f16")
        needs.update(pair)
        return f"kf_{pair[0]}(kf_{pair[1]}({value}))"
    if how == "narrow":
        return f"({target})({to})(int64_t){value}"
    return f"{value} != 0" if to == "bool" else f"({to}){value}"
