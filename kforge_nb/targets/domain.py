"""The row domain: what one fused kernel may loop over.

A region computes values that all broadcast to one shape; its reductions, if any, run over the same
trailing axes of that shape. ``piece_of`` says what one node contributes and ``join`` whether two
contributions fit into one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from kforge_nb.targets.dataflow import Dataflow

__all__ = ["Domain", "join", "piece_of"]


@dataclass(frozen=True, slots=True)
class Domain:
    """``shape`` of the loop, number of trailing axes reduced over, and whether a channel norm."""

    shape: tuple[int, ...]
    reduced: int = 0
    channel: bool = False


def piece_of(flow: Dataflow, i: int) -> Domain | None:
    """The domain of node ``i`` alone, or None if no region may hold it."""
    spec = flow.specs[i]
    if spec is None or flow.autocast[i] or not _floating(spec.dtype):
        return None
    op = flow.operators[i]
    if prod(spec.shape) == 0:
        return None
    if op.kind in ("cheap", "costly", "batch_norm"):
        return Domain(spec.shape) if _same_device(flow, i) else None
    if op.kind == "channel_norm":
        return Domain(spec.shape, 0, channel=True)
    source = _first_spec(flow, i)
    if source is None or not _floating(source.dtype):
        return None
    if op.kind == "reduction":
        return _reduction(flow.nodes[i], source.shape, op.name)
    if op.kind == "row_norm":
        return _row_norm(flow.nodes[i], source.shape, op.name)
    return None


def join(one: Domain, other: Domain) -> Domain | None:
    """The domain of both together, or None if one kernel cannot loop over both.

    A reduction fixes the shape; without one the larger shape wins.
    """
    if one.channel and other.channel:
        return None
    if (one.channel and other.reduced) or (other.channel and one.reduced):
        return None
    if one.reduced and other.reduced:
        same = one.reduced == other.reduced and one.shape == other.shape
        return one if same else None
    channel = one.channel or other.channel
    for big, small in ((one, other), (other, one)):
        fixed = small.reduced or small.channel
        if _broadcasts(small.shape, big.shape) and not (fixed and small.shape != big.shape):
            return Domain(big.shape, one.reduced or other.reduced, channel)
    return None


def _broadcasts(small: tuple[int, ...], big: tuple[int, ...]) -> bool:
    if len(small) > len(big):
        return False
    tail = big[len(big) - len(small) :]
    return all(s in (1, b) for s, b in zip(small, tail, strict=True))


def _floating(dtype: str) -> bool:
    return dtype in ("float32", "float16", "bfloat16", "float64", "bool")


def _first_spec(flow: Dataflow, i: int) -> Any:
    node = flow.nodes[i]
    first = node.args[0] if node.args else node.kwargs.get("input")
    return flow.specs[flow.index[first]] if isinstance(first, fx.Node) else None


def _same_device(flow: Dataflow, i: int) -> bool:
    """Tensors on other devices keep a node out of regions."""
    spec = flow.specs[i]
    if spec is None:
        return False
    for source in flow.nodes[i].all_input_nodes:
        given = flow.specs[flow.index[source]]
        if given is None:
            return False
        if given.device != spec.device:
            return False
    return True


def _axes(given: Any, ndim: int) -> list[int] | None:
    if given is None:
        return list(range(ndim))
    axes = list(given) if isinstance(given, list | tuple | torch.Size) else [given]
    if not all(isinstance(a, int) for a in axes):
        return None
    return sorted(a % ndim if ndim else 0 for a in axes)


def _trailing(axes: list[int] | None, ndim: int) -> int:
    """How many trailing axes these are, 0 if they are not exactly the last ones."""
    if not axes or axes != list(range(ndim - len(axes), ndim)):
        return 0
    return len(axes)


def _reduction(node: fx.Node, shape: tuple[int, ...], name: str) -> Domain | None:
    if name in ("norm", "vector_norm", "linalg_vector_norm", "argmax", "argmin", "all", "any"):
        return None
    second = node.args[1] if len(node.args) > 1 else None
    if isinstance(second, fx.Node) or isinstance(node.kwargs.get("other"), fx.Node):
        return Domain(shape) if name in ("max", "min") else None
    if name in ("max", "min", "prod"):
        return None
    given = node.kwargs.get("dim", node.kwargs.get("axis", second))
    reduced = _trailing(_axes(given, len(shape)), len(shape))
    return Domain(shape, reduced) if reduced else None


def _row_norm(node: fx.Node, shape: tuple[int, ...], name: str) -> Domain | None:
    second = node.args[1] if len(node.args) > 1 else None
    if name in ("layer_norm", "rms_norm"):
        normalised = node.kwargs.get("normalized_shape", second)
        count = len(normalised) if isinstance(normalised, list | tuple | torch.Size) else 1
        return Domain(shape, count)
    if name == "normalize":
        given = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 1)
    else:
        given = node.kwargs.get("dim", second)
    if given is None:
        return None
    reduced = _trailing(_axes(given, len(shape)), len(shape))
    return Domain(shape, reduced) if reduced else None
