"""Run a graph once and note, node by node, what its operators really do to storages.

Before and after each node the versions and storages of its arguments are compared with its result,
so writes and aliases are seen whatever the operator's name says. Three ways to get the values:

- *real*: the example inputs themselves (copies of what is written to). Strides and aliases are then
  those of the kernels that run here; fake kernels guess them, and guess wrong for some layouts.
- *traced*: Dynamo's fake values, where the graph is symbolic or the inputs are fake; only operators
  that may write are run.
- *fake*: fake copies of the inputs, for graphs without Dynamo's values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from kforge_nb.targets.operators import KINDS, Operator, spelling
from kforge_nb.targets.target import TensorSpec

__all__ = ["Observation", "observe", "state_kept"]

Mode = Literal["real", "traced", "fake"]
# Kinds that never write to their arguments unless their spelling says *in place*.
_PURE = set(KINDS.values()) - {"barrier", "write", "random"}
# Kinds whose operators, in place, write new values to their first argument and change no sizes.
_FILLS = {"cheap", "costly", "write"}
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Observation:
    """One node: storages of its result, storages read and written; ``failed`` if it did not run."""

    spec: TensorSpec | None
    roots: tuple[int, ...]
    reads: tuple[int, ...]
    written: tuple[int, ...]
    aliases: bool = False
    autocast: bool = False
    failed: bool = False


def observe(
    gm: fx.GraphModule, example_inputs: Sequence[Any], operators: Sequence[Operator]
) -> list[Observation]:
    """What each node does, in graph order. Ambient state and the example inputs stay unchanged.

    A graph that a workload's capture recorded is run under the autocast state it was traced in.
    Where a device has no room for a real run, fake tensors have to tell.
    """
    try:
        return _observe(_Run(gm, example_inputs, operators))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    return _observe(_Run(gm, example_inputs, operators, really=False))


def _observe(run: _Run) -> list[Observation]:
    gm, operators = run.gm, run.operators
    state = gm.meta.get("kforge_state")
    with ExitStack() as stack:
        if state is not None:
            stack.enter_context(state.restored())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(state_kept())
        if run.mode != "real":
            stack.enter_context(run.fake_mode)
        elif any(op.kind == "random" for op in operators):
            stack.enter_context(torch.random.fork_rng())
        return [run.step(i) for i in range(len(run.nodes))]


class _Run:
    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        operators: Sequence[Operator],
        *,
        really: bool = True,
    ) -> None:
        self.gm = gm
        self.really = really
        self.operators = operators
        self.nodes = list(gm.graph.nodes)
        self.index = {n: i for i, n in enumerate(self.nodes)}
        self.values: dict[int, Any] = {}
        self.leaf_roots: dict[int, list[int]] = {}
        self.placeholder_root: dict[int, int] = {}
        self.next_root = 0
        self.dying = _last_uses(self.nodes)
        places = (i for i, n in enumerate(self.nodes) if n.op == "placeholder")
        self.example_of = dict(zip(places, example_inputs, strict=False))
        self.mode, self.fake_mode = self._choose()
        self.written_first = self._may_be_written() if self.mode == "real" else set()
        self.autocast = _autocast_on()

    def _choose(self) -> tuple[Mode, FakeTensorMode]:
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        examples = list(self.example_of.values())
        fresh = FakeTensorMode(allow_non_fake_inputs=True)
        traced = [n.meta.get("example_value") for n in placeholders]
        fakes = [v for v in traced if isinstance(v, FakeTensor)]
        if self.really and not any(_symbolic(v) for v in (*examples, *traced)):
            whole = len(examples) == len(placeholders)
            if whole and all(_is_real(v) for v in examples) and self._harmless():
                return "real", fresh
        if fakes and self._is_traced():
            return "traced", fakes[0].fake_mode
        symbolic = [v for v in fakes if _symbolic(v)]
        return "fake", symbolic[0].fake_mode if symbolic else fresh

    def _harmless(self) -> bool:
        """Whether running the graph once more does nothing beyond tensors: no foreign calls."""
        for node, op in zip(self.nodes, self.operators, strict=True):
            if node.op == "call_module":
                return False
            if node.op == "call_function" and op.kind == "opaque" and spelling(node.target) is None:
                return False
        return True

    def _is_traced(self) -> bool:
        """Whether Dynamo's fake values are there for all nodes whose value matters."""
        skipped = ("opaque", "barrier", "write")
        return all(
            "example_value" in node.meta
            for node, op in zip(self.nodes, self.operators, strict=True)
            if node.op != "output" and op.kind not in skipped
        )

    def _may_be_written(self) -> set[fx.Node]:
        """Placeholders that a writing call may reach: they are copied before the real run."""
        found: set[fx.Node] = set()
        seen: set[fx.Node] = set()
        for node, op in zip(self.nodes, self.operators, strict=True):
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            if op.kind in _PURE and not op.in_place:
                continue
            queue = list(node.all_input_nodes)
            while queue:
                source = queue.pop()
                if source in seen:
                    continue
                seen.add(source)
                if source.op == "placeholder":
                    found.add(source)
                elif self.operators[self.index[source]].kind in ("view", "cheap", "opaque"):
                    queue.extend(source.all_input_nodes)
        return found

    def step(self, i: int) -> Observation:
        """Run node ``i`` and compare."""
        node, op = self.nodes[i], self.operators[i]
        leaves, roots = self._arguments(node)
        before = [_version(t) for t in leaves]
        failed, casts = False, False
        if node.op == "placeholder":
            value = self._placeholder(i, node)
        elif node.op == "output":
            value = None
        else:
            value, failed, casts = self._evaluate(i, node)
        written = dict.fromkeys(
            r for t, r, v in zip(leaves, roots, before, strict=True) if _version(t) != v
        )
        if failed and op.kind == "opaque":
            written.update(dict.fromkeys(roots))
        elif op.in_place and node.args and isinstance(node.args[0], fx.Node):
            written.update(dict.fromkeys(self.leaf_roots[self.index[node.args[0]]]))
        own = self._result_roots(i, node, value, leaves, roots)
        self.values[i], self.leaf_roots[i] = value, own
        for gone in self.dying.get(i, ()):
            self.values.pop(gone, None)
        return Observation(
            _spec(value),
            tuple(dict.fromkeys(own)),
            tuple(dict.fromkeys(roots)),
            tuple(written),
            bool(set(own) & set(roots)),
            casts,
            failed,
        )

    def _arguments(self, node: fx.Node) -> tuple[list[torch.Tensor], list[int]]:
        leaves: list[torch.Tensor] = []
        roots: list[int] = []
        for source in node.all_input_nodes:
            at = self.index[source]
            leaves += _tensors(self.values[at])
            roots += self.leaf_roots[at]
        return leaves, roots

    def _result_roots(
        self, i: int, node: fx.Node, value: Any, leaves: list[torch.Tensor], roots: list[int]
    ) -> list[int]:
        """A root for each tensor of the result: an argument's, if it shares that storage."""
        known = {_storage(t): r for t, r in zip(leaves, roots, strict=True)}
        own: list[int] = []
        for leaf in _tensors(value):
            storage = _storage(leaf)
            if storage not in known:
                known[storage] = self._new_root(i, node)
            own.append(known[storage])
        if self.mode == "traced" and self.operators[i].name == "dropout" and own and roots:
            # Outside training a dropout returns its input; Dynamo's fake value is a copy of it.
            return [roots[0]] if self.operators[i].kind != "random" else own
        return own

    def _new_root(self, i: int, node: fx.Node) -> int:
        """A new storage; placeholders whose example tensors share one have the same root."""
        example = self.example_of.get(i) if node.op == "placeholder" else None
        if isinstance(example, torch.Tensor):
            key = _storage(example)
            if key in self.placeholder_root:
                return self.placeholder_root[key]
            self.placeholder_root[key] = self.next_root
        self.next_root += 1
        return self.next_root - 1

    def _placeholder(self, i: int, node: fx.Node) -> Any:
        example, traced = self.example_of.get(i), node.meta.get("example_value")
        if self.mode == "real":
            return self._own_copy(node, example)
        if self.mode == "traced":
            return traced
        if not isinstance(example, torch.Tensor):
            return traced if _symbolic(traced) else example
        like = traced if isinstance(traced, FakeTensor) and _symbolic(traced) else example
        return torch.empty_strided(
            tuple(like.shape), tuple(like.stride()), dtype=like.dtype, device=example.device
        )

    def _own_copy(self, node: fx.Node, example: Any) -> Any:
        """The example, detached; a copy of it where the graph may write to it."""
        if not isinstance(example, torch.Tensor):
            return example
        if node not in self.written_first and not example.is_inference():
            return example.detach()
        copy = torch.empty_strided(
            tuple(example.shape), tuple(example.stride()), dtype=example.dtype,
            device=example.device,
        )  # fmt: skip
        return copy.copy_(example) if 0 not in example.stride() else example.detach().clone()

    def _evaluate(self, i: int, node: fx.Node) -> tuple[Any, bool, bool]:
        """The node's value, whether it failed to run, and whether autocast changes it."""
        op = self.operators[i]
        if self.mode == "traced" and op.in_place and op.kind in _FILLS and not self.autocast:
            target = self._first_tensor(node)
            if target is not None:
                return None if op.name == "setitem" else target, False, False
        known = self.mode == "traced" and not op.in_place and op.kind in _PURE
        if known and not self.autocast:
            return node.meta["example_value"], False, False
        try:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._argument)
            value = node.meta["example_value"] if known else self._call(node, args, kwargs)
        except torch.OutOfMemoryError:
            raise  # says nothing about the node
        except Exception:  # noqa: BLE001 - any failure means: not known, keep away from it
            return node.meta.get("example_value"), True, False
        if op.kind == "barrier":
            self.autocast = _autocast_on()
            return value, False, False
        return value, False, self.autocast and self._autocast_changes(op, node, args, kwargs, value)

    def _first_tensor(self, node: fx.Node) -> torch.Tensor | None:
        """What an operator that works in place writes to and hands back, if it is one tensor.

        Its spelling has said all that there is to find out, and a run of it on fake tensors takes
        as long as dozens of other nodes.
        """
        first = node.args[0] if node.args else None
        value = self.values[self.index[first]] if isinstance(first, fx.Node) else None
        return value if isinstance(value, torch.Tensor) else None

    def _argument(self, node: fx.Node) -> Any:
        value = self.values[self.index[node]]
        # Aliases: an in-place change of sizes must not reach the values that Dynamo left.
        return pytree.tree_map(_detached, value) if self.mode == "traced" else value

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return self.gm.get_submodule(str(node.target))(*args, **kwargs)

    def _attribute(self, path: str) -> Any:
        found: Any = self.gm
        for part in path.split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor):
            if self.mode == "real":
                return found.detach()
            return self.fake_mode.from_tensor(found.detach(), static_shapes=True)
        return found

    def _autocast_changes(
        self, op: Operator, node: fx.Node, args: Any, kwargs: Any, value: Any
    ) -> bool:
        if op.in_place:
            return True
        with ExitStack() as stack:
            for device in _DEVICES:
                stack.enter_context(torch.autocast(device, enabled=False))
            try:
                plain = self._call(node, args, kwargs)
            except Exception:  # noqa: BLE001 - it only works with autocast's casts
                return True
        return [t.dtype for t in _tensors(plain)] != [t.dtype for t in _tensors(value)]


def _last_uses(nodes: Sequence[fx.Node]) -> dict[int, list[int]]:
    """Position -> positions of values that nothing after it needs."""
    index = {n: i for i, n in enumerate(nodes)}
    found: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        last = max((index[u] for u in node.users), default=i)
        found.setdefault(last, []).append(i)
    return found


@contextmanager
def state_kept() -> Iterator[None]:
    """Undo what ``_set_grad_enabled`` or ``_enter_autocast`` nodes without a partner leave."""
    grad = torch.is_grad_enabled()
    cast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        for device, enabled, dtype in cast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def _autocast_on() -> bool:
    return any(torch.is_autocast_enabled(d) for d in _DEVICES)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if value is None or isinstance(value, int | float | str | bool):
        return []
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _is_real(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type != "meta"


def _symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not all(isinstance(s, int) for s in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _spec(value: Any) -> TensorSpec | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return None if _symbolic(value) else TensorSpec.of(value)
