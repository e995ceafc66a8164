"""Module granularity: the inlined bodies of module instances that hold no vendor operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from kforge_nb.targets.dataflow import Dataflow

__all__ = ["find_modules", "module_path"]

_ALLOWED = {
    "cheap", "costly", "reduction", "row_norm", "channel_norm", "batch_norm", "loss", "pooling",
    "move", "view", "factory",
}  # fmt: skip


def _stack(node: fx.Node) -> list[tuple[str, str, Any]]:
    """(key, path, class) of the modules around a node, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    return [(key, str(entry[0]), entry[1]) for key, entry in stack.items()]


def find_modules(flow: Dataflow) -> list[list[int]]:
    """Groups of node positions: each the whole body of one call of a module, largest bodies first.

    A body is a run of consecutive nodes in graph order (Dynamo inlines a call at once), therefore
    always convex; only bodies made of known, vendor-free operators count.
    """
    bodies = _bodies(flow)
    groups: list[list[int]] = []
    taken: set[int] = set()
    for group in sorted(bodies, key=lambda g: (-len(g), g[0])):
        if taken.isdisjoint(group) and all(_allowed(flow, i) for i in group):
            if any(flow.operators[i].kind not in ("view", "factory") for i in group):
                groups.append(group)
            taken.update(group)
    return sorted(groups)


def _bodies(flow: Dataflow) -> list[list[int]]:
    """All maximal runs of nodes that share one entry of the module stack, except the root's."""
    open_runs: dict[tuple[str, str], list[int]] = {}
    done: list[list[int]] = []
    for i, node in enumerate(flow.nodes):
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        entries = [(key, path) for key, path, _ in _stack(node) if _readable(path)]
        gone = [key for key in open_runs if key not in entries]
        done += [open_runs.pop(key) for key in gone]
        for entry in entries:
            open_runs.setdefault(entry, []).append(i)
    return [*done, *open_runs.values()]


def _allowed(flow: Dataflow, i: int) -> bool:
    op = flow.operators[i]
    return op.kind in _ALLOWED and not flow.autocast[i]


def module_path(nodes: Sequence[fx.Node]) -> str:
    """Path of the innermost module around all nodes, as the user would write it."""
    common: list[tuple[str, str]] | None = None
    for node in nodes:
        stack = [(key, path) for key, path, _ in _stack(node)]
        if common is None:
            common = stack
        else:
            same = [a for a, b in zip(common, stack, strict=False) if a == b]
            common = same
    return _readable(common[-1][1]) if common else ""


def _readable(path: str) -> str:
    """``L['self'].layers[0].norm`` -> ``layers.0.norm``; unknown forms unchanged."""
    text = path
    for prefix in ("L['module']", "L['self']", "L['args'][0]", "L['fn']"):
        text = text.removeprefix(prefix)
    text = text.replace(".__dict__", "").replace("._modules", "")
    for ugly, plain in (("['", "."), ("']", ""), ("[", "."), ("]", "")):
        text = text.replace(ugly, plain)
    return text.strip(".")
