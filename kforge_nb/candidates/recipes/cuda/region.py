"""Write the nests that the generator plans as one CUDA kernel: parts, each with blocks of its own.

A part is one loop without reductions (a thread takes vectors of its elements) or one nest of rows
(T threads share a row and go over it once for every pass). Lowering and planning are the CPU
generator's; here only the last step differs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kforge_nb.candidates.recipes.generator import optimise
from kforge_nb.candidates.recipes.generator.evaluate import Reduction
from kforge_nb.candidates.recipes.generator.index import Ix, Sym
from kforge_nb.candidates.recipes.generator.ir import Unsupported, compute_type
from kforge_nb.candidates.recipes.generator.nest import Loop, Nest, Root, Variant
from kforge_nb.candidates.recipes.generator.statements import Scope, Statements
from kforge_nb.candidates.recipes.generator.terms import Term, walk
from kforge_nb.candidates.recipes.generator.writer import Writer
from kforge_nb.targets.target import TensorSpec

__all__ = ["TYPES", "Part", "Style", "plain_names", "write_parts"]

TYPES = {
    "float32": "float", "float64": "double", "float16": "f16", "bfloat16": "bf16",
    "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t",
    "uint8": "uint8_t", "bool": "uint8_t",
}  # fmt: skip
_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4,
    "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
_LIBM = re.compile(r"__builtin_(?!inf|nan)(\w+)")
_START = {"sum": "0.0f", "mean": "0.0f", "prod": "1.0f", "any": "0.0f", "all": "1.0f",
          "max": "-KF_INF", "maxnan": "-KF_INF", "min": "KF_INF", "minnan": "KF_INF"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Style:
    """Parameters: threads a block and a row, vectors a thread, widest access, streaming stores."""

    block: int = 256
    threads: int = 32
    unroll: int = 1
    bytes: int = 16
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One device function, and how many blocks call it."""

    name: str
    text: str
    blocks: int


def plain_names(text: str) -> str:
    """The generator's C names of math functions and constants as CUDA knows them."""
    swaps = {
        '__builtin_nanf("")': "KF_NAN",
        '__builtin_nan("")': "KF_NAN64",
        "__builtin_inff()": "KF_INF",
        "__builtin_inf()": "KF_INF64",
    }
    for old, new in swaps.items():
        text = text.replace(old, new)
    return _LIBM.sub(r"\1", text)


def write_parts(
    nests: Sequence[Nest], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], style: Style
) -> list[Part]:
    """All parts of a planned target; raises Unsupported with the reason."""
    parts: list[Part] = []
    for nest in nests:
        for variant in nest.variants:
            if nest.reducing:
                optimise.merge_loops(variant, nest.terms)
                optimise.order_loops(variant, reducing=True)
                writer = _PartWriter(nest, inputs, outputs, style)
                parts.append(writer.rows(f"part{len(parts)}", variant))
                continue
            optimise.order_loops(variant, reducing=False)
            optimise.merge_loops(variant, nest.terms)
            for loop in (loop for sweep in variant.passes for loop in sweep.loops):
                writer = _PartWriter(nest, inputs, outputs, style)
                parts.append(writer.free(f"part{len(parts)}", loop))
    return parts


@dataclass
class _Reads(Statements):
    """Statements whose loads go through the read-only cache, or out of a vector read before."""

    vectors: dict[int, str] = field(default_factory=dict)

    def _statement(self, term: Term, scope: Scope) -> str:
        if term.kind != "load":
            return super()._statement(term, scope)
        position = int(term.name)
        element = f"ldg_any(in{position} + {(term.ix or Ix()).code()})"
        if id(term) in self.vectors:
            element = f"{self.vectors[id(term)]}.v[lane]"
        name = self.out.fresh("t")
        text = _raised(element, self.inputs[position].dtype)
        self.out.line(f"const {term.ctype} {name} = {text};")
        return name


def _raised(element: str, dtype: str) -> str:
    """An element in the type that is computed in."""
    if dtype in ("bfloat16", "float16"):
        return f"scalar({element})"
    if dtype == "bool":
        return f"{element} != 0"
    return element if dtype in ("float32", "float64", "int64") else f"(int64_t){element}"


def _lowered(value: str, dtype: str) -> str:
    """A computed value as an element of an output."""
    if dtype in ("bfloat16", "float16"):
        return f"kf_to_{'bf16' if dtype == 'bfloat16' else 'f16'}((float){value})"
    return f"({TYPES[dtype]})({value})"


class _PartWriter:
    """Writes one part."""

    def __init__(
        self,
        nest: Nest,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        style: Style,
    ) -> None:
        self.out = Writer()
        self.statements = _Reads(self.out, inputs, nest.terms)
        self.inputs, self.outputs, self.style = inputs, outputs, style
        self.parameters = ", ".join(
            [f"const {TYPES[s.dtype]}* __restrict__ in{i}" for i, s in enumerate(inputs)]
            + [f"{TYPES[s.dtype]}* __restrict__ out{i}" for i, s in enumerate(outputs)]
        )

    # -- without reductions ----------------------------------------------------------------------

    def free(self, name: str, loop: Loop) -> Part:
        """A part in which every thread takes ``unroll`` vectors, a block's width apart."""
        width = self._width(loop)
        count = math.prod(s.size for s in loop.symbols) // width
        each = self.style.block * self.style.unroll
        with self.out.block(self._head(name)):
            self.out.line(f"const int64_t first = (int64_t)block * {each} + threadIdx.x;")
            self.out.line("#pragma unroll")
            with self.out.block(f"for (int u = 0; u < {self.style.unroll}; ++u)"):
                self.out.line(f"const Index at = (Index)(first + u * {self.style.block});")
                with self.out.block(f"if (at < {count})"):
                    self._vector(loop, "at", width, {})
        return Part(name, self.out.text(), -(-count // each))

    # -- rows ------------------------------------------------------------------------------------

    def rows(self, name: str, variant: Variant) -> Part:
        """A part in which T threads share a row; rows beyond the last are the last once more."""
        rows = math.prod(s.size for s in variant.rows)
        threads = self.style.threads
        beside = self.style.block // threads
        with self.out.block(self._head(name)):
            self.out.line(f"const int lane_id = threadIdx.x % {threads};")
            self.out.line(f"Index row = (Index)block * {beside} + threadIdx.x / {threads};")
            self.out.line(f"row = row < {rows} ? row : {rows} - 1;")
            self._spread("row", variant.rows)
            scope: Scope = {}
            for sweep in variant.passes:
                for reduction in sweep.reductions:
                    self._start(reduction)
                known = {r.number: r for r in sweep.reductions}
                for loop in sweep.loops:
                    self._row_loop(loop, scope, known)
                for reduction in sweep.reductions:
                    self._finish(reduction)
        return Part(name, self.out.text(), -(-rows // beside))

    def _row_loop(self, loop: Loop, scope: Scope, known: dict[int, Reduction]) -> None:
        if not loop.symbols:
            self.statements.define(loop.roots, scope, None, 0)
            with self.out.block("if (lane_id == 0)"):
                for root in loop.roots:
                    self._root(root, scope, known)
            return
        self.statements.define(loop.roots, scope, loop.symbols, 0)
        width = self._width(loop)
        count = math.prod(s.size for s in loop.symbols) // width
        times = -(-count // self.style.threads)
        self.out.line("#pragma unroll" if times <= 4 else "#pragma unroll 4")
        with self.out.block(f"for (int turn = 0; turn < {times}; ++turn)"):
            self.out.line(f"const Index at = turn * {self.style.threads} + lane_id;")
            with self.out.block(f"if (at < {count})"):
                self._vector(loop, "at", width, dict(scope), known)

    def _start(self, reduction: Reduction) -> None:
        kind = reduction.node.kind
        if kind not in _START or compute_type(reduction.node.dtype) not in ("float", "bool"):
            raise Unsupported(f"the reduction {kind} of {reduction.node.dtype} on CUDA")
        self.out.line(f"float part{reduction.number} = {_START[kind]};")
        if kind.endswith("nan"):
            self.out.line(f"float nan{reduction.number} = 0.0f;")

    def _finish(self, reduction: Reduction) -> None:
        number, kind = reduction.number, reduction.node.kind
        how = {"max": "Max", "maxnan": "Max", "any": "Max", "prod": "Product"}.get(kind, "Sum")
        how = "Min" if kind in ("min", "minnan", "all") else how
        value = f"team.template all<{how}>(part{number})"
        if kind == "mean":
            value += f" * (1.0f / {reduction.node.count}.0f)"
        if kind.endswith("nan"):
            self.out.line(f"nan{number} = team.template all<Max>(nan{number});")
            self.out.line(f"const float most{number} = {value};")
            value = f"nan{number} != 0.0f ? KF_NAN : most{number}"
        ctype = compute_type(reduction.node.dtype)
        test = " != 0.0f" if ctype == "bool" else ""
        self.out.line(f"const {ctype} red{number} = {value}{test};")

    # -- vectors ---------------------------------------------------------------------------------

    def _width(self, loop: Loop) -> int:
        """Elements of the innermost loop that a thread takes at once."""
        inner = loop.symbols[-1] if loop.symbols else Sym("one", 0, 1)
        sizes = [_BYTES[self.inputs[int(t.name)].dtype] for t in self._loads(loop)]
        sizes += [_BYTES[self.outputs[r.number].dtype] for r in loop.roots if r.kind == "store"]
        width = max(1, self.style.bytes // min(sizes, default=4))
        while width > 1 and (inner.size % width or inner.low % width):
            width //= 2
        return width

    def _loads(self, loop: Loop) -> list[Term]:
        return [t for t in walk(r.term for r in loop.roots) if t.kind == "load"]

    def _vector(
        self,
        loop: Loop,
        at: str,
        width: int,
        scope: Scope,
        known: dict[int, Reduction] | None = None,
    ) -> None:
        """One vector: what does not change along it, wide reads, the lanes, wide writes."""
        *outer, inner = loop.symbols
        base = Sym(inner.name if width == 1 else f"{inner.name}_0", inner.low, inner.high)
        narrow = Sym(base.name, 0, inner.size // width) if width > 1 else inner
        self._spread(at, [*outer, narrow], width, inner.low)
        for depth in range(len(loop.symbols)):
            self.statements.define(loop.roots, scope, loop.symbols, depth)
        if width == 1:
            self.statements.define(loop.roots, scope, loop.symbols, len(loop.symbols))
            for root in loop.roots:
                self._root(root, scope, known or {})
            return
        self._read_wide(loop, scope, inner, base, width)
        wide = [r for r in loop.roots if r.kind == "store" and self._aligned(r.ix, inner, width)]
        wide = [r for r in wide if _BYTES[self.outputs[r.number].dtype] * width % 4 == 0]
        for root in wide:
            ctype = TYPES[self.outputs[root.number].dtype]
            self.out.line(f"Lanes<{ctype}, {width}> give{root.number};")
        self.out.line("#pragma unroll")
        with self.out.block(f"for (int lane = 0; lane < {width}; ++lane)"):
            self.out.line(f"const Index {inner.name} = {base.name} + lane;")
            self.statements.define(loop.roots, scope, loop.symbols, len(loop.symbols))
            for root in loop.roots:
                self._root(root, scope, known or {}, wide)
        for root in wide:
            index = self._moved(root.ix or Ix(), inner, base).code()
            stream = "true" if self.style.stream else "false"
            self.out.line(f"give<{stream}>(out{root.number} + {index}, give{root.number});")

    def _read_wide(self, loop: Loop, scope: Scope, inner: Sym, base: Sym, width: int) -> None:
        for term in self._loads(loop):
            dtype = self.inputs[int(term.name)].dtype
            fits = _BYTES[dtype] * width % 4 == 0 and self._aligned(term.ix, inner, width)
            if not fits or id(term) in scope:
                continue
            name = self.out.fresh("wide")
            index = self._moved(term.ix or Ix(), inner, base).code()
            self.out.line(f"const auto {name} = take<{width}>(in{term.name} + {index});")
            self.statements.vectors[id(term)] = name

    def _aligned(self, ix: Ix | None, inner: Sym, width: int) -> bool:
        """Whether an index walks densely along ``inner`` and starts on a multiple of ``width``."""
        if ix is None or not ix.affine or ix.factor(inner) != 1:
            return False
        others = [factor for symbol, factor in ix.terms if symbol != inner]
        return all(factor % width == 0 for factor in [*others, ix.const])

    def _moved(self, ix: Ix, inner: Sym, base: Sym) -> Ix:
        return ix.replace({inner: Ix(((base, 1),), 0)})

    # -- pieces of text --------------------------------------------------------------------------

    def _head(self, name: str) -> str:
        return (
            f"template <class Teams> KF_INLINE void {name}({self.parameters}, int block, "
            "Teams& team)"
        )

    def _spread(self, at: str, symbols: Sequence[Sym], width: int = 1, low: int = 0) -> None:
        """Declare the symbols that position ``at`` stands for; the last counts in ``width``."""
        rest = at
        for place, symbol in reversed(list(enumerate(symbols))):
            last = place == len(symbols) - 1
            value = f"({rest}) % {symbol.size}" if place else rest
            if last and width > 1:
                value = f"({value}) * {width}" + (f" + {low}" if low else "")
            elif symbol.low:
                value = f"{value} + {symbol.low}"
            self.out.line(f"const Index {symbol.name} = {value};")
            if place:
                following = self.out.fresh("rest")
                self.out.line(f"const Index {following} = ({rest}) / {symbol.size};")
                rest = following

    def _root(
        self, root: Root, names: Scope, known: dict[int, Reduction], wide: Sequence[Root] = ()
    ) -> None:
        value = names[id(root.term)]
        if root.kind == "reduce":
            self._add(known[root.number], value)
            return
        stored = _lowered(value, self.outputs[root.number].dtype)
        if any(root is other for other in wide):
            self.out.line(f"give{root.number}.v[lane] = {stored};")
        else:
            self.out.line(f"out{root.number}[{(root.ix or Ix()).code()}] = {stored};")

    def _add(self, reduction: Reduction, value: str) -> None:
        number, kind = reduction.number, reduction.node.kind
        part = f"part{number}"
        if kind in ("sum", "mean"):
            self.out.line(f"{part} += {value};")
        elif kind == "prod":
            self.out.line(f"{part} *= {value};")
        elif kind in ("any", "all"):
            pick = "fmaxf" if kind == "any" else "fminf"
            self.out.line(f"{part} = {pick}({part}, {value} ? 1.0f : 0.0f);")
        else:
            pick = "fmaxf" if kind.startswith("max") else "fminf"
            self.out.line(f"{part} = {pick}({part}, {value});")
            if kind.endswith("nan"):
                self.out.line(f"if ({value} != {value}) nan{number} = 1.0f;")
