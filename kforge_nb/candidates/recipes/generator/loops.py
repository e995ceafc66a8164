"""Write the loops of one row: terms as statements, each as far out as its symbols allow."""

from __future__ import annotations

from dataclasses import dataclass, field

from kforge_nb.candidates.recipes.generator import accumulate
from kforge_nb.candidates.recipes.generator.evaluate import Reduction
from kforge_nb.candidates.recipes.generator.index import Sym
from kforge_nb.candidates.recipes.generator.nest import Loop, Pass, Root, Variant
from kforge_nb.candidates.recipes.generator.statements import Scope, Statements
from kforge_nb.candidates.recipes.generator.vector import Chunk, VectorLoops

__all__ = ["RowWriter"]

CHUNK = 2048
TILE = 1024


@dataclass
class RowWriter:
    """Writes all passes over a row."""

    statements: Statements
    vectors: VectorLoops
    reductions: dict[int, Reduction] = field(default_factory=dict)
    block: int = 0

    def row(self, variant: Variant) -> None:
        """All passes over the row that the row symbols select."""
        self.block = variant.block
        scope: Scope = {}
        for sweep in variant.passes:
            self._sweep(sweep, scope)

    def _sweep(self, sweep: Pass, scope: Scope) -> None:
        """One pass: accumulators, loops, and the finished reductions as row values."""
        out = self.statements.out
        self.reductions = {r.number: r for r in sweep.reductions}
        self.vectors.reductions = self.reductions
        for reduction in sweep.reductions:
            for line in accumulate.start(reduction):
                out.line(line)
        for loop in sweep.loops:
            self._loop(loop, scope)
        for reduction in sweep.reductions:
            out.line(accumulate.finish(reduction))

    def _loop(self, loop: Loop, scope: Scope) -> None:
        """One loop; special reductions take the simple ones they include along."""
        symbols = loop.symbols
        if not symbols and any(root.kind == "reduce" for root in loop.roots):
            symbols = [Sym("once", 0, 1)]
        special = [r for r in loop.roots if self._special(r)]
        plain = [r for r in loop.roots if r not in special]
        for root in special:
            twin = self._twin(root, plain)
            if twin is not None:
                plain.remove(twin)
            buffers = [r for r in plain if r.kind == "buffer"]
            along = buffers if len(buffers) == len(plain) else []
            plain = [r for r in plain if r not in along]
            self._nest(symbols, [root, *along], scope)
            if twin is not None:
                self._take(root, twin)
        if plain:
            self._nest(symbols, plain, scope)

    def _special(self, root: Root) -> bool:
        return root.kind == "reduce" and accumulate.is_special(self.reductions[root.number])

    def _twin(self, root: Root, plain: list[Root]) -> Root | None:
        """The mean or maximum of the same term, which the special reduction computes anyway."""
        wanted = accumulate.twin_kind(self.reductions[root.number])
        for other in plain:
            same = other.kind == "reduce" and other.term is root.term
            if same and self.reductions[other.number].node.kind == wanted:
                return other
        return None

    def _take(self, root: Root, twin: Root) -> None:
        number = root.number
        moments = self.reductions[number].node.kind == "m2"
        value = f"mean{number} * count{number}" if moments else f"top{number}"
        self.statements.out.line(f"total{twin.number} = {value};")

    def _nest(self, symbols: list[Sym], roots: list[Root], scope: Scope) -> None:
        """Loops around ``roots``; statements go out to where their symbols are known."""
        if not symbols:
            self.statements.define(roots, scope, None, 0)
            self.vectors.roots(roots, scope)
            return
        self.statements.define(roots, scope, symbols, 0)
        self._descend(symbols, 0, roots, dict(scope))

    def _descend(self, symbols: list[Sym], depth: int, roots: list[Root], scope: Scope) -> None:
        symbol = symbols[depth]
        if depth == len(symbols) - 1:
            self._innermost(symbols, roots, scope)
            return
        head = f"for (int64_t {symbol.name} = {symbol.low}; "
        with self.statements.out.block(f"{head}{symbol.name} < {symbol.high}; ++{symbol.name})"):
            self.statements.define(roots, scope, symbols, depth + 1)
            self._descend(symbols, depth + 1, roots, dict(scope))

    def _innermost(self, symbols: list[Sym], roots: list[Root], scope: Scope) -> None:
        """The innermost loop, in chunks where sums or tiles ask for it."""
        out, symbol = self.statements.out, symbols[-1]
        tiles = [r for r in roots if self.vectors.streamed(r, symbol)]
        chunked = tiles or any(r.kind == "reduce" for r in roots)
        step = TILE if tiles else CHUNK
        low, high = str(symbol.low), str(symbol.high)
        length = symbol.size
        if self.block:
            out.line(f"const int64_t low = {symbol.low} + block * {self.block};")
            end = f"low + {self.block}"
            out.line(f"const int64_t high = {end} < {high} ? {end} : {high};")
            low, high, length = "low", "high", self.block
        if not chunked or length <= step:
            fixed = 0 if self.block else length
            self.vectors.chunk(Chunk(symbols, low, high, fixed, tiles), roots, scope)
            return
        first, last = out.fresh("a"), out.fresh("b")
        with out.block(f"for (int64_t {first} = {low}; {first} < {high}; {first} += {step})"):
            end = f"{first} + {step}"
            out.line(f"const int64_t {last} = {end} < {high} ? {end} : {high};")
            self.vectors.chunk(Chunk(symbols, first, last, 0, tiles), roots, scope)
