"""A C++ kernel for the gated delta rule of linear attentions: heads and columns are shared out.

The columns of a head's state never meet, so a task is a part of one head, small enough that its
state stays next to the core, and walks through all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.families import render
from kforge_nb.candidates.recipes.families.delta_reader import (
    DeltaRule,
    dtype_of,
    read_delta_rule,
    strides_of,
)
from kforge_nb.candidates.recipes.families.isa import available_isas
from kforge_nb.candidates.recipes.families.rowcode import CTYPES, literal
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["CpuDeltaRule", "families"]

_TYPES = {"q": "TQ", "k": "TK", "v": "TV", "decay": "TG", "beta": "TB", "out": "TO"}
_WIDEST = 16
"""Floats of the widest vector: a task's columns are a multiple of it on every machine."""


def families() -> list[Any]:
    """The family of this module."""
    return [CpuDeltaRule()]


@dataclass(frozen=True, slots=True)
class CpuDeltaRule:
    """The whole rule, from queries, keys, values, decay and strength to answers and last state."""

    name: str = "delta_rule"

    def match(self, target: Target) -> Match | None:
        """The match where the graph has the marks of the rule and its sizes suit the kernel."""
        rule = _rule(target)
        if rule is None:
            return None
        return Match(self.name, target, rule.roles(), {"answer": rule.shapes.answer})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Columns a task, tokens at once, instruction set."""
        shapes = _known(match).shapes
        columns = [n for n in (32, 16, 64, 128) if shapes.value_size % n == 0]
        tokens = [4, 2, 8, 1] if shapes.length > 1 else [1]
        return {"columns": columns, "tokens": tokens, "isa": available_isas()}

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters."""
        rule = _known(match)
        shapes, parts = rule.shapes, rule.named(match.target)
        tasks = shapes.batch * shapes.heads * (shapes.value_size // params["columns"])
        constants: dict[str, tuple[str, Any]] = {
            "H": ("int64_t", shapes.heads),
            "REP": ("int64_t", rule.repeat),
            "KD": ("int", shapes.key_size),
            "VD": ("int", shapes.value_size),
            "LEN": ("int64_t", shapes.length),
            "BC": ("int", params["columns"]),
            "C": ("int", params["tokens"]),
            "NORM": ("bool", rule.epsilon is not None),
            "EPS": ("float", literal(rule.epsilon or 0.0)),
            "SCALE": ("float", literal(rule.scale)),
            **strides_of(parts),
        }
        types = "\n".join(f"using {t} = {_ctype(parts[part])};" for part, t in _TYPES.items())
        work = tasks * params["columns"] * shapes.key_size * shapes.length
        state = "state" if "state" in parts else "(const float*)nullptr"
        last = "last" if "last" in parts else "(float*)nullptr"
        body = (
            f"  share({tasks}, {work}, nthreads, [&](int64_t first, int64_t behind) {{\n"
            "    for (int64_t task = first; task < behind; ++task)\n"
            f"      walk(q, k, v, decay, beta, {state}, out, {last}, task);\n  }});"
        )
        arguments = [(_pointer(part, spec), part) for part, spec in parts.items()]
        tail = render.entry("kf_delta_rule", arguments, body)
        texts = [types, render.kernel_text("delta.h")]
        text = render.source(params["isa"], constants, texts, tail)
        names = [match.roles[part] for part in parts]
        return render.candidate(match, params, "kf_delta_rule", text, names)


def _pointer(part: str, spec: TensorSpec) -> str:
    return f"{_ctype(spec)}* " if part in ("out", "last") else f"const {_ctype(spec)}* "


def _ctype(spec: TensorSpec) -> str:
    return CTYPES[dtype_of(spec)]


def _rule(target: Target) -> DeltaRule | None:
    if target.device != "cpu":
        return None
    rule = read_delta_rule(target)
    if rule is None or rule.shapes.value_size % _WIDEST or rule.shapes.key_size > 512:
        return None
    known = all(dtype_of(s) in CTYPES for s in (*target.inputs, *target.outputs))
    return rule if known else None


def _known(match: Match) -> DeltaRule:
    rule = _rule(match.target)
    assert rule is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return rule
