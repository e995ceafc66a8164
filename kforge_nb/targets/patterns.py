"""Shapes of nodes that belong together although no row domain says so.

A rotary embedding cuts rows into halves and puts them together again; a causal convolution is cut
to its length before it is activated. Both are found by their structure, before regions grow. What
goes beyond rotary embeddings pays on the devices of ``FUSES``: there a launch and a pass over
memory cost more than anything that is computed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import fx

from kforge_nb.targets.dataflow import Dataflow
from kforge_nb.targets.domain import Domain

__all__ = ["FUSES", "Patterns", "is_alone", "patterns"]

Patterns = dict[int, tuple[int, Domain]]
FUSES = ("cuda",)
"""Kinds of devices on which norms lead into rotary embeddings and large moves stand alone."""
_LEAST_CAT = 1 << 16
"""Elements below which a concatenation costs next to nothing."""


def patterns(flow: Dataflow) -> tuple[Patterns, dict[int, int]]:
    """Nodes of patterns: position -> (pattern, domain); last node -> what a norm may lead into.

    The second holds, by the last position of a rotary embedding, the position of what is turned.
    """
    found: Patterns = {}
    bases: dict[int, int] = {}
    for i, node in enumerate(flow.nodes):
        name = flow.operators[i].name
        nodes, base, domain = None, None, None
        if name == "cat":
            nodes, base, domain = _rotary(flow, node)
        elif name == "conv1d":
            nodes, domain = _causal(flow, node)
        if nodes is None or domain is None or any(flow.autocast[flow.index[n]] for n in nodes):
            continue
        at = {flow.index[n] for n in nodes}
        if not at & found.keys():
            found.update(dict.fromkeys(at, (i, domain)))
            if base is not None and _fuses(flow, i):
                bases[max(at)] = flow.index[base]
    return found, bases


def is_alone(flow: Dataflow, i: int) -> bool:
    """Whether a node is worth a kernel that nothing joins: pooling, losses, large cats."""
    spec, op = flow.specs[i], flow.operators[i]
    if spec is None:
        return False
    if op.name == "cat" and _fuses(flow, i):
        return prod(spec.shape) >= _LEAST_CAT and "float" in spec.dtype and not flow.autocast[i]
    return op.kind in ("pooling", "loss")


def _fuses(flow: Dataflow, i: int) -> bool:
    spec = flow.specs[i]
    return spec is not None and spec.device.partition(":")[0] in FUSES


def _is_depthwise(flow: Dataflow, node: fx.Node) -> bool:
    """Whether a one-dimensional convolution has one channel a group: a few products an element."""
    spec = flow.specs[flow.index[node]]
    given: Any = node.kwargs.get("groups", node.args[6] if len(node.args) > 6 else 1)
    source = node.args[0] if node.args else node.kwargs.get("input")
    if spec is None or not isinstance(source, fx.Node) or len(spec.shape) != 3:
        return False
    data = flow.specs[flow.index[source]]
    return data is not None and given == data.shape[1] == spec.shape[1] != 1


def _causal(flow: Dataflow, node: fx.Node) -> tuple[list[fx.Node] | None, Domain | None]:
    """A convolution of single channels, with the slice that cuts it to its length."""
    if not _is_depthwise(flow, node) or not _fuses(flow, flow.index[node]):
        return None, None
    nodes = [node]
    cut = _only_user(flow, node, "getitem")
    if cut is not None and flow.specs[flow.index[cut]] is not None:
        nodes.append(cut)
    spec = flow.specs[flow.index[nodes[-1]]]
    return nodes, Domain(spec.shape, 0, channel=True) if spec is not None else None


def _rotary(
    flow: Dataflow, cat: fx.Node
) -> tuple[list[fx.Node] | None, fx.Node | None, Domain | None]:
    """``x * cos + rotate_half(x) * sin`` around a concatenation, what is turned, and its domain."""
    nodes = _rotary_at(flow, cat)
    spec = flow.specs[flow.index[cat]]
    if nodes is None or spec is None:
        return None, None, None
    base = nodes[0].all_input_nodes[0]
    return nodes, base, Domain(spec.shape, 1)


def _rotary_at(flow: Dataflow, cat: fx.Node) -> list[fx.Node] | None:
    parts = cat.args[0] if cat.args else cat.kwargs.get("tensors")
    if not isinstance(parts, Sequence) or len(parts) != 2:
        return None
    negated, plain = parts
    if not isinstance(negated, fx.Node) or not isinstance(plain, fx.Node):
        return None
    if flow.operators[flow.index[negated]].name != "neg":
        return None
    half = negated.args[0]
    base = _sliced(flow, half)
    if base is None or _sliced(flow, plain) is not base or not isinstance(half, fx.Node):
        return None
    if flow.specs[flow.index[base]] is None or not _same_shape(flow, base, cat):
        return None
    inner = [half, plain, negated, cat]
    if not all(user in inner for n in (half, plain, negated) for user in n.users):
        return None
    return _with_products(flow, base, cat, inner)


def _with_products(
    flow: Dataflow, base: fx.Node, cat: fx.Node, inner: list[fx.Node]
) -> list[fx.Node] | None:
    """Add ``cat * sin``, ``base * cos`` and their sum, where each is used only there."""
    times_sin = _only_user(flow, cat, "mul")
    total = _only_user(flow, times_sin, "add") if times_sin is not None else None
    if total is None or times_sin is None or flow.mutated[flow.index[total]]:
        return None
    for other in total.all_input_nodes:
        is_product = flow.operators[flow.index[other]].name == "mul" and other is not times_sin
        if is_product and base in other.all_input_nodes and len(other.users) == 1:
            return [*inner, other, times_sin, total]
    return None


def _only_user(flow: Dataflow, node: fx.Node, name: str) -> fx.Node | None:
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    return user if flow.operators[flow.index[user]].name == name else None


def _sliced(flow: Dataflow, node: Any) -> fx.Node | None:
    """What ``node`` is a slice (or one chunk) of."""
    if not isinstance(node, fx.Node) or flow.operators[flow.index[node]].name != "getitem":
        return None
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return None
    if flow.operators[flow.index[source]].name in ("chunk", "split", "tensor_split"):
        return None
    return source


def _same_shape(flow: Dataflow, one: fx.Node, other: fx.Node) -> bool:
    a, b = flow.specs[flow.index[one]], flow.specs[flow.index[other]]
    return a is not None and b is not None and a.shape == b.shape
