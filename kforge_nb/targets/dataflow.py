"""What a graph's edges do not say: shapes, storages, mutations, and the order they impose.

The graph is run once on fake tensors. Before and after each node the versions and the storages of
its arguments are compared, so mutation and aliasing are seen whatever the operator's name says.
Where Dynamo left its own fake values on the nodes, they are used for operators that are known not
to write; only the others are run, which makes a graph of 20,000 nodes a matter of seconds.
Every later step (cutting, rewriting, capturing) takes its order from ``Dataflow.deps``, in which a
write comes after all earlier reads of its storage and before all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from kforge_nb.targets.operators import KINDS, Operator, describe
from kforge_nb.targets.target import TensorSpec

__all__ = ["Dataflow", "analyse"]

# Kinds that never write to their arguments unless their spelling says *in place*.
_PURE = set(KINDS.values()) - {"barrier", "write", "random"}
_HANDS_BACK = {"dropout", "cast", "contiguous", "detach"}


@dataclass(slots=True)
class Dataflow:
    """Facts about each node of ``nodes`` (position = place in the graph).

    ``specs[i]`` is the TensorSpec where the node's value is one tensor of static size, else None.
    ``roots[i]`` are the storages that the value's tensors live in; ``creator[root]`` is the node
    that made the storage. ``mutated[i]`` are the storages that the node writes to. ``deps[i]`` are
    the positions that must come before i. ``aliases[i]`` says that the value shares the storage of
    an argument (a view, or an operator that handed its input back).
    ``autocast[i]`` says that autocast would change what the node computes.
    """

    nodes: list[fx.Node]
    index: dict[fx.Node, int]
    operators: list[Operator]
    specs: list[TensorSpec | None]
    roots: list[tuple[int, ...]]
    mutated: list[tuple[int, ...]]
    deps: list[list[int]]
    aliases: list[bool]
    autocast: list[bool]
    creator: dict[int, int]
    values: list[Any] = field(default_factory=list, repr=False)

    def stands_for(self, i: int) -> fx.Node | None:
        """The argument that node ``i`` hands back unchanged, or None if it computes or views.

        So do ``dropout`` in eval and a cast to the dtype that the tensor has already.
        """
        op = self.operators[i]
        if op.name not in _HANDS_BACK or not self.aliases[i] or self.mutated[i]:
            return None
        first = self.nodes[i].args[0] if self.nodes[i].args else None
        if not isinstance(first, fx.Node) or self.specs[i] is None:
            return None
        at = self.index[first]
        same = self.specs[i] == self.specs[at] and self.roots[i] == self.roots[at]
        return first if same else None

    def mutated_placeholders(self) -> list[fx.Node]:
        """Placeholders whose storage some node writes to (a replay must give it a copy)."""
        written = {root for roots in self.mutated for root in roots}
        return [
            node
            for i, node in enumerate(self.nodes)
            if node.op in ("placeholder", "get_attr") and written.intersection(self.roots[i])
        ]


def analyse(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Dataflow:
    """Run ``gm`` on fake copies of ``example_inputs`` and collect the facts; near-linear in nodes.

    Where Dynamo left symbolic sizes on the placeholders they stay symbolic, so that values of
    varying size are never taken for static ones.
    """
    return _Pass(gm, example_inputs).run()


class _Pass:
    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self.gm = gm
        self.examples = list(example_inputs)
        self.nodes = list(gm.graph.nodes)
        self.index = {n: i for i, n in enumerate(self.nodes)}
        self.values: list[Any] = [None] * len(self.nodes)
        self.flow = Dataflow(
            self.nodes, self.index, [describe(n) for n in self.nodes], [], [], [], [], [], [], {}
        )
        self.root_of: dict[int, int] = {}
        self.last_write: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.example_of = dict(
            zip(
                (i for i, n in enumerate(self.nodes) if n.op == "placeholder"),
                self.examples,
                strict=False,
            )
        )
        self.barrier = -1
        self.effect = -1
        self.autocast = any(torch.is_autocast_enabled(d) for d in ("cpu", "cuda"))
        self.traced = self._is_traced()
        self.mode = self._mode()

    def _is_traced(self) -> bool:
        """Whether Dynamo's fake values are there for all nodes whose value matters."""
        for i, node in enumerate(self.nodes):
            if node.op == "output" or self.flow.operators[i].kind in ("opaque", "barrier", "write"):
                continue
            if "example_value" not in node.meta:
                return False
        return any(isinstance(n.meta.get("example_value"), FakeTensor) for n in self.nodes)

    def _mode(self) -> FakeTensorMode:
        for node in self.nodes:
            example = node.meta.get("example_value")
            if isinstance(example, FakeTensor) and (self.traced or _symbolic(example)):
                return example.fake_mode
        return FakeTensorMode(allow_non_fake_inputs=True)

    def run(self) -> Dataflow:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            stack.enter_context(_grad_and_autocast_kept())
            stack.enter_context(self.mode)
            for i, node in enumerate(self.nodes):
                self._step(i, node)
        self.flow.values = self.values
        return self.flow

    def _step(self, i: int, node: fx.Node) -> None:
        flow = self.flow
        reads = self._argument_tensors(node)
        before = [_version(t) for t in reads]
        failed, casts = False, False
        if node.op == "placeholder":
            value = self._placeholder(node, self.example_of.get(i))
        elif node.op == "output":
            value = None
        else:
            value, failed, casts = self._evaluate(node)
        self.values[i] = value
        read_roots = dict.fromkeys(self._root(t) for t in reads)
        written = dict.fromkeys(
            self._root(t) for t, v in zip(reads, before, strict=True) if _version(t) != v
        )
        if failed or flow.operators[i].in_place:
            written.update(self._declared_writes(node, failed, read_roots))
        outs = _tensors(value)
        if node.op == "placeholder":
            self._adopt(i, outs)
        out_roots = tuple(dict.fromkeys(self._root(t) for t in outs))
        for root in out_roots:
            flow.creator.setdefault(root, i)
        flow.specs.append(_spec(value))
        flow.roots.append(out_roots)
        flow.mutated.append(tuple(written))
        flow.aliases.append(bool(set(out_roots) & set(read_roots)) and node.op != "placeholder")
        flow.autocast.append(casts)
        flow.deps.append(self._order(i, node, list(read_roots), list(written), failed))

    def _declared_writes(
        self, node: fx.Node, failed: bool, read_roots: dict[int, None]
    ) -> dict[int, None]:
        """What an in-place spelling writes to (or, after a failed fake run, may write to)."""
        if failed and self.flow.operators[self.index[node]].kind == "opaque":
            return dict(read_roots)
        first = node.args[0] if node.args else None
        tensors = _tensors(self._value(first)) if isinstance(first, fx.Node) else []
        return dict.fromkeys(self._root(t) for t in tensors)

    def _evaluate(self, node: fx.Node) -> tuple[Any, bool, bool]:
        """The node's fake value, whether that failed, and whether autocast changes it."""
        op = self.flow.operators[self.index[node]]
        known = self.traced and not op.in_place and op.kind in _PURE
        if known and op.name == "dropout":
            self._hands_back(node)
        if known and not self.autocast:
            return node.meta["example_value"], False, False
        try:
            # Aliases: an in-place change of sizes must not reach the values that Dynamo left.
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._alias)
            value = node.meta["example_value"] if known else self._call(node, args, kwargs)
        except Exception:  # noqa: BLE001 - any failure means: not known, keep away from it
            return node.meta.get("example_value"), True, False
        if op.kind == "barrier":
            self.autocast = any(torch.is_autocast_enabled(d) for d in ("cpu", "cuda"))
            return value, False, False
        return value, False, self.autocast and self._autocast_changes(node, args, kwargs, value)

    def _hands_back(self, node: fx.Node) -> None:
        """Outside training a dropout returns its input; Dynamo's fake value is a copy of it."""
        source = _tensors(self._value(node.args[0])) if isinstance(node.args[0], fx.Node) else []
        for tensor in _tensors(node.meta["example_value"]) if source else []:
            self.root_of[tensor.untyped_storage()._cdata] = self._root(source[0])

    def _alias(self, node: fx.Node) -> Any:
        value = self._value(node)
        return pytree.tree_map(_detached, value) if self.traced else value

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "get_attr":
            attribute: Any = self.gm
            for part in str(node.target).split("."):
                attribute = getattr(attribute, part)
            if isinstance(attribute, torch.Tensor):
                return self.mode.from_tensor(attribute.detach(), static_shapes=True)
            return attribute
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return self.gm.get_submodule(str(node.target))(*args, **kwargs)

    def _autocast_changes(self, node: fx.Node, args: Any, kwargs: Any, value: Any) -> bool:
        devices = {t.device.type for t in _tensors((args, kwargs, value))}
        active = [d for d in devices if d != "meta" and torch.is_autocast_enabled(d)]
        if not active:
            return False
        if self.flow.operators[self.index[node]].in_place:
            return True
        with ExitStack() as stack:
            for device in active:
                stack.enter_context(torch.autocast(device, enabled=False))
            try:
                plain = self._call(node, args, kwargs)
            except Exception:  # noqa: BLE001 - it only works with autocast's casts
                return True
        return [t.dtype for t in _tensors(plain)] != [t.dtype for t in _tensors(value)]

    def _placeholder(self, node: fx.Node, example: Any) -> Any:
        traced = node.meta.get("example_value")
        if self.traced:
            return traced
        if not isinstance(example, torch.Tensor):
            return traced if _symbolic(traced) else example
        like = traced if isinstance(traced, FakeTensor) and _symbolic(traced) else example
        return torch.empty_strided(
            tuple(like.shape), tuple(like.stride()), dtype=like.dtype, device=example.device
        )

    def _adopt(self, i: int, outs: list[torch.Tensor]) -> None:
        """Placeholders whose real tensors share a storage share a root."""
        example = self.example_of.get(i)
        if not outs or not isinstance(example, torch.Tensor):
            return
        try:
            key = example.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):
            return
        storage = outs[0].untyped_storage()._cdata
        self.root_of[storage] = self.root_of.setdefault(-key, storage)

    def _argument_tensors(self, node: fx.Node) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for source in node.all_input_nodes:
            found.extend(_tensors(self._value(source)))
        return found

    def _value(self, node: Any) -> Any:
        return self.values[self.index[node]]

    def _root(self, tensor: torch.Tensor) -> int:
        try:
            storage = tensor.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):
            storage = id(tensor)
        return self.root_of.setdefault(storage, storage)

    def _order(
        self, i: int, node: fx.Node, reads: list[int], written: list[int], failed: bool
    ) -> list[int]:
        deps = {self.index[source] for source in node.all_input_nodes}
        for root in reads:
            if root in self.last_write:
                deps.add(self.last_write[root])
        for root in written:
            deps.update(self.readers.pop(root, ()))
            self.last_write[root] = i
        for root in reads:
            self.readers.setdefault(root, []).append(i)
        if node.op not in ("placeholder", "get_attr"):
            kind = self.flow.operators[i].kind
            if self.barrier >= 0:
                deps.add(self.barrier)
            if kind == "barrier" or node.op == "output" or (failed and kind == "opaque"):
                deps.update(range(max(self.barrier, 0), i))
                self.barrier = self.effect = i
            elif kind in ("random", "opaque"):
                if self.effect >= 0:
                    deps.add(self.effect)
                self.effect = i
        deps.discard(i)
        return sorted(deps)


def _grad_and_autocast_kept() -> ExitStack:
    """Undo what ``_set_grad_enabled`` or ``_enter_autocast`` nodes without a partner leave."""
    stack = ExitStack()
    stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
    for device in ("cpu", "cuda"):
        stack.callback(torch.set_autocast_enabled, device, torch.is_autocast_enabled(device))
        stack.callback(torch.set_autocast_dtype, device, torch.get_autocast_dtype(device))
    return stack


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if value is None or isinstance(value, int | float | str | bool):
        return []
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not all(isinstance(s, int) for s in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _spec(value: Any) -> TensorSpec | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if value.is_sparse or _symbolic(value):
        return None
    return TensorSpec.of(value)
