"""Reads a gated delta rule off a graph: which input plays which part, and its constants.

Linear attentions compute it in chunks (prefill) or token by token (decode), with many ways to write
either; what they have in common is seen from outside. Of the two gates one reaches an exponential.
Queries are multiplied by a number, queries and keys may be brought to unit length, values are
neither. Should a graph with these marks compute something else, its kernels are judged wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx

from kforge_nb.candidates.recipes.families.operators import read_call
from kforge_nb.targets.operators import describe
from kforge_nb.targets.recurrences import DeltaShapes, delta_shapes

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["STRIDES", "DeltaRule", "dtype_of", "read_delta_rule", "strides_of"]

STRIDES = {
    "q": "QN QT QH QD", "k": "KN KT KH KE", "v": "VN VT VH VE", "decay": "GN GT GH",
    "beta": "BN BT BH", "state": "SN SH SK SE", "out": "ON OT OH OD", "last": "EN EH EK EE",
}  # fmt: skip
"""Names that the kernels have for the strides of each part."""

_SILENT = {"repeat_interleave", "pad", "cast", "contiguous", "clone"}
_TO_DECAY = _SILENT | {"cumsum", "sub", "masked_fill"}


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """``shapes`` with the inputs' numbers by part, the queries' scale and the epsilon.

    ``epsilon`` is added to the square of a length before the root; None: lengths stay as they are.
    ``state`` and ``last`` are None where the state begins at zero, and where it is not handed out.
    """

    shapes: DeltaShapes
    q: int
    k: int
    v: int
    decay: int
    beta: int
    state: int | None
    scale: float
    epsilon: float | None

    @property
    def repeat(self) -> int:
        """Neighbouring heads that share a query and a key."""
        return self.shapes.heads // self.shapes.key_heads

    def named(self, target: Target) -> dict[str, TensorSpec]:
        """The specs of the tensors that take part, by part, in the order of a kernel."""
        inputs, outputs = target.inputs, target.outputs
        found = {name: inputs[getattr(self, name)] for name in ("q", "k", "v", "decay", "beta")}
        if self.state is not None:
            found["state"] = inputs[self.state]
        found["out"] = outputs[self.shapes.answer]
        if self.shapes.last is not None:
            found["last"] = outputs[self.shapes.last]
        return found

    def roles(self) -> dict[str, str]:
        """The plan's name of each part."""
        found = {name: f"in{getattr(self, name)}" for name in ("q", "k", "v", "decay", "beta")}
        if self.state is not None:
            found["state"] = f"in{self.state}"
        found["out"] = f"out{self.shapes.answer}"
        if self.shapes.last is not None:
            found["last"] = f"out{self.shapes.last}"
        return found


@dataclass(frozen=True, slots=True)
class _Row:
    """What happens to one of queries, keys and values before it meets another one."""

    scale: float | None
    epsilon: float | None


def read_delta_rule(target: Target) -> DeltaRule | None:
    """The delta rule that the target seems to compute, or None."""
    shapes = delta_shapes(target.inputs, target.outputs)
    devices = {s.device for s in (*target.inputs, *target.outputs)}
    if shapes is None or len(devices) != 1:
        return None
    places = [n for n in target.graph.graph.nodes if n.op == "placeholder"]
    names = {describe(n).name for n in target.graph.graph.nodes}
    decays = [i for i in shapes.gates if _reaches_exponential(places[i])]
    if "setitem" not in names or len(decays) != 1:
        return None
    rows = {i: _row(places[i], target.device) for i in shapes.rows}
    scaled = [i for i, row in rows.items() if row.scale is not None]
    if len(scaled) != 1:
        return None
    q = scaled[0]
    wide = (shapes.heads, shapes.value_size)
    others = [i for i in shapes.rows if i != q]
    values = [i for i in others if target.inputs[i].shape[2:] == wide and rows[i].epsilon is None]
    if not values:
        return None
    v = values[-1]
    k = next(i for i in others if i != v)
    scale, epsilon = rows[q].scale, rows[q].epsilon
    if scale is None or rows[k].epsilon != epsilon:
        return None
    if target.inputs[q].shape != target.inputs[k].shape:
        return None
    beta = next(i for i in shapes.gates if i != decays[0])
    return DeltaRule(shapes, q, k, v, decays[0], beta, shapes.state, scale, epsilon)


def _reaches_exponential(start: fx.Node) -> bool:
    """Whether the value is exponentiated before anything is multiplied by it."""
    queue, seen = [start], {start}
    while queue:
        for user in queue.pop().users:
            op = describe(user)
            if op.name == "exp":
                return True
            if user not in seen and (op.kind == "view" or op.name in _TO_DECAY):
                seen.add(user)
                queue.append(user)
    return False


def _row(start: fx.Node, device: str) -> _Row:
    """Follow one input to where it is used for more than a view, a length or a scale."""
    scale: float | None = None
    epsilon: float | None = None
    node = start
    while True:
        squared = next((u for u in node.users if _is_square(u, node, device)), None)
        if squared is not None and epsilon is None:
            unit = _unit(squared, node, device)
            if unit is None:
                break
            node, epsilon = unit
            continue
        if len(node.users) != 1:
            break
        (user,) = node.users
        op = describe(user)
        number = _number(user, device)
        if number is not None and scale is None:
            scale = number
        elif op.kind != "view" and op.name not in _SILENT:
            break
        node = user
    return _Row(scale, epsilon)


def _is_square(user: fx.Node, node: fx.Node, device: str) -> bool:
    call = read_call(user, device)
    if call is None:
        return False
    name, args = call
    power = name == "pow" and args["exponent"] == 2
    return power or (name == "mul" and args["input"] is node and args["other"] is node)


def _unit(square: fx.Node, node: fx.Node, device: str) -> tuple[fx.Node, float] | None:
    """``node * rsqrt(sum(square) + epsilon)`` over the last axis: that product, and epsilon."""
    total = _only(square, "sum")
    added = _only(total, "add")
    root = _only(added, "rsqrt")
    product = _only(root, "mul")
    if total is None or added is None or product is None or node not in product.all_input_nodes:
        return None
    axes = total.kwargs.get("dim", total.args[1] if len(total.args) > 1 else None)
    call = read_call(added, device)
    epsilon = call[1]["other"] if call is not None else None
    if axes not in (-1, 3, (-1,), [-1]) or not isinstance(epsilon, int | float):
        return None
    return product, float(epsilon)


def _only(node: fx.Node | None, name: str) -> fx.Node | None:
    """The only user of a node, where it is the operator of this name."""
    if node is None or len(node.users) != 1:
        return None
    (user,) = node.users
    return user if describe(user).name == name else None


def _number(node: fx.Node, device: str) -> float | None:
    """What a tensor is multiplied by, if it is a number."""
    call = read_call(node, device)
    if call is None or call[0] not in ("mul", "div"):
        return None
    numbers = [v for v in (call[1]["input"], call[1]["other"]) if isinstance(v, int | float)]
    if len(numbers) != 1 or (call[0] == "div" and call[1]["other"] is not numbers[0]):
        return None
    return float(numbers[0]) if call[0] == "mul" else 1.0 / float(numbers[0])


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """The torch dtype of a spec."""
    found = getattr(torch, spec.dtype)
    assert isinstance(found, torch.dtype)  # noqa: S101  (specs name dtypes)
    return found


def strides_of(parts: dict[str, TensorSpec]) -> dict[str, tuple[str, int]]:
    """Constants (type, value) for the strides of all parts; 0 for those that are not there."""
    found: dict[str, tuple[str, int]] = {}
    for part, names in STRIDES.items():
        strides = parts[part].stride if part in parts else (0, 0, 0, 0)
        found |= {n: ("int64_t", s) for n, s in zip(names.split(), strides, strict=True)}
    return found
