"""A captured graph laid out channels-last: other strides, the same values.

Convolutions in half precision run on channels-last tensors; in a graph of contiguous ones each
turns its input and its answer. Here the inputs of convolutions are turned once, where they are not
channels-last yet, and what comes after follows by itself. Weights stay as they are: PyTorch turns
them with their inputs, and a weight that its owner changes is seen.

Strides are followed on fake tensors. Fake kernels guess a layout wrong now and then, so nothing
relies on a guess to be right: a view that a turned tensor may not have is taken by ``reshape``, a
turn too many copies nothing, and outputs get the strides that they were seen to have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx
from torch.utils import _pytree as pytree

from kforge_nb.targets.dataflow import analyse
from kforge_nb.targets.fakes import Fakes, Unknown, storage_of, storages_in, tensors_in
from kforge_nb.targets.observe import state_kept
from kforge_nb.targets.operators import describe
from kforge_nb.targets.target import TensorSpec

__all__ = ["CONVOLUTIONS", "LaidOut", "Layout", "is_convolution", "is_turn", "lay_out"]

Layout = Literal["keep", "channels_last"]
"""How graphs lie: as the user's model has them, or laid out by :func:`lay_out`."""

CONVOLUTIONS = ("conv2d", "conv_transpose2d", "convolution")
_FOLLOW = {"cheap", "costly", "batch_norm", "channel_norm", "pooling"}
_FOLLOWERS = {"interpolate", "cat", "pad"}
"""What hands a layout on besides the kinds of ``_FOLLOW``: an input turned before it stays so."""
_OWN_STRIDES = {"vendor", "reduction", "factory"}
"""Kinds whose answer has strides of its own whatever those of their inputs (convolutions apart)."""
_ASKS = {"as_strided", "as_strided_", "stride", "storage_offset", "data_ptr", "set_", "resize_"}
_VIEWS = {"view": "reshape", "view_as": "reshape_as"}
"""Views that a tensor with other strides may not have, and what takes a copy there."""
_KEPT_META = ("nn_module_stack", "stack_trace")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The graph to use, and what was done.

    ``turns`` are the tensors turned, ``back`` those turned back for outputs. Where nothing was
    done, ``gm`` is the graph that was given and ``reason`` says in words why.
    """

    gm: fx.GraphModule
    turns: int = 0
    back: int = 0
    reason: str = ""

    @property
    def changed(self) -> bool:
        """Whether ``gm`` is another graph than was given."""
        return self.turns > 0


def lay_out(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> LaidOut:
    """A copy of the graph in which convolutions get channels-last inputs, or ``gm`` with a reason.

    ``gm`` and the inputs are not changed. The copy's outputs have the shapes, dtypes and strides of
    the original's, and share storage as they do. Both graphs are run once, as cutting runs them.
    """
    if not any(is_convolution(node) for node in gm.graph.nodes):
        return LaidOut(gm, reason="it has no convolution of images")
    try:
        seen = _specs(gm, example_inputs)
        with ExitStack() as stack:
            run = Fakes(gm, example_inputs)
            state = gm.meta.get("kforge_state")
            if state is not None:
                stack.enter_context(state.restored())
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            stack.enter_context(state_kept())
            stack.enter_context(run.mode)
            run.run()
            with state_kept():
                found = _Layer(run, seen).lay()
        same = _ends(found.gm, _specs(found.gm, example_inputs)) == _ends(gm, seen)
    except Unknown as why:
        return LaidOut(gm, reason=str(why))
    except Exception as problem:  # noqa: BLE001 (a graph that stays as it is beats a failed compile)
        first = (str(problem).strip().splitlines() or [""])[0][:200]
        return LaidOut(gm, reason=f"its layout is not known ({type(problem).__name__}: {first})")
    return found if same else LaidOut(gm, reason="an output of it would lie otherwise in memory")


def is_convolution(node: fx.Node) -> bool:
    """Whether the node is a convolution whose images may be laid out channels-last."""
    return node.op == "call_function" and describe(node).name in CONVOLUTIONS


def is_turn(node: fx.Node) -> bool:
    """Whether the node turns a tensor channels-last, as those do that are inserted here."""
    wanted = node.kwargs.get("memory_format") is torch.channels_last
    return wanted and node.op == "call_method" and node.target == "contiguous"


class _Layer:
    """Writes the new graph, node by node, and follows what it makes of the strides."""

    def __init__(self, old: Fakes, seen: Mapping[fx.Node, TensorSpec | None]) -> None:
        self.old = old
        self.seen = seen
        self.graph = fx.Graph()
        self.new: dict[fx.Node, fx.Node] = {}
        self.values: dict[fx.Node, Any] = {}
        self.writes: dict[fx.Node, set[int]] = {}
        self.touched: set[fx.Node] = set()
        self.turned: dict[fx.Node, tuple[fx.Node, torch.Tensor]] = {}
        self.respelled: set[fx.Node] = set()
        self.turns = self.back = 0
        self.early = self._early()

    def lay(self) -> LaidOut:
        """The laid-out copy; raises Unknown where it would not be the same graph."""
        if any(map(self._shared, self._written())):  # what is turned would miss such a write
            raise Unknown("an input that it writes to shares memory with another")
        for node in self.old.nodes:
            if node.op == "output":
                self._output(node)
            else:
                self._copy(node)
        if not self.turns:
            raise Unknown("its convolutions get channels-last inputs as it is")
        self._same_writes()
        self.graph.lint()
        result = fx.GraphModule(self.old.gm, self.graph)
        result.meta = dict(self.old.gm.meta)
        return LaidOut(result, self.turns, self.back)

    def _early(self) -> set[fx.Node]:
        """Inputs turned at once for all users: they flow into convolutions and are not written."""
        wanted: set[fx.Node] = set()
        for node in reversed(self.old.nodes):
            if _turnable(self.old.values.get(node)) and any(
                _image(user) is node or (user in wanted and _follows(user)) for user in node.users
            ):
                wanted.add(node)
        written = set[int]().union(*self.old.writes.values())
        return {
            node
            for node in wanted
            if node.op == "placeholder"
            and not _is_turned(self.old.values[node])
            and storage_of(self.old.values[node]) not in written
            and not self._shared(node)
        }

    def _written(self) -> list[fx.Node]:
        """The inputs that the graph writes to."""
        written = set[int]().union(*self.old.writes.values())
        places = (node for node in self.old.nodes if node.op == "placeholder")
        return [node for node in places if storages_in(self.old.values[node]) & written]

    def _shared(self, node: fx.Node) -> bool:
        """Whether another input is a view of the same memory."""
        own = self.old.examples.get(node)
        others = tensors_in([v for n, v in self.old.examples.items() if n is not node])
        return isinstance(own, torch.Tensor) and storage_of(own) in map(storage_of, others)

    def _copy(self, node: fx.Node) -> None:
        """The node in the new graph, with its arguments turned where that is called for."""
        given = {s: (self.new[s], self.values[s]) for s in node.all_input_nodes}
        image = _image(node)
        for source in node.all_input_nodes:
            value = self.values[source]
            late = source is image and _turnable(value) and not _is_turned(value)
            if source in self.early or late:
                given[source] = self._turn(source)
        copy = self.graph.node_copy(node, lambda source: given[source][0])
        self.new[node] = copy
        values = {s: value for s, (_, value) in given.items()}
        if any(values[s] is not self.old.values[s] or s in self.touched for s in values):
            self._follow(node, copy, values)
        elif describe(node).kind == "barrier":  # sets autocast, or grad mode, for those behind it
            self.values[node], self.writes[node] = self.old.step(node, values)
        else:
            self.values[node], self.writes[node] = self.old.values[node], self.old.writes[node]
        if stale := self.old.writes[node]:
            for source in [s for s in self.turned if storages_in(self.old.values[s]) & stale]:
                del self.turned[source]

    def _follow(self, node: fx.Node, copy: fx.Node, given: dict[fx.Node, Any]) -> None:
        """Find the value of a node some of whose arguments have other strides than before."""
        name = str(node.target) if node.op == "call_method" else describe(node).name
        if name in _ASKS or (name == "view" and any(isinstance(a, torch.dtype) for a in node.args)):
            raise Unknown(f"{node.name} depends on how its tensor lies in memory")
        if node.op == "call_method" and name in _VIEWS and self._moved(node.args[0], given):
            copy.target = _VIEWS[name]
            self.respelled.add(node)
        self.values[node], self.writes[node] = self.old.step(node, given, copy.target)
        _same(node, self.values[node], self.old.values[node])
        if self._may_differ(node):
            self.touched.add(node)
        if "example_value" in node.meta:
            copy.meta["example_value"] = self.values[node]

    def _moved(self, source: Any, given: Mapping[fx.Node, Any]) -> bool:
        """Whether what a view is taken of may have other strides than in the original."""
        if not isinstance(source, fx.Node) or source in self.touched:
            return True
        return TensorSpec.of(given[source]) != TensorSpec.of(self.old.values[source])

    def _may_differ(self, node: fx.Node) -> bool:
        """Whether strides may be other than the original's, by the fakes or because they err."""
        new, old = tensors_in(self.values[node]), tensors_in(self.old.values[node])
        if any(TensorSpec.of(a) != TensorSpec.of(b) for a, b in zip(new, old, strict=True)):
            return True
        own_strides = describe(node).kind in _OWN_STRIDES and not is_convolution(node)
        return not own_strides and any(t.dim() > 2 for t in new)

    def _turn(self, source: fx.Node) -> tuple[fx.Node, torch.Tensor]:
        """The node's value channels-last, as it is now, and its fake value."""
        if source not in self.turned:
            self.turned[source] = self._made(source, torch.channels_last)
            self.turns += 1
        return self.turned[source]

    def _made(self, source: fx.Node, layout: torch.memory_format) -> tuple[fx.Node, torch.Tensor]:
        """``source.contiguous(...)`` in the new graph, where ``source`` is of the old one."""
        value = self.values[source]
        if not value.is_contiguous(memory_format=layout):
            # The method asks for the device, which need not be here; the operator does not.
            value = torch.ops.aten.clone.default(value, memory_format=layout)
        kwargs: dict[str, Any] = (
            {} if layout is torch.contiguous_format else {"memory_format": layout}
        )
        made = self.graph.call_method("contiguous", (self.new[source],), kwargs)
        made.meta = {k: v for k, v in source.meta.items() if k in _KEPT_META}
        made.meta["example_value"] = value
        return made, value

    def _output(self, node: fx.Node) -> None:
        """Hand out what the original hands out: its strides, and what shares storage with what."""
        given = {s: (self.new[s], self.values[s]) for s in node.all_input_nodes}
        for source in node.all_input_nodes:
            if source in self.touched:
                given[source] = self._turn_back(source)
        self.graph.node_copy(node, lambda source: given[source][0])
        ends = [*(n for n in self.old.nodes if n.op == "placeholder"), *given]
        new = [given[n][1] if n in given else self.values[n] for n in ends]
        if _sharing(new) != _sharing([self.old.values[n] for n in ends]):
            raise Unknown("an output of it shares memory with an input or another output")

    def _turn_back(self, source: fx.Node) -> tuple[fx.Node, Any]:
        """An output with the original's strides."""
        value, old = self.values[source], self.seen[source]
        if old is None or not isinstance(value, torch.Tensor):
            raise Unknown(f"{source.name}, an output, is no tensor")
        for layout in (torch.contiguous_format, torch.channels_last):
            if layout is torch.contiguous_format or len(old.shape) == 4:
                like = torch.empty(old.shape, device=value.device, memory_format=layout)
                if TensorSpec.of(like).stride == old.stride:
                    self.back += TensorSpec.of(value) != old
                    return self._made(source, layout)
        return self.new[source], value

    def _same_writes(self) -> None:
        """Each write must reach the tensors that it reached before, and no others."""
        old, new = _by_storage(self.old.values), _by_storage(self.values)
        for node, written in self.old.writes.items():
            before = {n for storage in written for n in old.get(storage, ())}
            after = {n for storage in self.writes[node] for n in new.get(storage, ())}
            if before != after or any(n in self.respelled for n in before):
                raise Unknown(f"{node.name} writes to a tensor that would be a copy")


def _specs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> dict[fx.Node, TensorSpec | None]:
    """How each value of a graph lies, as this machine's kernels leave it."""
    flow = analyse(gm, example_inputs)
    return dict(zip(flow.nodes, flow.specs, strict=True))


def _ends(gm: fx.GraphModule, seen: Mapping[fx.Node, TensorSpec | None]) -> list[Any]:
    """How the outputs lie, in order."""
    (end,) = (node for node in gm.graph.nodes if node.op == "output")
    return [seen[v] if isinstance(v, fx.Node) else v for v in pytree.tree_leaves(end.args)]


def _same(node: fx.Node, new: Any, old: Any) -> None:
    """Values of a node before and after must be alike but for strides."""
    ours, theirs = tensors_in(new), tensors_in(old)
    alike = len(ours) == len(theirs) and all(
        (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        for a, b in zip(ours, theirs, strict=True)
    )
    if not alike:
        raise Unknown(f"{node.name} would be another tensor")


def _turnable(value: Any) -> bool:
    """Whether a value is a batch of images in a dtype whose layout matters."""
    return isinstance(value, torch.Tensor) and value.dim() == 4 and value.dtype in _DTYPES


def _is_turned(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def _image(node: fx.Node) -> fx.Node | None:
    """What a convolution is applied to; None for other nodes."""
    if not is_convolution(node):
        return None
    first = node.args[0] if node.args else node.kwargs.get("input")
    return first if isinstance(first, fx.Node) else None


def _follows(node: fx.Node) -> bool:
    """Whether the node's answer lies as its input does."""
    op = describe(node)
    return op.kind in _FOLLOW or op.name in _FOLLOWERS


def _by_storage(values: Mapping[fx.Node, Any]) -> dict[int, list[fx.Node]]:
    """The nodes whose values lie in each storage."""
    found: dict[int, list[fx.Node]] = {}
    for node, value in values.items():
        for storage in storages_in(value):
            found.setdefault(storage, []).append(node)
    return found


def _sharing(values: Sequence[Any]) -> list[list[int]]:
    """For each value, the first value that lies in each of its storages, by place."""
    first: dict[int, int] = {}
    for place, value in enumerate(values):
        for storage in storages_in(value):
            first.setdefault(storage, place)
    return [sorted(first[storage] for storage in storages_in(value)) for value in values]
