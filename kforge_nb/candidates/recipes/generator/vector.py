"""Write innermost loops: one vector loop, several lanes for sums, tiles for streaming stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kforge_nb.candidates.recipes.generator import accumulate, print_c
from kforge_nb.candidates.recipes.generator.evaluate import Reduction
from kforge_nb.candidates.recipes.generator.index import Ix, Sym
from kforge_nb.candidates.recipes.generator.nest import Root
from kforge_nb.candidates.recipes.generator.statements import Scope, Statements
from kforge_nb.candidates.recipes.generator.terms import Term, walk
from kforge_nb.candidates.recipes.generator.writer import Writer
from kforge_nb.targets.target import TensorSpec

__all__ = ["Chunk", "Style", "VectorLoops"]

TILE = 1024
VECTOR = 16
MODERATE_ANGLE = "1e6f"


@dataclass(frozen=True, slots=True)
class Style:
    """Parameters of the emitter.

    ``stream``: outputs stored past the caches; ``width``: bits of a vector; ``block``: elements of
    a task; ``lanes``: independent partial sums of a reduction.
    """

    stream: frozenset[int] = frozenset()
    width: int = 0
    block: int = 16384
    lanes: int = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of the innermost loop: its symbols, bounds as C text, and length if it is fixed."""

    symbols: list[Sym]
    low: str
    high: str
    length: int
    tiles: list[Root]

    @property
    def symbol(self) -> Sym:
        """The innermost symbol."""
        return self.symbols[-1]


@dataclass
class VectorLoops:
    """Writes chunks; ``streams`` tells whether any store goes past the caches."""

    statements: Statements
    outputs: Sequence[TensorSpec]
    style: Style
    streams: bool = False
    reductions: dict[int, Reduction] = field(default_factory=dict)

    @property
    def _out(self) -> Writer:
        return self.statements.out

    def chunk(self, chunk: Chunk, roots: list[Root], scope: Scope) -> None:
        """The loops over one chunk."""
        first = self.reductions.get(roots[0].number) if roots[0].kind == "reduce" else None
        with self._out.block(""):
            if first is not None and first.node.kind == "m2":
                self._moments(chunk, roots, scope)
            elif first is not None and first.node.kind == "sumexp":
                self._sumexp(chunk, roots, scope)
            else:
                self._straight(chunk, roots, scope)

    def roots(self, roots: Sequence[Root], names: Scope, lane: str = "") -> None:
        """What is done with the finished terms, outside of tiles."""
        for root in roots:
            self._root(root, names, lane)

    def _straight(self, chunk: Chunk, roots: list[Root], scope: Scope) -> None:
        """Partial results, the vector loop, and what follows it."""
        out = self._out
        sums = [self.reductions[r.number] for r in roots if r.kind == "reduce"]
        for root in chunk.tiles:
            ctype = print_c.C_TYPES[self.outputs[root.number].dtype]
            out.line(f"alignas(64) {ctype} tile{root.number}[{TILE}];")
        self._summed(chunk, roots, scope, sums)
        for reduction in sums:
            number = reduction.number
            out.line(accumulate.combine(reduction, f"total{number}", f"part{number}"))
        for root in chunk.tiles:
            self._flush(root, chunk)

    def _summed(self, chunk: Chunk, roots: list[Root], scope: Scope, sums: list[Reduction]) -> None:
        """The vector loop with partial results for ``sums``, in lanes where it is long enough."""
        for reduction in sums:
            kind, start = accumulate.part_type(reduction), accumulate.initial(reduction)
            self._out.line(f"{kind} part{reduction.number} = {start};")

        def body(names: Scope, moved: Sequence[Root], lane: str) -> None:
            tiled = [r for r in moved if r.kind == "store" and chunk.tiles]
            self.roots([r for r in moved if r not in tiled], names, lane)
            for root in tiled:
                self._tile(root, names, chunk)

        self._loop(chunk, roots, scope, [(r, f"part{r.number}") for r in sums], body)

    def _loop(
        self,
        chunk: Chunk,
        roots: list[Root],
        scope: Scope,
        sums: list[tuple[Reduction, str]],
        body: Callable[[Scope, Sequence[Root], str], None],
    ) -> None:
        """A vector loop; with sums and enough elements, in ``style.lanes`` lanes plus a rest."""
        angles = [a for a in _angles(roots) if chunk.symbol in a.symbols]
        if angles:
            self._by_angle(chunk, angles, roots, scope, sums, body)
            return
        lanes = self.style.lanes
        step = VECTOR * lanes
        if not sums or lanes < 2 or chunk.tiles or (chunk.length and chunk.length < 2 * step):
            self._plain(chunk, chunk.low, chunk.high, roots, scope, sums, body)
            return
        quarter, edge = self._quarter(chunk, step)
        for reduction, part in sums:
            kind, start = accumulate.part_type(reduction), accumulate.initial(reduction)
            extra = ", ".join(f"{part}_{lane} = {start}" for lane in range(1, lanes))
            self._out.line(f"{kind} {extra};")
        name = chunk.symbol.name
        self._pragma(sums, lanes)
        with self._out.block(_head(name, chunk.low, f"{chunk.low} + {quarter}")):
            for lane in range(lanes):
                to = chunk.symbol
                if lane:
                    to = Sym(f"{name}_{lane}", chunk.symbol.low, chunk.symbol.high)
                    self._out.line(f"const int64_t {to.name} = {name} + {lane} * {quarter};")
                self._lane(chunk, to, roots, scope, body, f"_{lane}" if lane else "")
        for reduction, part in sums:
            for lane in range(1, lanes):
                self._out.line(accumulate.combine(reduction, part, f"{part}_{lane}"))
        if not chunk.length or chunk.length % step:
            self._plain(chunk, edge, chunk.high, roots, scope, sums, body)

    def _by_angle(
        self,
        chunk: Chunk,
        angles: list[Term],
        roots: list[Root],
        scope: Scope,
        sums: list[tuple[Reduction, str]],
        body: Callable[[Scope, Sequence[Root], str], None],
    ) -> None:
        """Sine and cosine: the vector form where all angles are moderate, else the library's."""
        out, statements = self._out, self.statements
        flag = out.fresh("far")
        out.line(f"int32_t {flag} = 0;")
        out.line(f"#pragma omp simd reduction(|:{flag})")
        probes = [Root("angle", 0, angle) for angle in angles]
        with out.block(_head(chunk.symbol.name, chunk.low, chunk.high)):
            names = statements.define(probes, dict(scope), chunk.symbols, len(chunk.symbols))
            for angle in angles:
                out.line(f"{flag} |= __builtin_fabsf({names[id(angle)]}) > {MODERATE_ANGLE};")
        with out.block(f"if ({flag})"):
            self._plain(chunk, chunk.low, chunk.high, roots, scope, sums, body)
        with out.block("else"):
            statements.near_angles = True
            self._plain(chunk, chunk.low, chunk.high, roots, scope, sums, body)
            statements.near_angles = False

    def _quarter(self, chunk: Chunk, step: int) -> tuple[str, str]:
        """Length of one lane, and where the rest begins, as C text."""
        if chunk.length:
            quarter = chunk.length // step * VECTOR
            return str(quarter), f"{chunk.low} + {quarter * self.style.lanes}"
        lane, edge = self._out.fresh("lane"), self._out.fresh("edge")
        whole = f"({chunk.high} - {chunk.low}) / {step} * {VECTOR}"
        self._out.line(f"const int64_t {lane} = {whole};")
        self._out.line(f"const int64_t {edge} = {chunk.low} + {lane} * {self.style.lanes};")
        return lane, edge

    def _lane(
        self,
        chunk: Chunk,
        to: Sym,
        roots: list[Root],
        scope: Scope,
        body: Callable[[Scope, Sequence[Root], str], None],
        lane: str,
    ) -> None:
        symbols = [*chunk.symbols[:-1], to]
        moved = roots if not lane else [self.statements.moved(r, chunk.symbol, to) for r in roots]
        body(self.statements.define(moved, dict(scope), symbols, len(symbols)), moved, lane)

    def _plain(
        self,
        chunk: Chunk,
        low: str,
        high: str,
        roots: list[Root],
        scope: Scope,
        sums: list[tuple[Reduction, str]],
        body: Callable[[Scope, Sequence[Root], str], None],
    ) -> None:
        self._pragma(sums, 1)
        with self._out.block(_head(chunk.symbol.name, low, high)):
            self._lane(chunk, chunk.symbol, roots, scope, body, "")

    def _pragma(self, sums: list[tuple[Reduction, str]], lanes: int) -> None:
        clauses: dict[str, list[str]] = {}
        for reduction, part in sums:
            names = [part, *(f"{part}_{lane}" for lane in range(1, lanes))]
            clauses.setdefault(accumulate.clause(reduction), []).extend(names)
            if accumulate.checks_nan(reduction):
                clauses.setdefault("|", []).append(f"nan{reduction.number}")
        text = "".join(f" reduction({op}:{', '.join(names)})" for op, names in clauses.items())
        self._out.line(f"#pragma omp simd{text}")

    # -- one pass for mean and deviation, one for maximum and sum of powers ---------------------

    def _moments(self, chunk: Chunk, roots: list[Root], scope: Scope) -> None:
        """Mean and squared distances of this chunk, merged into the row's (Chan's formula)."""
        main, out = roots[0], self._out
        n, fake = main.number, _plain_sum(self.reductions[main.number])
        ctype = accumulate.part_type(fake)
        self._sum_of(chunk, [main, *roots[1:]], scope, fake, "s", lambda value: value)
        out.line(f"const double m = (double)({chunk.high} - ({chunk.low}));")
        out.line(f"const {ctype} middle = ({ctype})(s / m);")
        square = "({0} - middle) * ({0} - middle)"
        self._sum_of(chunk, [main], scope, fake, "q", square.format)
        out.line(f"const double step = middle - mean{n}, both = count{n} + m;")
        out.line(f"total{n} += q + step * step * count{n} * m / both;")
        out.line(f"mean{n} += step * m / both;")
        out.line(f"count{n} = both;")

    def _sum_of(
        self,
        chunk: Chunk,
        roots: list[Root],
        scope: Scope,
        reduction: Reduction,
        name: str,
        form: Callable[[str], str],
    ) -> None:
        """``name`` = the sum of ``form(term of the first root)`` over the chunk."""
        self._out.line(f"{accumulate.part_type(reduction)} {name} = 0;")

        def body(names: Scope, moved: Sequence[Root], lane: str) -> None:
            self._out.line(f"{name}{lane} += {form(names[id(moved[0].term)])};")
            self.roots(moved[1:], names)

        self._loop(chunk, roots, scope, [(reduction, name)], body)

    def _sumexp(self, chunk: Chunk, roots: list[Root], scope: Scope) -> None:
        """Maximum and sum of exp(x - maximum) so far, rescaled when the maximum grows."""
        main, out, n = roots[0], self._out, roots[0].number
        self.statements.needs.add("exp_flush")
        top = _like(self.reductions[n], "max")
        out.line("float m = -__builtin_inff();")

        def body(names: Scope, moved: Sequence[Root], lane: str) -> None:
            value = names[id(moved[0].term)]
            out.line(f"m{lane} = {value} > m{lane} ? {value} : m{lane};")
            self.roots(moved[1:], names)

        self._loop(chunk, roots, scope, [(top, "m")], body)
        with out.block(f"if (m > top{n})"):
            out.line(f"total{n} *= kf_exp_flush(top{n} - m);")
            out.line(f"top{n} = m;")
        plain = _plain_sum(self.reductions[n])
        with out.block(f"if (top{n} == -__builtin_inff())"):
            self._sum_of(chunk, [main], scope, plain, "s", "({0} != {0} ? {0} : 0.0f)".format)
            out.line(f"total{n} += s;")
        with out.block("else"):
            self._sum_of(chunk, [main], scope, plain, "s", f"kf_exp_flush({{0}} - top{n})".format)
            out.line(f"total{n} += s;")

    # -- what is done with a value ---------------------------------------------------------------

    def _root(self, root: Root, names: Scope, lane: str) -> None:
        value = names[id(root.term)]
        index = root.ix.code() if root.ix is not None else "0"
        if root.kind == "buffer":
            self._out.line(f"buffer{root.number}[{index}] = {value};")
        elif root.kind == "store":
            self._out.line(f"out{root.number}[{index}] = {self._stored(root, value)};")
        else:
            for line in accumulate.add(self.reductions[root.number], value, lane):
                self._out.line(line)

    def _stored(self, root: Root, value: str) -> str:
        return print_c.store(value, self.outputs[root.number].dtype, self.statements.needs)

    def _tile(self, root: Root, names: Scope, chunk: Chunk) -> None:
        if any(root.number == tile.number for tile in chunk.tiles):
            place = f"tile{root.number}[{chunk.symbol.name} - {chunk.low}]"
            self._out.line(f"{place} = {self._stored(root, names[id(root.term)])};")
        else:
            self._root(root, names, "")

    def streamed(self, root: Root, symbol: Sym) -> bool:
        """Whether a store goes past the caches: wanted, dense and long enough."""
        wanted = root.kind == "store" and root.number in self.style.stream
        return wanted and symbol.size >= 256 and root.ix is not None and root.ix.factor(symbol) == 1

    def _flush(self, root: Root, chunk: Chunk) -> None:
        self.statements.needs.add("stream")
        self.streams = True
        ix = root.ix or Ix()
        base = Ix(tuple(t for t in ix.terms if t[0] != chunk.symbol), ix.const)
        number = root.number
        size = f"({chunk.high} - {chunk.low}) * (int64_t)sizeof(tile{number}[0])"
        target = f"out{number} + {base.code()} + {chunk.low}"
        self._out.line(f"kf_stream({target}, tile{number}, {size});")


def _head(name: str, low: str, high: str) -> str:
    return f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"


def _angles(roots: Sequence[Root]) -> list[Term]:
    """What sines and cosines below ``roots`` are taken of."""
    terms = walk(root.term for root in roots)
    trig = [t for t in terms if t.kind == "op" and t.name in ("sin", "cos") and t.ctype == "float"]
    return list({id(term.args[0]): term.args[0] for term in trig}.values())


def _like(reduction: Reduction, kind: str) -> Reduction:
    """A reduction of another kind over the same values, for its accumulator's text."""
    from dataclasses import replace

    node = replace(reduction.node, kind=kind)  # type: ignore[arg-type]
    return Reduction(reduction.number, node, reduction.outer)


def _plain_sum(reduction: Reduction) -> Reduction:
    return _like(reduction, "sum")
