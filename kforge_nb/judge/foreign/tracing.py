"""A reference becomes a target: one graph of all that it computes, its inputs first, weights after.

A target is data (an allow-list of operators over tensors), so it can be handed from the process
that ran the reference's code to the one that judges, and everything the judge does with a target
(float64, redrawn values, eager and torch.compile beside the candidate) it can do with a reference.
"""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from kforge_nb.errors import BadInput
from kforge_nb.judge.foreign.values import encode
from kforge_nb.targets.dataflow import Dataflow, analyse
from kforge_nb.targets.document import graph_to_document
from kforge_nb.targets.family import family_of, name_of
from kforge_nb.targets.inputs import CapturedInputs
from kforge_nb.targets.target import Occurrence, Target, TensorSpec
from kforge_nb.workload.fixed_sizes import compiled

__all__ = ["Layout", "Traced", "flat", "trace"]

_MOST_TENSORS = 2048


@dataclass(slots=True)
class Layout:
    """How a target's inputs are a reference's arguments and weights; plain data.

    Attributes:
        args: the arguments as :func:`values.encode` writes them; ``{"tensor": i}`` is input i.
        given: how many of the target's inputs are arguments; they come first.
        state: name of each weight or buffer after them ("" where it has none).
        init: arguments of the constructor, encoded.
        seed: set before the constructor is called.
        training: whether the module was in training mode.
        notes: what a reader should know of how it was traced.
    """

    args: Any
    given: int
    state: list[str]
    init: Any = field(default_factory=lambda: {"tuple": []})
    seed: int = 0
    training: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Traced:
    """A reference as a target, and how it is called."""

    target: Target
    layout: Layout


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the memory between a tensor's first and last element, as one row."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    extent = 1 + reach if tensor.numel() else 0
    return tensor.detach().as_strided((extent,), (1,), tensor.storage_offset()).clone()


def trace(reference: Callable[..., Any], sets: Sequence[Sequence[Any]], name: str) -> Traced:
    """Trace ``reference`` on its arguments.

    A module in training mode whose call changes its buffers or draws random numbers is traced in
    eval mode, which is noted, and stays in it, its buffers as they were.

    Args:
        reference: a module or a function of tensors.
        sets: arguments of one or several calls; tensors of the same shapes in each.
        name: for the report.

    Raises:
        BadInput: it cannot be traced as one graph, writes to its arguments, is random, or uses what
            a target cannot hold.
    """
    notes: list[str] = []
    buffers = list(reference.buffers()) if isinstance(reference, nn.Module) else []
    before = [buffer.detach().clone() for buffer in buffers]
    with torch.no_grad():
        found = _graph_of(reference, sets[0])
        trouble = _trouble(found)
        if trouble and isinstance(reference, nn.Module) and reference.training:
            notes.append(f"in training mode its call {trouble}; judged in eval mode")
            reference.eval()
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
            found = _graph_of(reference, sets[0])
            trouble = _trouble(found)
    if trouble:
        raise BadInput(f"the reference {name} cannot be judged: its call {trouble}")
    made = _Builder(reference, sets, found).build(name)
    made.layout.training = isinstance(reference, nn.Module) and reference.training
    made.layout.notes = notes
    return made


@dataclass(slots=True)
class _Graph:
    gm: fx.GraphModule
    inputs: list[Any]
    flow: Dataflow


def _graph_of(reference: Callable[..., Any], args: Sequence[Any]) -> _Graph:
    """The one graph that Dynamo takes of a call.

    Dynamo's cache belongs to code objects, so an entry with one of its own finds nothing there and
    leaves nothing: what else this process has compiled stays.
    """
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def record(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        found.append((gm, list(example_inputs)))
        return gm.forward

    code = _entry.__code__.replace(co_name="kforge_reference")
    entry = types.FunctionType(code, _entry.__globals__, "kforge_reference")
    try:
        compiled(entry, record, dynamic=False, fullgraph=True)(reference, *args)
    except Exception as error:  # noqa: BLE001 - the tracer raises whatever the code does
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"the reference cannot be traced as one graph ({type(error).__name__}: {first[:200]}); "
            "judge a part of it that torch.compile traces whole"
        ) from None
    if len(found) != 1:
        raise BadInput("the reference computes nothing with tensors")
    gm, inputs = found[0]
    return _Graph(gm, inputs, analyse(gm, inputs))


def _entry(reference: Callable[..., Any], *args: Any) -> Any:
    return reference(*args)


def _trouble(found: _Graph) -> str | None:
    """Why a graph cannot be a target, in words that follow "its call"."""
    if found.flow.mutated_placeholders():
        return "writes to its arguments or buffers"
    if any(operator.kind == "random" for operator in found.flow.operators):
        return "draws random numbers"
    return None


class _Builder:
    """The graph again, with the arguments' tensors first and the weights after them."""

    def __init__(
        self, reference: Callable[..., Any], sets: Sequence[Sequence[Any]], found: _Graph
    ) -> None:
        self._found = found
        self._sets = sets
        self._given = _tensors(sets[0])
        named = _state(reference)
        known = {id(t) for t in self._given}
        taken = [v for v in found.inputs if isinstance(v, torch.Tensor) and id(v) not in known]
        self._state = list(named) if named else []
        others = [("", t) for t in taken if id(t) not in {id(s) for _, s in self._state}]
        self._state += others
        if len(self._given) + len(self._state) > _MOST_TENSORS:
            raise BadInput(f"the reference has more than {_MOST_TENSORS} tensors")

    def build(self, name: str) -> Traced:
        """Target and layout."""
        tensors = [*self._given, *(t for _, t in self._state)]
        graph = self._graph(tensors)
        gm = fx.GraphModule({}, graph)
        with torch.no_grad():
            result = gm(*tensors)
        specs = tuple(TensorSpec.of(t) for t in tensors)
        outputs = tuple(TensorSpec.of(t) for t in result)
        try:
            document = json.dumps([graph_to_document(gm), str(specs)], sort_keys=True)
        except BadInput as error:
            what = str(error).partition(" cannot")[0]
            raise BadInput(
                f"the reference {name} uses what a target cannot hold ({what}); judge a part of "
                "it without that"
            ) from None
        nodes = [n for n in self._found.gm.graph.nodes if n.op.startswith("call")]
        target = Target(
            fingerprint=hashlib.sha256(document.encode()).hexdigest(),
            name=name_of(self._found.flow, nodes) or name,
            family=self._family(nodes),
            granularity="module",
            graph=gm,
            inputs=specs,
            outputs=outputs,
            occurrences=[Occurrence(0, name, tuple(n.name for n in nodes))],
            captured=self._captured(),
        )
        numbers = {id(t): i for i, t in enumerate(self._given)}
        args = encode(tuple(self._sets[0]), lambda v: numbers.get(id(v)))
        return Traced(target, Layout(args, len(self._given), [n for n, _ in self._state]))

    def _family(self, nodes: list[fx.Node]) -> str:
        kinds = {self._found.flow.operators[self._found.flow.index[n]].kind for n in nodes}
        return "other" if "vendor" in kinds else family_of(self._found.flow, nodes)

    def _captured(self) -> CapturedInputs:
        captured = CapturedInputs()
        shapes = [TensorSpec.of(t) for t in self._given]
        for given in (_tensors(args) for args in self._sets):
            if [TensorSpec.of(t) for t in given] == shapes:
                captured.add([*given, *(t.detach() for _, t in self._state)])
        captured.finish()
        return captured

    def _graph(self, tensors: Sequence[torch.Tensor]) -> fx.Graph:
        graph = fx.Graph()
        places = {id(t): graph.placeholder(f"in{i}") for i, t in enumerate(tensors)}
        new: dict[fx.Node, fx.Node] = {}
        values = iter(self._found.inputs)
        for node in self._found.gm.graph.nodes:
            if node.op == "placeholder":
                place = places.get(id(next(values)))
                if place is None:
                    raise BadInput(f"the reference's graph has an argument, {node}, of no tensor")
                new[node] = place
            elif node.op == "output":
                leaves = [v for v in pytree.tree_leaves(node.args[0]) if isinstance(v, fx.Node)]
                graph.output(tuple(new[v] for v in leaves))
            elif node.op == "get_attr":
                raise BadInput(
                    f"the reference makes a constant tensor in its call ({node.target}); make it "
                    "in the constructor, as a buffer"
                )
            else:
                new[node] = graph.node_copy(node, new.__getitem__)
                new[node].meta = {}
        graph.lint()
        return graph


def _tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of a call's arguments, in order, each once."""
    leaves = (v for v in pytree.tree_leaves(list(args)) if isinstance(v, torch.Tensor))
    return list({id(t): t for t in leaves}.values())


def _state(reference: Callable[..., Any]) -> list[tuple[str, torch.Tensor]]:
    if not isinstance(reference, nn.Module):
        return []
    return [*reference.named_parameters(), *reference.named_buffers()]
