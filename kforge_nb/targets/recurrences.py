"""Recurrences that Dynamo unrolled: the whole gated delta rule of a linear attention, as one cut.

A loop over chunks or tokens comes out of Dynamo as hundreds of nodes: small matrix products, slices
and writes into a buffer, which no fusible region holds. Where a Python function was inlined whole,
its nodes stand side by side and their stack traces name the call, so its body is a group that is
convex by construction. The names say only where to look. What makes such a body a cut is the graph
itself: it writes to nothing but buffers that it made, its matrix products are between values that
it computed (never a weight), it exponentiates a decay, and its inputs and outputs have the shapes
of queries, keys, values, decay, strength and state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from kforge_nb.targets.dataflow import Dataflow
from kforge_nb.targets.target import TensorSpec

__all__ = ["DeltaShapes", "delta_shapes", "find_recurrences"]

_ALLOWED = {"cheap", "costly", "reduction", "move", "view", "factory"}
_PRODUCTS = {"matmul", "bmm", "linalg_solve_triangular", "solve_triangular"}
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_FLOATS = ("float32", "float16", "bfloat16")
_MOST_INPUTS = 6


@dataclass(frozen=True, slots=True)
class DeltaShapes:
    """Sizes of a gated delta rule, and which inputs may be what.

    ``rows`` are positions of inputs of shape [batch, length, heads, size] (queries, keys and
    values), ``gates`` those of [batch, length, heads] (decay and strength), ``state`` that of
    [batch, heads, key size, value size]. ``answer`` and ``last`` are positions of outputs: what was
    read from the states, [batch, length, heads, value size], and the last state where it is handed
    out. ``key_heads`` divides ``heads``: neighbouring heads share queries and keys.
    """

    batch: int
    length: int
    heads: int
    key_heads: int
    key_size: int
    value_size: int
    rows: tuple[int, int, int]
    gates: tuple[int, int]
    state: int | None
    answer: int
    last: int | None


def find_recurrences(flow: Dataflow) -> list[list[int]]:
    """Groups of consecutive node positions, in graph order: each one whole unrolled recurrence."""
    calls = _Calls()
    groups: list[list[int]] = []
    end = -1
    looked_at: dict[int, int] = {}
    for i, op in enumerate(flow.operators):
        if op.name != "setitem" or i <= end:
            continue
        call = calls.innermost(flow.nodes[i])
        if call is None or i <= looked_at.get(call, -1):
            continue  # of a body that is none: each of its many writes would tell the same
        run = _body(flow, calls, i, call)
        looked_at[call] = run[-1]
        body = _with_shared_heads(flow, run)
        if body[0] > end and _is_recurrence(flow, body):
            groups.append(body)
            end = body[-1]
    return groups


class _Calls:
    """Numbers for calls of Python functions, read from stack traces; equal traces are read once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str, str, str], int] = {}
        self._known: dict[str, tuple[int, ...]] = {}

    def of(self, node: fx.Node) -> tuple[int, ...]:
        """The calls around a node, outermost first; empty where its trace is not known."""
        trace = node.meta.get("stack_trace") or ""
        found = self._known.get(trace)
        if found is None:
            found = self._known[trace] = tuple(self._read(trace))
        return found

    def innermost(self, node: fx.Node) -> int | None:
        """The call whose body the node itself stands in."""
        calls = self.of(node)
        return calls[-1] if calls else None

    def _read(self, trace: str) -> Iterator[int]:
        above, line = -1, ""
        for file, at, function in _FRAME.findall(trace):
            above = self._numbers.setdefault((above, line, file, function), len(self._numbers))
            line = at
            yield above


def _body(flow: Dataflow, calls: _Calls, at: int, call: int) -> list[int]:
    """The run of nodes around ``at`` that the call holds."""
    first = last = at
    while _inside(flow, calls, first - 1, call):
        first -= 1
    while _inside(flow, calls, last + 1, call):
        last += 1
    return list(range(first, last + 1))


def _inside(flow: Dataflow, calls: _Calls, i: int, call: int) -> bool:
    if not 0 <= i < len(flow.nodes):
        return False
    node = flow.nodes[i]
    return node.op in ("call_function", "call_method") and call in calls.of(node)


def _with_shared_heads(flow: Dataflow, body: list[int]) -> list[int]:
    """The body with the nodes right before it that repeat heads for nothing but it."""
    inside = set(body)
    first = body[0]
    while first > 0 and flow.operators[first - 1].name == "repeat_interleave":
        if any(flow.index[user] not in inside for user in flow.nodes[first - 1].users):
            break
        first -= 1
        inside.add(first)
    return list(range(first, body[-1] + 1))


def _is_recurrence(flow: Dataflow, body: list[int]) -> bool:
    inside = set(body)
    names = {flow.operators[i].name for i in body}
    if "exp" not in names or not all(_is_part(flow, i, inside) for i in body):
        return False
    inputs = dict.fromkeys(
        source
        for i in body
        for node in flow.nodes[i].all_input_nodes
        if (source := flow.index[node]) not in inside
    )
    outputs = [i for i in body if any(flow.index[u] not in inside for u in flow.nodes[i].users)]
    given = [flow.specs[i] for i in inputs]
    made = [flow.specs[i] for i in outputs]
    if len(inputs) > _MOST_INPUTS or None in given or None in made:
        return False
    return delta_shapes([s for s in given if s], [s for s in made if s]) is not None


def _is_part(flow: Dataflow, i: int, inside: set[int]) -> bool:
    """Whether a recurrence may hold the node: nothing foreign is written, no weight multiplied."""
    op = flow.operators[i]
    if flow.autocast[i] or any(flow.creator[root] not in inside for root in flow.mutated[i]):
        return False
    if op.kind == "vendor":
        sources = flow.nodes[i].all_input_nodes
        return op.name in _PRODUCTS and all(flow.index[s] in inside for s in sources)
    return op.kind in _ALLOWED or op.name == "setitem"


def delta_shapes(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> DeltaShapes | None:
    """The sizes of a gated delta rule with these inputs and outputs; None if it cannot be one."""
    if not all(s.dtype in _FLOATS and 0 not in s.shape for s in (*inputs, *outputs)):
        return None
    gates = [i for i, s in enumerate(inputs) if len(s.shape) == 3]
    wide = [i for i, s in enumerate(inputs) if len(s.shape) == 4]
    if len(gates) != 2 or len(wide) not in (3, 4) or len(gates) + len(wide) != len(inputs):
        return None
    batch, length, heads = inputs[gates[0]].shape
    if inputs[gates[1]].shape != (batch, length, heads):
        return None
    rows = [i for i in wide if inputs[i].shape[:2] == (batch, length)]
    states = [i for i in wide if i not in rows]
    if len(rows) == 4:  # as many tokens as heads: the state is the one of 32 bits, given last
        rows, states = rows[:3], rows[3:]
    if len(rows) != 3 or len(states) != len(wide) - 3:
        return None
    return _fitting(inputs, outputs, (rows[0], rows[1], rows[2]), (gates[0], gates[1]), states)


def _fitting(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    rows: tuple[int, int, int],
    gates: tuple[int, int],
    states: list[int],
) -> DeltaShapes | None:
    batch, length, heads = inputs[gates[0]].shape
    answers = [i for i, s in enumerate(outputs) if s.shape[:3] == (batch, length, heads)]
    if not answers or len(outputs) > 2:
        return None
    for answer in reversed(answers):
        value_size = outputs[answer].shape[-1]
        for key_heads, key_size in {inputs[i].shape[2:] for i in rows}:
            value = (heads, value_size)
            kinds = sorted([(key_heads, key_size), (key_heads, key_size), value])
            state = (batch, heads, key_size, value_size)
            others = [s for i, s in enumerate(outputs) if i != answer]
            fits = (
                sorted(inputs[i].shape[2:] for i in rows) == kinds
                and heads % key_heads == 0
                and all(inputs[i].shape == state for i in states)
                and all(s.shape == state for s in others)
            )
            if fits:
                last = 1 - answer if others else None
                return DeltaShapes(
                    batch, length, heads, key_heads, key_size, value_size, rows, gates,
                    states[0] if states else None, answer, last,
                )  # fmt: skip
    return None
