"""Name a cut for people and for recipes: its family and a short list of its operators."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from kforge_nb.targets.dataflow import Dataflow

__all__ = ["family_of", "name_of", "worth_fusing"]

_ALWAYS = {
    "reduction", "row_norm", "channel_norm", "batch_norm", "costly", "pooling", "loss", "move",
    "vendor",
}  # fmt: skip
"""Kinds that make a region worth a kernel. What regions hold of the last two was asked for."""
_QUIET = {"cast", "contiguous", "clone", "detach", "dropout", "identity"}


def family_of(flow: Dataflow, nodes: Sequence[fx.Node], *, vendor: bool = False) -> str:
    """The family of recipes that fits these nodes best (see Target.family)."""
    operators = [flow.operators[flow.index[n]] for n in nodes]
    names = {op.name for op in operators}
    kinds = {op.kind for op in operators}
    if vendor:
        return f"vendor:{operators[0].name}"
    if "setitem" in names:
        return "delta_rule"
    for name in ("cross_entropy", "group_norm", "layer_norm", "rms_norm"):
        if name in names:
            return name
    if names & {"softmax", "log_softmax"}:
        return "softmax"
    if _is_rms(names):
        return "rms_norm"
    if "batch_norm" in names:
        return "batch_norm"
    if "conv1d" in names:
        return "conv1d"
    if {"cat", "neg", "mul", "getitem"} <= names:
        return "rotary"
    return _by_kind(names, kinds)


def _by_kind(names: set[str], kinds: set[str]) -> str:
    if "pooling" in kinds:
        return "pooling"
    if kinds & {"reduction", "channel_norm", "row_norm", "loss"}:
        return "reduction" if kinds & {"reduction", "row_norm", "loss"} else "group_norm"
    if names & {"silu", "gelu", "relu", "sigmoid", "tanh", "softplus", "quick_gelu", "mish", "elu",
                "leaky_relu", "hardswish", "relu6", "glu", "erf"}:  # fmt: skip
        return "activation"
    return "pointwise" if kinds <= {"cheap", "costly", "view"} else "other"


def _is_rms(names: set[str]) -> bool:
    """RMS norm as models compose it: the mean of squares, then an inverse square root."""
    squares = names & {"pow", "square", "mul"}
    return bool(squares and "mean" in names and (names & {"rsqrt", "sqrt"} or "pow" in names))


def name_of(flow: Dataflow, nodes: Sequence[fx.Node]) -> str:
    """Operators in order, casts and copies left out, repeats folded: ``add·layer_norm``."""
    names = [flow.operators[flow.index[n]].name for n in nodes]
    if "setitem" in names:
        return "delta_rule"
    loud = [n for n in names if n not in _QUIET and n != "getitem"] or names
    short = list(dict.fromkeys(loud))
    return "·".join(short[:5]) + ("…" if len(short) > 5 else "")


def worth_fusing(flow: Dataflow, group: Sequence[int]) -> bool:
    """Whether a region can be faster than its parts: a real operation, or two passes in one.

    A single addition, product or cast already runs at the speed of memory.
    """
    last = flow.specs[group[-1]]
    if last is None or not last.dtype.startswith(("float", "bfloat")):
        return False
    passes = [i for i in group if not flow.aliases[i] or flow.mutated[i]]
    kinds = {flow.operators[i].kind for i in passes}
    if kinds & _ALWAYS:
        return True
    return len(passes) >= 2
