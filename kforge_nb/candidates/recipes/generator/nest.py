"""Plan loop nests: rows, passes over a row, and what each pass reduces or stores.

Outputs that share rows share a nest. Within a row, reductions are finished level by level (one pass
over the row for all reductions of a level), then one pass stores the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kforge_nb.candidates.recipes.generator.evaluate import Evaluator, Index, Reduction, settled
from kforge_nb.candidates.recipes.generator.fit import Fit, fits, reduction_index, reductions_of
from kforge_nb.candidates.recipes.generator.index import Ix, Sym, weighted_sum
from kforge_nb.candidates.recipes.generator.ir import Node, Reduce, Unsupported, compute_type
from kforge_nb.candidates.recipes.generator.space import Choice, Refine, Space
from kforge_nb.candidates.recipes.generator.terms import Term, Terms
from kforge_nb.targets.target import TensorSpec

__all__ = ["Loop", "Nest", "Pass", "Root", "Variant", "plan_nests"]


@dataclass(eq=False)
class Root:
    """What a loop does with a term.

    ``kind`` is ``store`` (to an output), ``reduce`` or ``buffer`` (keep it for later passes);
    ``number`` is that of the output, reduction or buffer.
    """

    kind: str
    number: int
    term: Term
    ix: Ix | None = None


@dataclass(eq=False)
class Loop:
    """Loops over ``symbols`` (outer to inner) around ``roots``; no symbols: once a row."""

    symbols: list[Sym]
    roots: list[Root]


@dataclass(eq=False)
class Pass:
    """One sweep over a row: loops one after the other, then ``reductions`` are finished."""

    loops: list[Loop]
    reductions: list[Reduction] = field(default_factory=list)


@dataclass(eq=False)
class Variant:
    """A nest for one segment of the rows (most have only one).

    With ``block`` the only loop of the only pass is cut into tasks of so many elements.
    """

    rows: list[Sym]
    passes: list[Pass]
    block: int = 0


@dataclass(eq=False)
class Nest:
    """A group of outputs computed together; ``reducing`` tells whether a row has passes."""

    variants: list[Variant]
    reducing: bool
    outputs: tuple[int, ...]
    terms: Terms


Placed = tuple[int, Node, Fit]


def plan_nests(outputs: Sequence[Node], specs: Sequence[TensorSpec]) -> list[Nest]:
    """Nests that compute all outputs; raises Unsupported with the reason."""
    waiting = list(enumerate(outputs))
    nests: list[Nest] = []
    while waiting:
        number, output = min(waiting, key=lambda entry: not reductions_of(entry[1]))
        needed = reductions_of(output)
        nest = (
            _reducing(waiting, number, needed[0], specs)
            if needed
            else _pointwise(waiting, output, specs)
        )
        nests.append(nest)
        waiting = [entry for entry in waiting if entry[0] not in nest.outputs]
    return nests


def _pointwise(waiting: list[tuple[int, Node]], first: Node, specs: Sequence[TensorSpec]) -> Nest:
    space = Space()
    space.add("row", ())
    space.add("inner", first.shape)
    same = Fit(("row", "inner"), lambda space, choice: space.index("inner", choice))
    group = [
        (n, node, same)
        for n, node in waiting
        if node.shape == first.shape and not reductions_of(node)
    ]
    return _planned(space, group, specs, reducing=False)


def _reducing(
    waiting: list[tuple[int, Node]], number: int, primary: Reduce, specs: Sequence[TensorSpec]
) -> Nest:
    """The nest of output ``number`` and of all others that fit its rows."""
    shape = primary.source.shape
    space = Space()
    space.add("row", [s for d, s in enumerate(shape) if d not in primary.dims])
    space.add("inner", [shape[d] for d in primary.dims])
    group: list[Placed] = []
    reason = "its outputs do not share the rows of its reductions"
    for n, node in sorted(waiting, key=lambda entry: entry[0] != number):
        for fit in fits(node, primary, space):
            try:
                _planned(space, [(n, node, fit)], specs, reducing=True)
            except Unsupported as problem:
                reason = str(problem)
                continue
            group.append((n, node, fit))
            break
        if not group:
            raise Unsupported(reason)
    return _planned(space, group, specs, reducing=True)


def _planned(
    space: Space, group: list[Placed], specs: Sequence[TensorSpec], *, reducing: bool
) -> Nest:
    """Plan, refining the loops until every index is plain."""
    while True:
        terms = Terms()
        try:
            variants = [
                _Planner(space, choice, group, specs, terms).variant()
                for choice in space.choices(["row"])
            ]
        except Refine as wish:
            space.refine(wish)
        else:
            return Nest(variants, reducing, tuple(n for n, _, _ in group), terms)


class _Planner:
    """Plans the passes for one segment of the rows."""

    def __init__(
        self,
        space: Space,
        row: Choice,
        group: list[Placed],
        specs: Sequence[TensorSpec],
        terms: Terms,
    ) -> None:
        self.space, self.row, self.group, self.specs, self.terms = space, row, group, specs, terms
        self.reductions: dict[tuple[int, Index], Reduction] = {}
        self.row_symbols = {s for s in row.values() if s.size > 1}
        self.evaluator = Evaluator(terms, self._reduction)

    def variant(self) -> Variant:
        """The passes, reductions level by level, then the outputs."""
        stores = [loop for placed in self.group for loop in self._stores(*placed)]
        levels = sorted({r.level for r in self.reductions.values()})
        passes = [self._level(level) for level in levels]
        return Variant(self._live("row", self.row), [*passes, Pass(_merged(stores))])

    def _stores(self, number: int, node: Node, fit: Fit) -> list[Loop]:
        loops = []
        groups = [group for group in fit.groups if group != "row"]
        for choice in self.space.choices(groups):
            index = fit.index(self.space, {**self.row, **choice})
            term = self.evaluator.at(node, index)
            self._reject_partial(term, fit)
            ix = settled(weighted_sum(index, self.specs[number].stride))
            symbols = [s for group in groups for s in self._live(group, choice)]
            loops.append(Loop(symbols, [Root("store", number, term, ix)]))
        return loops

    def _reject_partial(self, term: Term, fit: Fit) -> None:
        """An output with one value a row must not depend on the place within the row."""
        inner = {s for s in term.symbols if s not in self.row_symbols}
        if fit.groups == ("row",) and inner:
            raise Unsupported("an output that is neither a row nor a value of a row")

    def _live(self, group: str, choice: Choice) -> list[Sym]:
        return [choice[n] for n in self.space.names(group) if choice[n].size > 1]

    def _reduction(self, node: Reduce, outer: Index) -> Term:
        """The term of a reduction for the current row; plans it when first asked for."""
        key = (id(node), outer)
        found = self.reductions.get(key)
        if found is None:
            needed = set().union(*(ix.symbols for ix in outer)) if outer else set()
            if needed != self.row_symbols:
                raise Unsupported("a reduction whose rows are not those of the other values")
            found = self.reductions[key] = Reduction(len(self.reductions), node, outer)
            self._sources(found)
        return self.terms.make("red", found.number, compute_type(node.dtype))

    def _sources(self, reduction: Reduction) -> None:
        needed: set[int] = set()
        for choice in self.space.choices(["inner"]):
            index = reduction_index(
                reduction.node, reduction.outer, self.space, {**self.row, **choice}
            )
            term = self.evaluator.at(reduction.node.source, index)
            reduction.sources.append((tuple(self._live("inner", choice)), term))
            needed |= term.reductions
        by_number = {r.number: r for r in self.reductions.values()}
        reduction.level = 1 + max((by_number[n].level for n in needed), default=0)

    def _level(self, level: int) -> Pass:
        found = [r for r in self.reductions.values() if r.level == level]
        loops = [
            Loop(list(symbols), [Root("reduce", reduction.number, term)])  # type: ignore[arg-type]
            for reduction in found
            for symbols, term in reduction.sources
        ]
        return Pass(_merged(loops), found)


def _merged(loops: list[Loop]) -> list[Loop]:
    """Loops over the same symbols become one, in order of first appearance.

    Pieces of one reduction stay apart, even where each piece is a single element.
    """
    merged: list[Loop] = []
    for loop in loops:
        numbers = {root.number for root in loop.roots if root.kind == "reduce"}
        for other in merged:
            taken = {root.number for root in other.roots if root.kind == "reduce"}
            if other.symbols == loop.symbols and not numbers & taken:
                other.roots += loop.roots
                break
        else:
            merged.append(Loop(list(loop.symbols), list(loop.roots)))
    return merged
