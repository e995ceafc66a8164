"""Write the loops of one row: terms as statements, each as far out as its symbols allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kforge_nb.candidates.recipes.generator import print_c
from kforge_nb.candidates.recipes.generator.evaluate import Reduction
from kforge_nb.candidates.recipes.generator.index import Ix, Sym
from kforge_nb.candidates.recipes.generator.nest import Loop, Pass, Root, Variant
from kforge_nb.candidates.recipes.generator.terms import Term, walk
from kforge_nb.candidates.recipes.generator.writer import Writer
from kforge_nb.targets.target import TensorSpec

__all__ = ["RowWriter", "Style"]

CHUNK = 2048
TILE = 1024
_START = {
    "sum": "0", "mean": "0", "prod": "1", "any": "0", "all": "1",
    "max": "-{inf}", "min": "{inf}", "maxnan": "-{inf}", "minnan": "{inf}",
}  # fmt: skip
_CLAUSE = {
    "sum": "+", "mean": "+", "prod": "*", "any": "|", "all": "&",
    "max": "max", "min": "min", "maxnan": "max", "minnan": "min",
}  # fmt: skip
_SPECIAL = ("m2", "sumexp")
_LIMITS = {"max": "INT64_MIN", "maxnan": "INT64_MIN", "min": "INT64_MAX", "minnan": "INT64_MAX"}


@dataclass(frozen=True, slots=True)
class Style:
    """Parameters of the emitter: which outputs bypass the caches, vector width, lanes of sums."""

    stream: frozenset[int] = frozenset()
    width: int = 0
    block: int = 0
    lanes: int = 1


@dataclass
class RowWriter:
    """Writes passes over a row; ``scope`` holds the names of terms already computed for it."""

    out: Writer
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    style: Style
    needs: set[str] = field(default_factory=set)
    streams: bool = False
    _block: int = 0
    _symbol: str = ""

    def row(self, variant: Variant) -> None:
        """All passes over the row that the row symbols select."""
        self._block = variant.block
        scope: dict[int, str] = {}
        for sweep in variant.passes:
            self._sweep(sweep, scope)

    def _sweep(self, sweep: Pass, scope: dict[int, str]) -> None:
        """One pass: accumulators, loops, and the finished reductions as row values."""
        for reduction in sweep.reductions:
            self._start(reduction)
        by_number = {r.number: r for r in sweep.reductions}
        for loop in sweep.loops:
            self._loop(loop, scope, by_number)
        for reduction in sweep.reductions:
            self._finish(reduction)

    # -- reductions ---------------------------------------------------------------------------

    def _total(self, reduction: Reduction) -> str:
        ctype = print_c.C_TYPES[reduction.node.dtype]
        kind = reduction.node.kind
        if kind in ("any", "all"):
            return "int32_t"
        if ctype in ("float", "uint16_t"):
            return "double" if kind in ("sum", "mean", "m2", "sumexp") else "float"
        return ctype if ctype == "double" else "int64_t"

    def _part(self, reduction: Reduction) -> str:
        total = self._total(reduction)
        narrow = reduction.node.dtype not in ("float64",) and total == "double"
        return "float" if narrow else total

    def _initial(self, reduction: Reduction) -> str:
        kind, total = reduction.node.kind, self._total(reduction)
        if total == "int64_t" and kind in _LIMITS:
            return _LIMITS[kind]
        inf = "__builtin_inf()" if total == "double" else "__builtin_inff()"
        return _START.get(kind, "0").format(inf=inf)

    def _start(self, reduction: Reduction) -> None:
        number, total = reduction.number, self._total(reduction)
        self.out.line(f"{total} total{number} = {self._initial(reduction)};")
        if reduction.node.kind in ("maxnan", "minnan") and total in ("float", "double"):
            self.out.line(f"int32_t nan{number} = 0;")
        if reduction.node.kind == "m2":
            self.out.line(f"double mean{number} = 0, count{number} = 0;")
        if reduction.node.kind == "sumexp":
            self.out.line(f"float top{number} = -__builtin_inff();")

    def _finish(self, reduction: Reduction) -> None:
        number, kind, node = reduction.number, reduction.node.kind, reduction.node
        ctype = {"int64_t": "int64_t", "double": "double", "int32_t": "bool"}.get(
            self._total(reduction), "float"
        )
        if node.dtype != "float64" and ctype == "double":
            ctype = "float"
        value = f"total{number}"
        if kind == "mean":
            value = f"{value} * (1.0 / {node.count})"
        if kind in ("maxnan", "minnan") and ctype in ("float", "double"):
            value = f'nan{number} ? __builtin_nan("") : {value}'
        self.out.line(f"const {ctype} red{number} = ({ctype})({value});")

    # -- loops --------------------------------------------------------------------------------

    def _loop(self, loop: Loop, scope: dict[int, str], reductions: dict[int, Reduction]) -> None:
        symbols = loop.symbols
        if not symbols and any(root.kind == "reduce" for root in loop.roots):
            symbols = [Sym("once", 0, 1)]
        special = [r for r in loop.roots if self._special(r, reductions)]
        plain = [r for r in loop.roots if r not in special]
        for root in special:
            kind = reductions[root.number].node.kind
            twin = self._twin(root, plain, reductions)
            if twin is not None:
                plain.remove(twin)
            kept = [r for r in plain if r.kind == "buffer"]
            rest = [r for r in plain if r.kind != "buffer"]
            if not rest:
                plain = []
            self._nest(symbols, [root, *(kept if not rest else [])], scope, reductions, kind)
            if twin is not None:
                self._take(root.number, twin.number, kind)
        if plain:
            self._nest(symbols, plain, scope, reductions, "")

    def _special(self, root: Root, reductions: dict[int, Reduction]) -> bool:
        return root.kind == "reduce" and reductions[root.number].node.kind in _SPECIAL

    def _twin(self, root: Root, plain: list[Root], reductions: dict[int, Reduction]) -> Root | None:
        """The mean or maximum of the same term, which the special reduction computes anyway."""
        wanted = {"m2": "mean", "sumexp": "max"}[reductions[root.number].node.kind]
        if reductions[root.number].node.dtype == "float64":
            return None
        for other in plain:
            same = other.kind == "reduce" and other.term is root.term
            if same and reductions[other.number].node.kind == wanted:
                return other
        return None

    def _take(self, number: int, twin: int, kind: str) -> None:
        if kind == "m2":
            self.out.line(f"total{twin} = mean{number} * count{number};")
        else:
            self.out.line(f"total{twin} = top{number};")

    def _nest(
        self,
        symbols: list[Sym],
        roots: list[Root],
        scope: dict[int, str],
        reductions: dict[int, Reduction],
        special: str,
    ) -> None:
        """Loops around ``roots``; statements go out to where their symbols are known."""
        if not symbols:
            names = self._define(roots, scope, [], 0, all_depths=True)
            for root in roots:
                self._root(root, names, reductions)
            return
        self._define(roots, scope, symbols, 0)
        self._descend(symbols, 0, roots, dict(scope), reductions, special)

    def _descend(
        self,
        symbols: list[Sym],
        depth: int,
        roots: list[Root],
        scope: dict[int, str],
        reductions: dict[int, Reduction],
        special: str,
    ) -> None:
        symbol = symbols[depth]
        if depth == len(symbols) - 1:
            self._innermost(symbols, roots, scope, reductions, special)
            return
        with self.out.block(_head(symbol.name, str(symbol.low), str(symbol.high))):
            self._define(roots, scope, symbols, depth + 1)
            self._descend(symbols, depth + 1, roots, dict(scope), reductions, special)

    def _innermost(
        self,
        symbols: list[Sym],
        roots: list[Root],
        scope: dict[int, str],
        reductions: dict[int, Reduction],
        special: str,
    ) -> None:
        symbol = symbols[-1]
        tiles = [r for r in roots if self._streamed(r, symbol)]
        sums = [r for r in roots if r.kind == "reduce"]
        step = TILE if tiles else CHUNK
        low, high = str(symbol.low), str(symbol.high)
        if self._block:
            low, high = "low", "high"
            start = (
                f"{symbol.low} + block * {self._block}" if symbol.low else f"block * {self._block}"
            )
            self.out.line(f"const int64_t low = {start};")
            end = f"low + {self._block}"
            self.out.line(f"const int64_t high = {end} < {symbol.high} ? {end} : {symbol.high};")
        if (tiles or sums or special) and symbol.size > step:
            first, last = self.out.fresh("a"), self.out.fresh("b")
            head = f"for (int64_t {first} = {low}; {first} < {high}; {first} += {step})"
            with self.out.block(head):
                end = f"{first} + {step}"
                self.out.line(f"const int64_t {last} = {end} < {high} ? {end} : {high};")
                self._chunk(symbols, roots, scope, reductions, special, (first, last), tiles)
        else:
            self._chunk(symbols, roots, scope, reductions, special, (low, high), tiles)

    def _chunk(
        self,
        symbols: list[Sym],
        roots: list[Root],
        scope: dict[int, str],
        reductions: dict[int, Reduction],
        special: str,
        bounds: tuple[str, str],
        tiles: list[Root],
    ) -> None:
        if special == "m2":
            self._moments(symbols, roots, scope, bounds)
        elif special == "sumexp":
            self._sumexp(symbols, roots, scope, bounds)
        else:
            self._straight(symbols, roots, scope, reductions, bounds, tiles)

    def _straight(
        self,
        symbols: list[Sym],
        roots: list[Root],
        scope: dict[int, str],
        reductions: dict[int, Reduction],
        bounds: tuple[str, str],
        tiles: list[Root],
    ) -> None:
        """One vector loop: partial sums of this chunk, stores, tiles for streaming."""
        sums = [reductions[r.number] for r in roots if r.kind == "reduce"]
        with self.out.block(""):
            for root in tiles:
                ctype = print_c.C_TYPES[self.outputs[root.number].dtype]
                self.out.line(f"alignas(64) {ctype} tile{root.number}[{TILE}];")
            for reduction in sums:
                start = self._initial(reduction)
                self.out.line(f"{self._part(reduction)} part{reduction.number} = {start};")
            self.out.line(_pragma([(_CLAUSE[r.node.kind], r) for r in sums], self._checks_nan))
            with self.out.block(_head(symbols[-1].name, *bounds)):
                names = self._define(roots, dict(scope), symbols, len(symbols))
                for root in roots:
                    self._root(root, names, reductions, bounds[0] if root in tiles else None)
            for reduction in sums:
                self._combine(reduction)
            for root in tiles:
                self._flush(root, symbols[-1], bounds)

    def _checks_nan(self, reduction: Reduction) -> bool:
        kind = reduction.node.kind
        return kind in ("maxnan", "minnan") and self._total(reduction) in ("float", "double")

    def _root(
        self,
        root: Root,
        names: dict[int, str],
        reductions: dict[int, Reduction],
        tile: str | None = None,
    ) -> None:
        value = names[id(root.term)]
        index = root.ix.code() if root.ix is not None else "0"
        if root.kind == "buffer":
            self.out.line(f"buffer{root.number}[{index}] = {value};")
        elif root.kind == "store":
            stored = print_c.store(value, self.outputs[root.number].dtype, self.needs)
            place = f"out{root.number}[{index}]"
            if tile is not None:
                place = f"tile{root.number}[{self._symbol} - {tile}]"
            self.out.line(f"{place} = {stored};")
        else:
            self._accumulate(reductions[root.number], value)

    def _accumulate(self, reduction: Reduction, value: str) -> None:
        kind, part = reduction.node.kind, f"part{reduction.number}"
        if kind in ("sum", "mean"):
            self.out.line(f"{part} += {value};")
        elif kind == "prod":
            self.out.line(f"{part} *= {value};")
        elif kind in ("any", "all"):
            self.out.line(f"{part} {'|' if kind == 'any' else '&'}= (int32_t){value};")
        else:
            sign = ">" if kind.startswith("max") else "<"
            self.out.line(f"{part} = {value} {sign} {part} ? {value} : {part};")
            if self._checks_nan(reduction):
                self.out.line(f"nan{reduction.number} |= {value} != {value};")

    def _combine(self, reduction: Reduction) -> None:
        kind, number = reduction.node.kind, reduction.number
        total, part = f"total{number}", f"part{number}"
        if kind in ("sum", "mean"):
            self.out.line(f"{total} += {part};")
        elif kind == "prod":
            self.out.line(f"{total} *= {part};")
        elif kind in ("any", "all"):
            self.out.line(f"{total} {'|' if kind == 'any' else '&'}= {part};")
        else:
            sign = ">" if kind.startswith("max") else "<"
            self.out.line(f"{total} = {part} {sign} {total} ? {part} : {total};")

    # -- single-pass mean with deviation, and maximum with sum of powers ------------------------

    def _moments(
        self, symbols: list[Sym], roots: list[Root], scope: dict[int, str], bounds: tuple[str, str]
    ) -> None:
        """Mean and squared distances of this chunk, merged into the row's (Chan's formula)."""
        main, n = roots[0], roots[0].number
        low, high = bounds
        with self.out.block(""):
            self.out.line("float s = 0, q = 0;")
            self.out.line("#pragma omp simd reduction(+:s)")
            with self.out.block(_head(symbols[-1].name, low, high)):
                names = self._define(roots, dict(scope), symbols, len(symbols))
                for root in roots[1:]:
                    self._root(root, names, {})
                self.out.line(f"s += {names[id(main.term)]};")
            self.out.line(f"const double m = (double)({high} - {low});")
            self.out.line("const float middle = (float)(s / m);")
            self.out.line("#pragma omp simd reduction(+:q)")
            with self.out.block(_head(symbols[-1].name, low, high)):
                names = self._define([main], dict(scope), symbols, len(symbols))
                self.out.line(f"const float d = {names[id(main.term)]} - middle;")
                self.out.line("q += d * d;")
            self.out.line(f"const double step = middle - mean{n}, both = count{n} + m;")
            self.out.line(f"total{n} += q + step * step * count{n} * m / both;")
            self.out.line(f"mean{n} += step * m / both;")
            self.out.line(f"count{n} = both;")

    def _sumexp(
        self, symbols: list[Sym], roots: list[Root], scope: dict[int, str], bounds: tuple[str, str]
    ) -> None:
        """Maximum and sum of exp(x - maximum) so far, rescaled when the maximum grows."""
        main, n = roots[0], roots[0].number
        self.needs.add("exp")
        with self.out.block(""):
            self.out.line("float m = -__builtin_inff(), s = 0;")
            self.out.line("#pragma omp simd reduction(max:m)")
            with self.out.block(_head(symbols[-1].name, *bounds)):
                names = self._define(roots, dict(scope), symbols, len(symbols))
                for root in roots[1:]:
                    self._root(root, names, {})
                value = names[id(main.term)]
                self.out.line(f"m = {value} > m ? {value} : m;")
            with self.out.block(f"if (m > top{n})"):
                self.out.line(f"total{n} *= kf_exp(top{n} - m);")
                self.out.line(f"top{n} = m;")
            self.out.line(f"const bool none = top{n} == -__builtin_inff();")
            self.out.line("#pragma omp simd reduction(+:s)")
            with self.out.block(_head(symbols[-1].name, *bounds)):
                names = self._define([main], dict(scope), symbols, len(symbols))
                value = names[id(main.term)]
                self.out.line(f"s += none ? ({value} != {value} ? {value} : 0.0f)")
                self.out.line(f"          : kf_exp({value} - top{n});")
            self.out.line(f"total{n} += s;")

    # -- statements and streaming ---------------------------------------------------------------

    def _define(
        self,
        roots: Sequence[Root],
        scope: dict[int, str],
        symbols: list[Sym],
        depth: int,
        *,
        all_depths: bool = False,
    ) -> dict[int, str]:
        """Write the terms that belong to ``depth`` loops; adds their names to ``scope``."""
        self._symbol = symbols[-1].name if symbols else ""
        place = {symbol: position + 1 for position, symbol in enumerate(symbols)}
        for term in walk(root.term for root in roots):
            level = max((place.get(symbol, 0) for symbol in term.symbols), default=0)
            if id(term) in scope or (level != depth and not all_depths):
                continue
            scope[id(term)] = self._statement(term, scope)
        return scope

    def _statement(self, term: Term, scope: dict[int, str]) -> str:
        """Write one term as a constant; literals and finished reductions need no statement."""
        if term.kind == "const":
            return print_c.constant(term)
        if term.kind == "red":
            return f"red{term.data}"
        index = (term.ix or Ix()).code()
        if term.kind == "iota":
            text = index
        elif term.kind == "buffer":
            text = f"buffer{term.data}[{index}]"
        elif term.kind == "load":
            position = int(term.name)
            dtype = self.inputs[position].dtype
            text = print_c.load(f"in{position}", dtype, index, self.needs)
        else:
            text = print_c.operation(term, [scope[id(arg)] for arg in term.args], self.needs)
        name = self.out.fresh("t")
        self.out.line(f"const {term.ctype} {name} = {text};")
        return name

    def _streamed(self, root: Root, symbol: Sym) -> bool:
        wanted = root.kind == "store" and root.number in self.style.stream
        return wanted and symbol.size >= 256 and root.ix is not None and root.ix.factor(symbol) == 1

    def _flush(self, root: Root, symbol: Sym, bounds: tuple[str, str]) -> None:
        self.needs.add("stream")
        self.streams = True
        assert root.ix is not None  # noqa: S101  # _streamed has looked
        base = Ix(tuple(t for t in root.ix.terms if t[0] != symbol), root.ix.const)
        number, size = root.number, f"(int64_t)sizeof(tile{root.number}[0])"
        target = f"out{number} + {base.code()} + {bounds[0]}"
        self.out.line(f"kf_stream({target}, tile{number}, ({bounds[1]} - {bounds[0]}) * {size});")


def _head(name: str, low: str, high: str) -> str:
    return f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"


def _pragma(sums: list[tuple[str, Reduction]], checks_nan: object) -> str:
    clauses: dict[str, list[str]] = {}
    for operator, reduction in sums:
        clauses.setdefault(operator, []).append(f"part{reduction.number}")
        if callable(checks_nan) and checks_nan(reduction):
            clauses.setdefault("|", []).append(f"nan{reduction.number}")
    text = "".join(f" reduction({op}:{', '.join(names)})" for op, names in clauses.items())
    return f"#pragma omp simd{text}"
