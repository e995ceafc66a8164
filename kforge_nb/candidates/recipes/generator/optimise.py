"""Passes over a planned nest: keep row values in a buffer, merge loops, choose the innermost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kforge_nb.candidates.recipes.generator.index import Ix, Sym
from kforge_nb.candidates.recipes.generator.nest import Loop, Nest, Root, Variant
from kforge_nb.candidates.recipes.generator.terms import Term, Terms, walk

__all__ = ["Buffer", "cache_rows", "cacheable", "merge_loops", "order_loops"]

BUFFER_BYTES = 128 << 10
CACHE_COST = 3
_SIZES = {"float": 4, "double": 8}

Buffer = tuple[str, int]
"""C type and number of elements of a row buffer."""


def cacheable(nest: Nest) -> bool:
    """Whether any value of a row is worth keeping between passes."""
    return any(_repeated(variant) for variant in nest.variants)


def cache_rows(variant: Variant, terms: Terms) -> list[Buffer]:
    """Let the first pass that computes a costly value keep it, and later passes read it.

    Returns:
        The buffers that the row needs. Buffers that would not fit near the core are not made.
    """
    buffers: list[Buffer] = []
    for term, first, users in _repeated(variant):
        elements = math.prod(s.size for s in first.symbols)
        total = sum(size * _SIZES[ctype] for ctype, size in buffers)
        if total + elements * _SIZES[term.ctype] > BUFFER_BYTES:
            continue
        number = len(buffers)
        buffers.append((term.ctype, elements))
        ix = _dense(first.symbols)
        read = terms.make("buffer", number, term.ctype, ix=ix)
        first.roots.append(Root("buffer", number, term, ix))
        for loop in users:
            _swap(loop, term, read, terms)
    return buffers


def _repeated(variant: Variant) -> list[tuple[Term, Loop, list[Loop]]]:
    """Costly terms, each with the loop that computes it first and the later ones that need it."""
    loops = [loop for sweep in variant.passes for loop in sweep.loops if loop.symbols]
    first: dict[int, Loop] = {}
    found: dict[int, tuple[Term, Loop, list[Loop]]] = {}
    for loop in loops:
        for term in _frontier(loop, first):
            origin = first[id(term)]
            if tuple(origin.symbols) == tuple(loop.symbols) and origin is not loop:
                found.setdefault(id(term), (term, origin, []))[2].append(loop)
        for term in walk(root.term for root in loop.roots):
            first.setdefault(id(term), loop)
    return list(found.values())


def _frontier(loop: Loop, first: dict[int, Loop]) -> list[Term]:
    """The largest terms of a loop that an earlier loop has computed and that are worth keeping."""
    found: list[Term] = []
    stack = [root.term for root in loop.roots]
    seen: set[int] = set()
    while stack:
        term = stack.pop()
        if id(term) in seen:
            continue
        seen.add(id(term))
        worth = term.cost >= CACHE_COST and term.ctype in _SIZES
        if worth and id(term) in first and term.symbols & set(loop.symbols):
            found.append(term)
        else:
            stack.extend(term.args)
    return found


def _dense(symbols: Sequence[Sym]) -> Ix:
    total = Ix()
    for symbol in symbols:
        total = total * symbol.size + Ix.of(symbol) + (-symbol.low)
    return total


def _swap(loop: Loop, old: Term, new: Term, terms: Terms) -> None:
    for root in loop.roots:
        root.term = terms.rebuild(root.term, lambda term: new if term is old else None)


def merge_loops(variant: Variant, terms: Terms) -> None:
    """Make one loop of two neighbours wherever every index allows it."""
    loops = [loop for sweep in variant.passes for loop in sweep.loops]
    _merge(variant.rows, loops, terms)
    for loop in loops:
        _merge(loop.symbols, [loop], terms)


def _merge(symbols: list[Sym], loops: Sequence[Loop], terms: Terms) -> None:
    position = 0
    while position + 1 < len(symbols):
        outer, inner = symbols[position], symbols[position + 1]
        indices = list(_indices(loops))
        if all(_mergeable(ix, outer, inner) for ix in indices):
            both = Sym(outer.name + inner.name, 0, outer.size * inner.size)
            symbols[position : position + 2] = [both]
            _substitute(loops, terms, outer, inner, both)
            position = max(0, position - 1)
        else:
            position += 1


def _mergeable(ix: Ix, outer: Sym, inner: Sym) -> bool:
    high, low = ix.factor(outer), ix.factor(inner)
    if high is None or low is None or outer.low != 0 or inner.low != 0:
        return False
    return high == low * inner.size


def _indices(loops: Iterable[Loop]) -> Iterable[Ix]:
    for loop in loops:
        for root in loop.roots:
            if root.ix is not None:
                yield root.ix
        for term in walk(root.term for root in loop.roots):
            if term.ix is not None:
                yield term.ix


def _substitute(loops: Iterable[Loop], terms: Terms, outer: Sym, inner: Sym, both: Sym) -> None:
    def index(ix: Ix) -> Ix:
        factor = ix.factor(inner) or 0
        rest = [t for t in ix.terms if t[0] not in (outer, inner)]
        return Ix.build([*rest, (both, factor)], ix.const)

    def change(term: Term) -> Term | None:
        if term.ix is None or not term.ix.symbols & {outer, inner}:
            return None
        return terms.make(term.kind, term.data, term.ctype, ix=index(term.ix), args=term.args)

    for loop in loops:
        for root in loop.roots:
            root.term = terms.rebuild(root.term, change)
            root.ix = index(root.ix) if root.ix is not None else None


def order_loops(variant: Variant, *, reducing: bool) -> None:
    """Order free loops by the first output's strides, and put the best loop innermost."""
    for sweep in variant.passes:
        for loop in sweep.loops:
            if not reducing:
                main = next((r.ix for r in loop.roots if r.ix is not None), Ix())
                loop.symbols.sort(key=lambda s: -(main.factor(s) or 0))
            elif len(loop.symbols) > 1:
                best = max(loop.symbols, key=lambda s: _score(loop, s))
                loop.symbols.remove(best)
                loop.symbols.append(best)


def _score(loop: Loop, symbol: Sym) -> tuple[bool, int, int]:
    """How good a symbol is as the innermost loop: long enough, dense accesses, later is better."""
    points = 0
    for ix in _indices([loop]):
        factor = ix.factor(symbol)
        points += {1: 3, 0: 1}.get(-1 if factor is None else factor, 0)
    return symbol.size >= 16, points, loop.symbols.index(symbol)
