"""Ask values of the IR for their element at an index, giving terms and the reductions they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kforge_nb.candidates.recipes.generator.index import Ix, Sym, find_split, weighted_sum
from kforge_nb.candidates.recipes.generator.ir import (
    Cast,
    Const,
    Input,
    Iota,
    Node,
    Piecewise,
    Point,
    Reduce,
    Unsupported,
    View,
    compute_type,
)
from kforge_nb.candidates.recipes.generator.space import Refine
from kforge_nb.candidates.recipes.generator.terms import Term, Terms
from kforge_nb.candidates.recipes.generator.views import broadcast_index

__all__ = ["Evaluator", "Reduction"]

Index = tuple[Ix, ...]
_NARROW = {"int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t"}


@dataclass(eq=False)
class Reduction:
    """One reduction for the current row: node, index of the row, and what is reduced."""

    number: int
    node: Reduce
    outer: Index
    level: int = 0
    sources: list[tuple[tuple[object, ...], Term]] = field(default_factory=list)


class Evaluator:
    """Evaluates nodes at indices; ``on_reduction`` decides what a reduction's term is."""

    def __init__(self, terms: Terms, on_reduction: Callable[[Reduce, Index], Term]) -> None:
        self.terms = terms
        self.on_reduction = on_reduction
        self._done: dict[tuple[int, Index], Term] = {}

    def at(self, node: Node, index: Index) -> Term:
        """The term of ``node`` at ``index`` (one Ix for each dimension).

        Raises:
            Refine: a loop has to be split or cut first.
            Unsupported: no loop can read it.
        """
        key = (id(node), index)
        found = self._done.get(key)
        if found is None:
            found = self._done[key] = self._at(node, index)
        return found

    def _at(self, node: Node, index: Index) -> Term:
        make = self.terms.make
        match node:
            case Input():
                ix = settled(weighted_sum(index, node.stride))
                return make("load", node.position, compute_type(node.dtype), ix=ix)
            case Const():
                return make("const", _plain(node), compute_type(node.dtype))
            case Iota():
                ix = settled(index[0] * node.step + node.start)
                return make("iota", "iota", "int64_t", ix=ix)
            case Point():
                args = [self.at(a, broadcast_index(index, a.shape)) for a in node.args]
                if node.op == "copy":
                    return args[0]
                return make("op", node.op, compute_type(node.dtype), args=args)
            case Cast():
                return self._cast(node, self.at(node.source, index))
            case View():
                return self.at(node.source, node.index(index))
            case Piecewise():
                return self._piece(node, index)
            case Reduce():
                return self.on_reduction(node, tuple(settled(ix) for ix in index))
        raise Unsupported(f"a value of kind {type(node).__name__}")

    def _cast(self, node: Cast, source: Term) -> Term:
        make, wanted = self.terms.make, compute_type(node.dtype)
        if node.dtype in _NARROW and node.source.dtype != "bool":
            return make("op", f"narrow:{_NARROW[node.dtype]}", wanted, args=[source])
        if source.ctype != wanted:
            return make("op", f"cast:{wanted}", wanted, args=[source])
        if node.explicit and node.dtype in ("bfloat16", "float16"):
            return make("op", f"round:{node.dtype}", wanted, args=[source])
        return source

    def _piece(self, node: Piecewise, index: Index) -> Term:
        at = settled(index[node.dim])
        low, high = at.bounds
        edges = [*node.starts, node.shape[node.dim]]
        for number, piece in enumerate(node.pieces):
            first, last = edges[number], edges[number + 1]
            if first <= low and high < last:
                inside = (*index[: node.dim], at + (-first), *index[node.dim + 1 :])
                return self.at(piece, inside)
            if low < last <= high:
                raise _cut(at, last)
        raise Unsupported("a concatenation read out of its range")


def _plain(node: Const) -> float | int | bool:
    wanted = compute_type(node.dtype)
    if wanted == "bool":
        return bool(node.value)
    return int(node.value) if wanted == "int64_t" else float(node.value)


def settled(ix: Ix) -> Ix:
    """``ix`` itself, if no loop split can make it simpler; else asks for that split."""
    split = find_split(ix)
    if split is not None:
        raise Refine(split[0].name, size=split[1])
    return ix


def _cut(at: Ix, edge: int) -> Exception:
    """Ask for the loop cut that puts ``edge`` between two segments."""
    for symbol, factor in sorted(at.terms, key=lambda term: -abs(term[1])):
        if not isinstance(symbol, Sym):
            continue
        rest_low, rest_high = Ix(tuple(t for t in at.terms if t[0] != symbol), at.const).bounds
        span = rest_high - rest_low + 1
        if factor > 0 and span <= factor and (edge - rest_low) % factor == 0:
            return Refine(symbol.name, at=(edge - rest_low) // factor)
        if factor < 0 and span <= -factor and (rest_high + 1 - edge) % -factor == 0:
            return Refine(symbol.name, at=(rest_high + 1 - edge) // -factor)
    return Unsupported("a concatenation whose pieces do not fit the loops")
