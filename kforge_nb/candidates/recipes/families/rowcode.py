"""C++ for the element-wise parts of a row kernel: what happens before and after its core.

A :class:`RowCode` is given the row domain, is asked for values in phases (``before`` the
reduction, ``after`` it), and writes the ``Args`` and ``Row`` structs and the functions that the
kernel templates in ``recipes/kernels`` call. Values that are the same along a whole row are
computed once, when the row starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kforge_nb.candidates.recipes.families.domain import Domain, Walk, make_domain
from kforge_nb.candidates.recipes.families.program import Leaf, Op, Value
from kforge_nb.candidates.recipes.quirks import gelu_loses_infinity

if TYPE_CHECKING:
    from kforge_nb.targets.target import Target, TensorSpec

__all__ = ["CTYPES", "POINTWISE", "RowCode", "Store", "is_pointwise", "leaves_of", "literal"]

CTYPES = {torch.float32: "float", torch.bfloat16: "bf16", torch.float16: "f16"}
_POWERS = {
    2: "({0} * {0})",
    3: "({0} * {0} * {0})",
    1: "{0}",
    0.5: "vsqrt({0})",
    -0.5: "(set(1.0f) / vsqrt({0}))",
    -1: "(set(1.0f) / {0})",
}
POINTWISE: dict[str, str] = {
    "sub": "({0} - {1})",
    "add": "({0} + {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "neg": "(-{0})",
    "square": "({0} * {0})",
    "sqrt": "vsqrt({0})",
    "rsqrt": "(set(1.0f) / vsqrt({0}))",
    "reciprocal": "(set(1.0f) / {0})",
    "exp": "vexp({0})",
    "tanh": "vtanh({0})",
    "sigmoid": "sigmoid({0})",
    "silu": "silu({0})",
    "relu": "relu({0})",
    "cast": "{0}",
    "type_as": "{0}",
}
"""C++ of each element-wise operator; ``gelu`` and ``pow`` have variants of their own."""
_EXACT = frozenset({"relu", "neg"})
"""What leaves a 16-bit number one."""


def literal(value: float) -> str:
    """A C++ float literal with exactly this value."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"float({float(value).hex()})"


def _seen(value: Value) -> torch.Tensor:
    """The meta tensor that eager's operators get for ``value``."""
    return value.view if isinstance(value, Leaf) else value.result


def _formula(op: Op) -> str | None:
    if op.name == "pow":
        exponent = op.args["exponent"]
        return _POWERS.get(exponent) if isinstance(exponent, int | float) else None
    if op.name == "gelu":
        source = op.args["input"]
        loses = isinstance(source, Leaf | Op) and gelu_loses_infinity(_seen(source))
        exact = "gelu({0})" if loses else "gelu_limit({0})"
        return {"none": exact, "tanh": "gelu_tanh({0})"}.get(op.args["approximate"])
    if op.args.get("alpha", 1) != 1 or op.args.get("rounding_mode") is not None:
        return None
    return POINTWISE.get(op.name)


def is_pointwise(op: Op) -> bool:
    """Whether the emitter can write this operator, on floating-point values of 32 or 16 bits."""
    operands = [op.args.get("input"), *([op.args["other"]] if "other" in op.args else [])]
    known = all(
        (isinstance(v, Leaf | Op) and v.dtype in CTYPES)
        or (isinstance(v, int | float) and not isinstance(v, bool))
        for v in operands
    )
    return known and op.dtype in CTYPES and _formula(op) is not None


def leaves_of(values: list[Value], stop: Op | None = None) -> list[Leaf]:
    """All leaves that these values are computed from, in a fixed order; not beyond ``stop``."""
    seen: dict[int, Value] = {}
    found: list[Leaf] = []
    pending = list(reversed(values))
    while pending:
        value = pending.pop()
        if id(value) in seen or value is stop:
            continue
        seen[id(value)] = value
        if isinstance(value, Leaf):
            found.append(value)
            continue
        for arg in reversed(list(value.args.values())):
            items = arg if isinstance(arg, tuple) else (arg,)
            pending.extend(i for i in reversed(items) if isinstance(i, Leaf | Op))
    return found


@dataclass(frozen=True, slots=True)
class Store:
    """Write ``value`` to output ``output``, starting ``offset`` elements into it."""

    output: int
    value: Value
    offset: int = 0


@dataclass(slots=True)
class RowCode:
    """Element-wise code over one row domain (see the module docstring).

    ``core`` is the operator that the kernel template computes itself; asking for it gives the
    name ``y``. ``ok`` turns False as soon as something cannot be written.
    """

    target: Target
    domain: Domain
    leaf_walks: dict[int, Walk]
    stores: list[Store]
    store_walks: list[Walk]
    core: Op | None = None
    ok: bool = True
    lines: dict[str, list[str]] = field(default_factory=dict)
    hoisted: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    starts: dict[str, str] = field(default_factory=dict)
    streams: list[str] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    hoistable: dict[int, bool] = field(default_factory=dict)
    dependent: dict[int, bool] = field(default_factory=dict)

    @classmethod
    def over(
        cls,
        target: Target,
        stores: list[Store],
        shape: tuple[int, ...],
        row_axes: int | None,
        core: Op | None = None,
        order: tuple[int, ...] | None = None,
    ) -> RowCode | None:
        """Code over ``shape`` that makes these stores, or None where a tensor leaves its rows.

        ``order`` permutes the axes first, so that the row can be any of them.
        """
        leaves = leaves_of([s.value for s in stores])
        if any(leaf.dtype not in CTYPES for leaf in leaves):
            return None
        if any(len(target.outputs[s.output].shape) != len(shape) for s in stores):
            return None
        try:
            views = [leaf.view.expand(shape) for leaf in leaves]
        except RuntimeError:
            return None
        strides = [tuple(v.stride()) for v in views]
        strides += [target.outputs[s.output].stride for s in reversed(stores)]
        offsets = [int(v.storage_offset()) for v in views] + [s.offset for s in reversed(stores)]
        order = order or tuple(range(len(shape)))
        sizes = tuple(shape[a] for a in order)
        turned = [tuple(s[a] for a in order) for s in strides]
        domain = make_domain(sizes, turned, offsets, row_axes)
        if domain is None or any(w.inner != 1 for w in domain.walks[len(leaves) :]):
            return None
        walks = {id(leaf): w for leaf, w in zip(leaves, domain.walks, strict=False)}
        return cls(target, domain, walks, stores, domain.walks[len(leaves) :][::-1], core)

    def write_stores(self) -> bool:
        """Write every store in its phase; whether one of them needs the core."""
        used = False
        for store, walk in zip(self.stores, self.store_walks, strict=True):
            after = self.depends(store.value)
            used = used or after
            phase = "after" if after else "before"
            pointer = self._pointer(f"out{store.output}", walk, "")
            name = self.value(store.value, phase)
            self.lines.setdefault(phase, []).append(f"write<S>(p.{pointer} + i, {name}, n);")
        return used

    def depends(self, value: Value) -> bool:
        """Whether ``value`` is computed from the core's result."""
        if self.core is None or value is self.core or isinstance(value, Leaf):
            return value is self.core
        known = self.dependent.get(id(value))
        if known is None:
            known = any(self.depends(v) for v in _operands(value))
            self.dependent[id(value)] = known
        return known

    def value(self, value: Value | float, phase: str) -> str:
        """The C++ name of ``value`` in a phase; writes what it needs on the way."""
        if not isinstance(value, Leaf | Op):
            return f"set({literal(float(value))})"
        if value is self.core:
            return "y"
        where = "row" if self._hoists(value) else phase
        key = (where, id(value))
        if key not in self.names:
            text = self._read(value) if isinstance(value, Leaf) else self._compute(value, phase)
            name = f"v{len(self.names)}"
            self.names[key] = name
            if where == "row":
                self.fields.append(f"vf {name};")
                self.hoisted.append(f"{name} = {text};")
            else:
                self.lines.setdefault(phase, []).append(f"const vf {name} = {text};")
        name = self.names[key]
        return f"p.{name}" if where == "row" else name

    def _hoists(self, value: Value) -> bool:
        known = self.hoistable.get(id(value))
        if known is None:
            if isinstance(value, Leaf):
                known = self.leaf_walks[id(value)].inner == 0 and self.domain.length > 1
            else:
                known = not self.depends(value) and all(self._hoists(v) for v in _operands(value))
            self.hoistable[id(value)] = known
        return known

    def _pointer(self, base: str, walk: Walk, const: str) -> str:
        terms = [f"i{k} * {s}" for k, s in enumerate(walk.outer) if s]
        if walk.offset:
            terms.append(str(walk.offset))
        start = " + ".join([f"a.{base}", *terms])
        for name, known in self.starts.items():
            if known == start:
                return name
        name = f"{base}_{len(self.starts)}"
        spec = self._spec(base)
        self.fields.append(f"{const}{CTYPES[getattr(torch, spec.dtype)]}* {name};")
        self.starts[name] = start
        if (const and walk.inner == 1 and any(walk.outer)) or (const and not self.domain.sizes):
            self.streams.append(name)
        return name

    def _spec(self, base: str) -> TensorSpec:
        if base.startswith("in"):
            return self.target.inputs[int(base[2:])]
        return self.target.outputs[int(base[3:])]

    def _read(self, leaf: Leaf) -> str:
        self.inputs.add(leaf.index)
        name = self._pointer(f"in{leaf.index}", self.leaf_walks[id(leaf)], "const ")
        if self._hoists(leaf):
            return f"set(scalar(*{name}))"
        return f"load(p.{name} + i, n)"

    def _compute(self, op: Op, phase: str) -> str:
        formula = _formula(op)
        if formula is None or not is_pointwise(op):
            self.ok = False
            return "set(0.0f)"
        inputs = [op.args["input"]]
        if "other" in op.args and op.name != "type_as":
            inputs.append(op.args["other"])
        texts = [self.value(v, phase) for v in inputs]
        if self._hoists(op):
            texts = [t.removeprefix("p.") for t in texts]
        text = formula.format(*texts)
        exact = op.name in _EXACT and getattr(op.args["input"], "dtype", None) is op.dtype
        return text if exact or op.dtype is not torch.float16 else f"through({text}, f16{{}})"

    def structs(self) -> str:
        """The ``Args`` and ``Row`` structs and ``touch``, which prefetches a row's inputs."""
        args = "".join(f"  {t}{n};\n" for t, n in self.arguments())
        sizes = self.domain.sizes
        index = [
            f"const int64_t i{k} = r % {sizes[k]};\n    r /= {sizes[k]};"
            for k in range(len(sizes) - 1, 0, -1)
        ]
        if sizes:
            index.append("const int64_t i0 = r;")
        used = "".join(f"    (void)i{k};\n" for k in range(len(sizes)))
        body = "\n    ".join(
            [*index, *(f"{n} = {s};" for n, s in self.starts.items()), *self.hoisted]
        )
        fields = "\n  ".join(self.fields)
        touches = "".join(f"  prefetch(p.{n} + i);\n" for n in self.streams)
        return (
            f"struct Args {{\n{args}}};\n"
            f"struct Row {{\n  {fields}\n  KF_INNER inline Row(const Args& a, int64_t r) {{\n"
            f"    (void)r;\n    {body}\n{used}  }}\n}};\n"
            f"KF_INLINE void touch(const Row& p, int64_t i) {{\n  (void)p, (void)i;\n{touches}}}\n"
        )

    def arguments(self) -> list[tuple[str, str]]:
        """``(C type, name)`` of the entry's pointers: inputs that are read, then all outputs."""
        ins = [
            (f"const {CTYPES[getattr(torch, self.target.inputs[i].dtype)]}* ", f"in{i}")
            for i in sorted(self.inputs)
        ]
        outs = [
            (f"{CTYPES[getattr(torch, spec.dtype)]}* ", f"out{i}")
            for i, spec in enumerate(self.target.outputs)
        ]
        return ins + outs

    def function(self, head: str, phase: str, result: str | None = None) -> str:
        """One function of the element-wise part, with the lines of its phase."""
        lines = [*self.lines.get(phase, [])]
        if result is not None:
            lines.append(f"return {result};")
        body = "\n  ".join(["(void)p, (void)i, (void)n;", *lines])
        return f"template <bool S, class L>\n{head} {{\n  {body}\n}}\n"

    def streamable(self) -> bool:
        """Whether every row of every output starts on a cache line."""
        for store, walk in zip(self.stores, self.store_walks, strict=True):
            size = 4 if self.target.outputs[store.output].dtype == "float32" else 2
            if any(s * size % 64 for s in (*walk.outer, walk.offset)):
                return False
        return True


def _operands(op: Op) -> list[Any]:
    items: list[Any] = []
    for arg in op.args.values():
        items.extend(arg if isinstance(arg, tuple) else (arg,))
    return [v for v in items if isinstance(v, Leaf | Op)]
