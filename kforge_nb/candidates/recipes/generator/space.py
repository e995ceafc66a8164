"""The loops of a nest before they are ordered: dimensions, split into factors, cut in segments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product

from kforge_nb.candidates.recipes.generator.index import Ix, Sym
from kforge_nb.candidates.recipes.generator.ir import Unsupported

__all__ = ["Choice", "Refine", "Space"]

MAX_REFINEMENTS = 40
MAX_SEGMENTS = 16

Choice = dict[str, Sym]
"""The symbol, with the range of one segment, for each factor's name."""


class Refine(Exception):
    """A loop has to be split (``size`` of the inner part) or cut (``at``); then start again."""

    def __init__(self, name: str, *, size: int = 0, at: int = 0) -> None:
        super().__init__(f"{name}: {size or at}")
        self.name, self.size, self.at = name, size, at


@dataclass
class Space:
    """Groups of dimensions, each dimension a list of factors ``(name, size)``, outer to inner.

    The groups are ``row``, ``inner``, and one more for each output with loops of its own.
    """

    groups: dict[str, list[list[tuple[str, int]]]] = field(default_factory=dict)
    cuts: dict[str, set[int]] = field(default_factory=dict)
    refinements: int = 0

    def add(self, group: str, sizes: Iterable[int]) -> None:
        """A new group with one unsplit factor for each dimension."""
        self.groups[group] = [[(f"{group}{dim}", size)] for dim, size in enumerate(sizes)]

    def sizes(self, group: str) -> tuple[int, ...]:
        """Sizes of the dimensions of a group."""
        return tuple(math.prod(size for _, size in dim) for dim in self.groups[group])

    def refine(self, wish: Refine) -> None:
        """Split or cut one factor."""
        self.refinements += 1
        if self.refinements > MAX_REFINEMENTS:
            raise Unsupported("its views need too many different loops")
        if wish.size == 0:
            cuts = self.cuts.setdefault(wish.name, set())
            cuts.add(wish.at)
            if len(cuts) >= MAX_SEGMENTS:
                raise Unsupported(f"a concatenation of more than {MAX_SEGMENTS} pieces")
            return
        if wish.name in self.cuts:
            raise Unsupported("a concatenation and a reshape of it that do not fit together")
        for dims in self.groups.values():
            for factors in dims:
                for position, (name, size) in enumerate(factors):
                    if name == wish.name:
                        halves = [(f"{name}a", size // wish.size), (f"{name}b", wish.size)]
                        factors[position : position + 1] = halves
                        return
        raise Unsupported(f"a loop {wish.name} that no longer exists")

    def names(self, group: str) -> list[str]:
        """Names of all factors of a group, outer to inner."""
        return [name for factors in self.groups[group] for name, _ in factors]

    def choices(self, groups: Iterable[str]) -> Iterator[Choice]:
        """Every combination of segments of the groups' factors."""
        factors = [f for group in groups for dim in self.groups[group] for f in dim]
        segments = []
        for name, size in factors:
            edges = [0, *sorted(self.cuts.get(name, ())), size]
            segments.append([Sym(name, low, high) for low, high in pairwise(edges)])
        for symbols in product(*segments):
            yield {symbol.name: symbol for symbol in symbols}

    def index(self, group: str, choice: Choice) -> tuple[Ix, ...]:
        """The index along each dimension of a group."""
        found = []
        for factors in self.groups[group]:
            total = Ix()
            for name, size in factors:
                total = total * size + Ix.of(choice[name])
            found.append(total)
        return tuple(found)
