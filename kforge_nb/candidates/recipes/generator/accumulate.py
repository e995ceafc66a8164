"""C text for the accumulators of a reduction: a total for the row, parts for vector loops."""

from __future__ import annotations

from kforge_nb.candidates.recipes.generator import print_c
from kforge_nb.candidates.recipes.generator.evaluate import Reduction

__all__ = [
    "add",
    "checks_nan",
    "clause",
    "combine",
    "finish",
    "initial",
    "is_special",
    "part_type",
    "start",
    "twin_kind",
]

_START = {
    "sum": "0", "mean": "0", "prod": "1", "any": "0", "all": "1",
    "max": "-{inf}", "min": "{inf}", "maxnan": "-{inf}", "minnan": "{inf}",
}  # fmt: skip
_CLAUSE = {
    "sum": "+", "mean": "+", "prod": "*", "any": "|", "all": "&",
    "max": "max", "min": "min", "maxnan": "max", "minnan": "min",
}  # fmt: skip
_LIMITS = {"max": "INT64_MIN", "maxnan": "INT64_MIN", "min": "INT64_MAX", "minnan": "INT64_MAX"}
_PRECISE = ("sum", "mean", "m2", "sumexp")


def _total_type(reduction: Reduction) -> str:
    """Sums of a row are collected in double, whatever the vector loops use."""
    ctype, kind = print_c.C_TYPES[reduction.node.dtype], reduction.node.kind
    if kind in ("any", "all"):
        return "int32_t"
    if ctype in ("float", "uint16_t"):
        return "double" if kind in _PRECISE else "float"
    return ctype if ctype == "double" else "int64_t"


def part_type(reduction: Reduction) -> str:
    """Type of the partial results inside a vector loop."""
    total = _total_type(reduction)
    return "float" if total == "double" and reduction.node.dtype != "float64" else total


def initial(reduction: Reduction) -> str:
    """The neutral element."""
    kind, total = reduction.node.kind, _total_type(reduction)
    if total == "int64_t" and kind in _LIMITS:
        return _LIMITS[kind]
    inf = "__builtin_inf()" if total == "double" else "__builtin_inff()"
    return _START.get(kind, "0").format(inf=inf)


def checks_nan(reduction: Reduction) -> bool:
    """Whether a NaN has to be looked for beside the maximum or minimum."""
    kinds = ("maxnan", "minnan")
    return reduction.node.kind in kinds and _total_type(reduction) in ("float", "double")


def is_special(reduction: Reduction) -> bool:
    """Whether the reduction has loops of its own (moments, sum of powers)."""
    return reduction.node.kind in ("m2", "sumexp")


def twin_kind(reduction: Reduction) -> str:
    """The simple reduction that a special one computes on the way."""
    return {"m2": "mean", "sumexp": "max"}[reduction.node.kind]


def clause(reduction: Reduction) -> str:
    """Operator of the OpenMP reduction clause."""
    return _CLAUSE[reduction.node.kind]


def start(reduction: Reduction) -> list[str]:
    """Declarations of the totals of a row."""
    number, total = reduction.number, _total_type(reduction)
    lines = [f"{total} total{number} = {initial(reduction)};"]
    if checks_nan(reduction):
        lines.append(f"int32_t nan{number} = 0;")
    if reduction.node.kind == "m2":
        lines.append(f"double mean{number} = 0, count{number} = 0;")
    if reduction.node.kind == "sumexp":
        lines.append(f"float top{number} = -__builtin_inff();")
    return lines


def finish(reduction: Reduction) -> str:
    """Declaration of the reduction's result, in the type that the row computes with."""
    number, node = reduction.number, reduction.node
    total = _total_type(reduction)
    ctype = "bool" if total == "int32_t" else total
    if node.dtype != "float64" and total == "double":
        ctype = "float"
    value = f"total{number}"
    if node.kind == "mean":
        value = f"{value} / {node.count}.0"
    if checks_nan(reduction):
        value = f'nan{number} ? __builtin_nan("") : {value}'
    return f"const {ctype} red{number} = ({ctype})({value});"


def add(reduction: Reduction, value: str, lane: str = "") -> list[str]:
    """Statements that add a value to the partial result of one lane."""
    kind, part = reduction.node.kind, f"part{reduction.number}{lane}"
    if kind in ("sum", "mean"):
        return [f"{part} += {value};"]
    if kind == "prod":
        return [f"{part} *= {value};"]
    if kind in ("any", "all"):
        return [f"{part} {'|' if kind == 'any' else '&'}= (int32_t){value};"]
    sign = ">" if kind.startswith("max") else "<"
    lines = [f"{part} = {value} {sign} {part} ? {value} : {part};"]
    if checks_nan(reduction):
        lines.append(f"nan{reduction.number} |= {value} != {value};")
    return lines


def combine(reduction: Reduction, into: str, part: str) -> str:
    """Statement that adds a partial result to another."""
    kind = reduction.node.kind
    if kind in ("sum", "mean"):
        return f"{into} += {part};"
    if kind == "prod":
        return f"{into} *= {part};"
    if kind in ("any", "all"):
        return f"{into} {'|' if kind == 'any' else '&'}= {part};"
    sign = ">" if kind.startswith("max") else "<"
    return f"{into} = {part} {sign} {into} ? {part} : {into};"
