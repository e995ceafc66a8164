"""Fit outputs to the loops of a nest: which loop indices give which element of which output.

The loops of a nest with reductions are those of its first reduction: its kept dimensions are the
rows, its reduced ones the inner loops. Each output is tried as the reduction's source is indexed,
as a reshape of that, as one value a row, and last by asking which row its elements need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kforge_nb.candidates.recipes.generator.evaluate import Evaluator, Index
from kforge_nb.candidates.recipes.generator.index import Ix, weighted_sum
from kforge_nb.candidates.recipes.generator.ir import (
    Cast,
    Node,
    Piecewise,
    Point,
    Reduce,
    Unsupported,
    View,
)
from kforge_nb.candidates.recipes.generator.space import Choice, Refine, Space
from kforge_nb.candidates.recipes.generator.terms import Term, Terms
from kforge_nb.candidates.recipes.generator.views import row_major, spread

__all__ = ["Fit", "fits", "reduction_index", "reductions_of"]


@dataclass(frozen=True)
class Fit:
    """How an output is indexed from a space: the groups it loops over, and its index."""

    groups: tuple[str, ...]
    index: Callable[[Space, Choice], Index]


def reductions_of(root: Node) -> list[Reduce]:
    """All reductions that ``root`` needs, those needed first in front."""
    found: list[Reduce] = []
    seen: set[int] = set()

    def visit(node: Node) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        for part in _parts(node):
            visit(part)
        if isinstance(node, Reduce):
            found.append(node)

    visit(root)
    return found


def _parts(node: Node) -> Iterable[Node]:
    match node:
        case Point():
            return node.args
        case Cast() | View() | Reduce():
            return (node.source,)
        case Piecewise():
            return node.pieces
    return ()


def reduction_index(node: Reduce, outer: Index, space: Space, choice: Choice) -> Index:
    """The index of ``node.source``: ``outer`` where it is kept, inner loops where it is reduced."""
    sizes = tuple(node.source.shape[dim] for dim in node.dims)
    inner = space.index("inner", choice)
    if sizes != space.sizes("inner"):
        if math.prod(sizes) != math.prod(space.sizes("inner")):
            raise Unsupported("its reductions run over different numbers of elements")
        inner = spread(weighted_sum(inner, row_major(space.sizes("inner"))), sizes)
    kept, reduced = iter(outer), iter(inner)
    return tuple(
        next(reduced) if dim in node.dims else next(kept) for dim in range(len(node.source.shape))
    )


def fits(output: Node, primary: Reduce, space: Space) -> Iterable[Fit]:
    """Ways to index ``output`` from the loops of ``primary``, best first."""
    rows = tuple(s for d, s in enumerate(primary.source.shape) if d not in primary.dims)
    whole, both = primary.source.shape, ("row", "inner")

    def of_source(space: Space, choice: Choice) -> Index:
        kept, reduced = iter(space.index("row", choice)), iter(space.index("inner", choice))
        return tuple(next(reduced) if d in primary.dims else next(kept) for d in range(len(whole)))

    def of_reshape(space: Space, choice: Choice) -> Index:
        return spread(weighted_sum(of_source(space, choice), row_major(whole)), output.shape)

    def of_row(space: Space, choice: Choice) -> Index:
        linear = weighted_sum(space.index("row", choice), row_major(rows))
        return spread(linear, output.shape)

    if output.shape == whole:
        yield Fit(both, of_source)
    elif math.prod(output.shape) == math.prod(whole):
        yield Fit(both, of_reshape)
    if math.prod(output.shape) == math.prod(rows):
        yield Fit(("row",), of_row)
    asked = _ask(output, primary, space)
    if asked is not None:
        yield asked


def _ask(output: Node, primary: Reduce, space: Space) -> Fit | None:
    """Evaluate ``output`` over loops of its own and see which of them select the row."""
    own = Space()
    own.add("own", output.shape)
    while True:
        try:
            demand = _demand(output, primary, own)
            break
        except Refine as wish:
            own.refine(wish)
    if demand is None:
        return None
    names = [_single(ix) for ix in demand]
    sizes = [dict(f for d in own.groups["own"] for f in d).get(n or "", 1) for n in names]
    rows = tuple(s for d, s in enumerate(primary.source.shape) if d not in primary.dims)
    if any(n is None and s != 1 for n, s in zip(names, rows, strict=True)) or tuple(sizes) != rows:
        return None
    return _bind(own, [n for n in names if n], names, space)


def _bind(own: Space, taken: list[str], names: list[str | None], space: Space) -> Fit | None:
    """Loops of ``own`` that select the row become the row's; the rest are inner or a new group."""
    if len(set(taken)) != len(taken):
        return None
    rest = [f for dim in own.groups["own"] for f in dim if f[0] not in taken and f[1] > 1]
    group = "inner"
    if [size for _, size in rest] != [s for s in space.sizes("inner") if s > 1]:
        group = f"free{len(space.groups)}x"
        space.add(group, [size for _, size in rest])

    def index(space: Space, choice: Choice) -> Index:
        rows = zip(names, space.index("row", choice), strict=True)
        known = {name: ix for name, ix in rows if name is not None}
        long = zip(space.index(group, choice), space.sizes(group), strict=True)
        values = [ix for ix, size in long if size > 1]
        known |= {name: ix for (name, _), ix in zip(rest, values, strict=True)}
        return tuple(_joined(factors, known) for factors in own.groups["own"])

    return Fit(("row", group), index)


def _joined(factors: list[tuple[str, int]], known: dict[str, Ix]) -> Ix:
    total = Ix()
    for name, size in factors:
        total = total * size + known.get(name, Ix())
    return total


def _single(ix: Ix) -> str | None:
    """The name of the only symbol, if ``ix`` is nothing but that symbol."""
    if len(ix.terms) == 1 and ix.const == 0 and ix.terms[0][1] == 1:
        return getattr(ix.terms[0][0], "name", None)
    return None


def _demand(output: Node, primary: Reduce, own: Space) -> Index | None:
    """The row index of a reduction that ``output`` asks for, in symbols of its own loops."""
    terms, found = Terms(), []

    def on_reduction(node: Reduce, outer: Index) -> Term:
        if node.dims == primary.dims and node.source.shape == primary.source.shape:
            found.append(outer)
        return terms.make("red", len(found), "float")

    for choice in own.choices(["own"]):
        Evaluator(terms, on_reduction).at(output, own.index("own", choice))
        break
    return found[0] if found else None
