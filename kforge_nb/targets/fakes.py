"""A graph's values on fake tensors, and which storages each node writes to.

What a layout does to strides is found out here without running anything on a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

__all__ = ["Fakes", "Unknown", "storage_of", "storages_in", "tensors_in"]


class Unknown(Exception):
    """Why the values of a graph, or what a layout does to them, are not known, in words."""


class Fakes:
    """The graph on fake tensors: each node's value, and the storages that it writes to."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self.gm = gm
        self.nodes = list(gm.graph.nodes)
        self.values: dict[fx.Node, Any] = {}
        self.writes: dict[fx.Node, set[int]] = {}
        places = [n for n in self.nodes if n.op == "placeholder"]
        self.examples = dict(zip(places, example_inputs, strict=False))
        traced = [n.meta.get("example_value") for n in self.nodes]
        if any(_symbolic(v) for v in (*traced, *example_inputs)):
            raise Unknown("its sizes are symbolic")
        own = [v.fake_mode for v in (*traced, *example_inputs) if isinstance(v, FakeTensor)]
        self.mode = own[0] if own else FakeTensorMode(allow_non_fake_inputs=True)

    def run(self) -> None:
        """Fill ``values`` and ``writes``."""
        for node in self.nodes:
            if node.op != "output":
                self.values[node], self.writes[node] = self.step(node, self.values)

    def step(
        self, node: fx.Node, values: Mapping[fx.Node, Any], target: Any = None
    ) -> tuple[Any, set[int]]:
        """The node's value on these, and the storages written to; ``target`` is called instead."""
        if node.op == "placeholder":
            return self._placeholder(node), set()
        if node.op == "get_attr":
            return self._attribute(str(node.target)), set()
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        given = tensors_in((args, kwargs))
        before = [t._version for t in given]
        target = node.target if target is None else target
        if node.op == "call_function":
            value = target(*args, **kwargs)
        elif node.op == "call_method":
            value = getattr(args[0], target)(*args[1:], **kwargs)
        else:
            raise Unknown(f"it calls the module {node.target}")
        written = {storage_of(t) for t, v in zip(given, before, strict=True) if t._version != v}
        return value, written

    def _placeholder(self, node: fx.Node) -> Any:
        traced, example = node.meta.get("example_value"), self.examples.get(node)
        like = traced if isinstance(traced, torch.Tensor) else example
        if not isinstance(like, torch.Tensor):
            return traced if example is None else example
        if like.layout is not torch.strided:
            raise Unknown("an input of it is sparse")
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)

    def _attribute(self, path: str) -> Any:
        found: Any = self.gm
        for part in path.split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor) and not isinstance(found, FakeTensor):
            return self.mode.from_tensor(found.detach(), static_shapes=True)
        return found


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a value, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor: torch.Tensor) -> int:
    """A number for the tensor's storage, for as long as the tensor lives."""
    return tensor.untyped_storage()._cdata


def storages_in(value: Any) -> set[int]:
    """The storages of a value's tensors."""
    return {storage_of(tensor) for tensor in tensors_in(value)}


def _symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not all(isinstance(s, int) for s in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
