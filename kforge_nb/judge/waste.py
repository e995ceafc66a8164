"""What a target computes and nobody uses: left out before eager is timed.

A reference that computes a value for nothing would be beaten by every kernel that does not. In a
user's model such code may well stand, and the guard times the model as it is; but a ratio of the
judge is about the same work on both sides.
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from kforge_nb.targets.operators import KINDS, base_name, describe, spelling
from kforge_nb.targets.target import Target

__all__ = ["without_waste"]

_ACTS = frozenset({"random", "barrier", "write"})
"""Kinds of operators that do more than to give a value."""


def without_waste(target: Target) -> Target:
    """The target without operators whose values are used for nothing; itself where there are none.

    Only operators that are known to do nothing but compute are left out. Its inputs stay the same,
    so plans and captured values do.
    """
    if not any(_idle(node) for node in target.graph.graph.nodes):
        return target
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(target.graph.graph, copied)
    graph.output(result)
    for node in reversed(graph.nodes):
        if _idle(node):
            graph.erase_node(node)
    return replace(target, graph=fx.GraphModule(target.graph, graph))


def _idle(node: fx.Node) -> bool:
    if node.users or node.op not in ("call_function", "call_method"):
        return False
    if node.target is getattr:  # a view, or a field of a result
        return True
    operator = describe(node)
    if operator.kind == "opaque":
        return _only_computes(node)
    return not operator.in_place and operator.kind not in _ACTS and "out" not in node.kwargs


def _only_computes(node: fx.Node) -> bool:
    """Whether an operator of unknown kind is one of torch's whose name says that nothing changes.

    Known ones that are opaque all the same update something (batch norm in training).
    """
    found = spelling(node.target)
    if found is None or "out" in node.kwargs or node.kwargs.get("inplace"):
        return False
    name, in_place = base_name(*found)
    return not in_place and not found[1].endswith("_") and name not in KINDS
