"""Swap cuts of a graph for calls, in an order that keeps every write where it belongs."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kforge_nb.errors import BadInput
from kforge_nb.targets.biases import bias_of, fold, without_bias
from kforge_nb.targets.dataflow import Dataflow
from kforge_nb.targets.partition import Cut
from kforge_nb.targets.schedule import contracted_order
from kforge_nb.workload.collection import quiet_gc

__all__ = ["Replacement", "replace"]


@dataclass(frozen=True, slots=True)
class Replacement:
    """What to call instead of a cut.

    ``target`` takes the cut's inputs in order, then ``extra`` (constants), and returns a sequence
    of the cut's outputs. With ``packed`` the inputs are passed as one list, as the launch op wants
    them. A module is called as a submodule, anything else as a function.
    """

    cut: Cut
    target: Callable[..., Any]
    extra: tuple[Any, ...] = ()
    packed: bool = False


@quiet_gc()
def replace(
    gm: fx.GraphModule, cuts_and_calls: Sequence[Replacement | tuple[Any, ...]]
) -> fx.GraphModule:
    """A new module in which each cut of ``gm`` is one call; ``gm`` itself is not changed.

    Takes Replacement objects or ``(cut, target[, extra])`` tuples. All cuts must come from one
    ``cut(gm, ...)`` call. Raises BadInput if they do not belong to ``gm`` or overlap.
    """
    swaps = [s if isinstance(s, Replacement) else Replacement(*s) for s in cuts_and_calls]
    flow = swaps[0].cut.flow if swaps else None
    _check(gm, swaps, flow)
    return _Writer(gm, swaps, flow).write()


def _check(gm: fx.GraphModule, swaps: Sequence[Replacement], flow: Dataflow | None) -> None:
    seen: set[fx.Node] = set()
    for swap in swaps:
        if flow is None or swap.cut.flow is not flow or flow.source is not gm:
            raise BadInput("a cut belongs to another graph; cut the graph that is to be rewritten")
        if not seen.isdisjoint(swap.cut.nodes):
            raise BadInput(f"two cuts overlap at {swap.cut.nodes[0].name}; keep one of them")
        seen.update(swap.cut.nodes)


class _Writer:
    def __init__(
        self, gm: fx.GraphModule, swaps: Sequence[Replacement], flow: Dataflow | None
    ) -> None:
        self.gm = gm
        self.swaps = swaps
        self.flow = flow
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.modules: dict[str, torch.nn.Module] = {}

    def write(self) -> fx.GraphModule:
        plan = self._plan()
        whole = [
            split for kind, at in plan if kind == "node" and (split := bias_of(self.nodes[at]))
        ]
        taken_back = {part for split in whole for part in (split.conv, split.view)}
        for kind, at in plan:
            if kind == "cut":
                self._call(at)
                continue
            node = self.nodes[at]
            if node in taken_back:
                continue
            if bias_of(node) is not None:
                self.env[node] = fold(self.graph, node, self.env)
            else:
                self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
        self.graph.lint()
        used = [str(n.target) for n in self.graph.nodes if n.op in ("get_attr", "call_module")]
        root = {
            name: self.modules[name] if name in self.modules else _attribute(self.gm, name)
            for name in used
        }
        result = fx.GraphModule(root, self.graph)
        result.meta = dict(getattr(self.gm, "meta", {}))
        return result

    def _plan(self) -> list[tuple[str, int]]:
        """What to write, in order: nodes by position, cuts by place in ``swaps``."""
        if self.flow is None:
            self.nodes = list(self.gm.graph.nodes)
            return [("node", i) for i in range(len(self.nodes))]
        flow = self.flow
        self.nodes = flow.nodes
        erased = [
            [flow.index[n] for n in swap.cut.nodes if n not in swap.cut.kept] for swap in self.swaps
        ]
        groups = {tuple(sorted(group)): k for k, group in enumerate(erased) if group}
        order = contracted_order(self._deps(), [list(g) for g in groups])
        return [("cut", groups[item]) if item in groups else ("node", item[0]) for item in order]

    def _deps(self) -> list[list[int]]:
        """Order with the kept views moved out: inside a cut only the cut's inputs count."""
        flow = self.flow
        if flow is None:
            return []
        deps = list(flow.deps)
        for swap in self.swaps:
            if not swap.cut.kept:
                continue
            inside = {flow.index[n] for n in swap.cut.nodes}
            kept = {flow.index[n] for n in swap.cut.kept}
            for i in inside - kept:
                deps[i] = self._without(deps[i], kept, deps)
        return deps

    @staticmethod
    def _without(own: list[int], kept: set[int], deps: list[list[int]]) -> list[int]:
        """Replace a dependency on a kept view by what that view depends on."""
        result: set[int] = set()
        queue = list(own)
        while queue:
            need = queue.pop()
            if need in kept:
                queue.extend(deps[need])
            else:
                result.add(need)
        return sorted(result)

    def _call(self, at: int) -> None:
        swap = self.swaps[at]
        inputs = [self.env[n] for n in swap.cut.inputs]
        args: tuple[Any, ...] = (inputs, *swap.extra) if swap.packed else (*inputs, *swap.extra)
        if isinstance(swap.target, torch.nn.Module):
            name = f"kforge_{at}"
            while hasattr(self.gm, name):  # of a rewrite before this one
                name += "_"
            self.modules[name] = swap.target
            result = self.graph.create_node("call_module", name, args)
        else:
            result = self.graph.call_function(_as_function(swap.target), args)
        result.meta["kforge"] = swap.cut.fingerprint
        for place, output in enumerate(swap.cut.outputs):
            item = self.graph.call_function(operator.getitem, (result, place))
            item.meta = without_bias(output.meta)
            self.env[output] = item


def _as_function(target: Callable[..., Any]) -> Callable[..., Any]:
    """The target itself where a graph can name it, else a function that calls it."""
    plain = (types.FunctionType, types.BuiltinFunctionType, torch._ops.OpOverload)
    if isinstance(target, plain):
        return target

    def kforge_call(*args: Any) -> Any:
        return target(*args)

    return kforge_call


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    found: Any = gm
    for part in path.split("."):
        found = getattr(found, part)
    return found
