"""A CUDA kernel for the gated delta rule of linear attentions: prefill and decode in one.

One launch walks through all tokens with the states in registers, in float32. What moves is how a
state is dealt out (threads that share a column, columns a thread, warps a block) and how many
tokens are taken at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.families.delta_reader import (
    DeltaRule,
    dtype_of,
    read_delta_rule,
    strides_of,
)
from kforge_nb.candidates.recipes.families.rowcode import CTYPES, literal
from kforge_nb.candidates.recipes.family import Match, Params

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["CudaDeltaRule", "families"]

_TYPES = {"q": "TQ", "k": "TK", "v": "TV", "decay": "TG", "beta": "TB", "out": "TO"}
_MOST_STATE = 128
"""Registers a thread may give to its part of the state."""


def families() -> list[Any]:
    """The family of this module."""
    return [CudaDeltaRule()]


@dataclass(frozen=True, slots=True)
class CudaDeltaRule:
    """The whole rule, from queries, keys, values, decay and strength to answers and last state."""

    name: str = "delta_rule"

    def match(self, target: Target) -> Match | None:
        """The match where the graph has the marks of the rule and its sizes suit the kernel."""
        rule = _rule(target)
        if rule is None:
            return None
        return Match(self.name, target, rule.roles(), {"answer": rule.shapes.answer})

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        """Threads a column, columns a thread, warps; tokens at once and a tile, who readies it."""
        rule = _known(match)
        keys, values = rule.shapes.key_size, rule.shapes.value_size
        one = rule.shapes.length == 1
        lanes = [n for n in ([8, 16, 32, 4] if one else [16, 8, 4, 32]) if _deals(n, keys, values)]
        return {
            "lanes": lanes,
            "columns": [4, 2, 1],
            "warps": _warps(rule),
            "tokens": [1] if one else [4, 2, 8, 1],
            "tile": [1] if one else [16, 32, 8],
            "helpers": [0] if one else [4, 0, 2, 8],
        }

    def emit(self, match: Match, params: Params) -> Candidate:
        """The kernel for these parameters; what does not fit together is made smaller."""
        rule, target = _known(match), match.target
        made = _fitted(rule, params)
        shapes, parts = rule.shapes, rule.named(target)
        columns = made["warps"] * (32 // made["lanes"]) * made["columns"]
        constants: dict[str, emit.Constant] = {
            "V": ("int", _vector(parts) if columns % 4 == 0 else 1),
            "FAST": ("bool", False),
            "H": ("int", shapes.heads),
            "REP": ("int", rule.repeat),
            "KD": ("int", shapes.key_size),
            "VD": ("int", shapes.value_size),
            "LEN": ("int", shapes.length),
            "LANES": ("int", made["lanes"]),
            "COLS": ("int", made["columns"]),
            "WARPS": ("int", made["warps"]),
            "HELPERS": ("int", made["helpers"]),
            "C": ("int", made["tokens"]),
            "TILE": ("int", made["tile"]),
            "NORM": ("bool", rule.epsilon is not None),
            **{f"{name.upper()}ROWS": ("bool", _rows(parts[name])) for name in ("q", "k", "v")},
            "BEGINS": ("int", _held(parts.get("state"), made["columns"])),
            "ENDS": ("int", _held(parts.get("last"), made["columns"])),
        }
        constants |= strides_of(parts)
        constants["EPS"] = ("float", literal(rule.epsilon or 0.0))
        constants["SCALE"] = ("float", literal(rule.scale))
        types = "\n".join(f"using {t} = {_ctype(parts[part])};" for part, t in _TYPES.items())
        floats = made["tile"] * (2 * shapes.key_size + columns + 2) + _notes(made)
        rooms = 2 if made["helpers"] else 1
        entry = emit.Entry(
            "kf_delta_rule",
            [(_pointer(part, spec), part) for part, spec in parts.items()],
            _body(parts),
            shapes.batch * shapes.heads * (shapes.value_size // columns),
            32 * (made["warps"] + made["helpers"]),
            16 * rooms * -(-floats // 4),
        )
        texts = [types, emit.kernel_text("delta.cuh")]
        text = emit.source(constants, texts, [entry], f"gated delta rule of {target.name}")
        return emit.candidate(match, params, text, [entry], None, match.roles)


def _body(parts: dict[str, TensorSpec]) -> str:
    state = "state" if "state" in parts else "(const float*)nullptr"
    last = "last" if "last" in parts else "(float*)nullptr"
    return (
        "  extern __shared__ float4 room[];\n"
        f"  delta_rule(q, k, v, decay, beta, {state}, out, {last}, room);"
    )


def _pointer(part: str, spec: TensorSpec) -> str:
    return f"{_ctype(spec)}* " if part in ("out", "last") else f"const {_ctype(spec)}* "


def _ctype(spec: TensorSpec) -> str:
    return CTYPES[dtype_of(spec)]


def _rule(target: Target) -> DeltaRule | None:
    if not target.device.startswith("cuda"):
        return None
    rule = read_delta_rule(target)
    if rule is None:
        return None
    shapes = rule.shapes
    known = all(dtype_of(s) in CTYPES for s in (*target.inputs, *target.outputs))
    size = shapes.key_size
    fits = size == 16 or size % 32 == 0
    dealt = any(_deals(n, size, shapes.value_size) for n in (4, 8, 16, 32))
    return rule if known and fits and dealt else None


def _known(match: Match) -> DeltaRule:
    rule = _rule(match.target)
    assert rule is not None  # noqa: S101  (a match exists, and matching is deterministic)
    return rule


def _deals(lanes: int, keys: int, values: int) -> bool:
    """Whether a column may be shared by so many threads, with one warp and one column each."""
    return keys % (4 * lanes) == 0 and keys // lanes <= _MOST_STATE and values % (32 // lanes) == 0


def _warps(rule: DeltaRule) -> list[int]:
    """Warps a block, as many as leave a block for each multiprocessor."""
    shapes = rule.shapes
    columns = shapes.batch * shapes.heads * shapes.value_size
    return [4, 8, 2, 1] if columns >= 2**12 or shapes.length == 1 else [2, 1, 4, 8]


def _fitted(rule: DeltaRule, params: Params) -> Params:
    """The parameters with columns, warps and tokens cut down to what divides evenly."""
    made, values = dict(params), rule.shapes.value_size
    teams = 32 // made["lanes"]
    while made["columns"] > 1 and (
        values % (teams * made["columns"])
        or made["columns"] * rule.shapes.key_size // made["lanes"] > _MOST_STATE
    ):
        made["columns"] //= 2
    while made["warps"] > 1 and values % (teams * made["columns"] * made["warps"]):
        made["warps"] //= 2
    made["tokens"] = min(made["tokens"], made["tile"])
    return made


def _notes(made: Params) -> int:
    """Numbers that the groups of a tile need (``NOTES`` of ``delta.cuh``)."""
    return made["tile"] // made["tokens"] * (2 * made["tokens"] ** 2 + 3 * made["tokens"])


def _rows(spec: TensorSpec) -> bool:
    """Whether features lie side by side (else tokens do, or neither)."""
    return spec.stride[3] == 1 or spec.stride[1] != 1


def _vector(parts: dict[str, TensorSpec]) -> int:
    """Elements an access of queries, keys and values: 4 where all of them allow it, else 1."""
    for name in ("q", "k", "v"):
        spec = parts[name]
        along = 3 if _rows(spec) else 1
        others = [s for axis, s in enumerate(spec.stride) if axis != along]
        wide = spec.stride[along] == 1 and not any(s % 4 for s in others)
        if not wide or (along == 1 and parts["out"].shape[1] < 4):
            return 1
    return 4


def _held(spec: TensorSpec | None, columns: int) -> int:
    """0 without a state, 2 where four of its columns make one access, else 1."""
    if spec is None:
        return 0
    dense = spec.stride[3] == 1 and not any(s % 4 for s in spec.stride[:3])
    return 2 if dense and spec.dtype == "float32" and columns % 4 == 0 else 1
