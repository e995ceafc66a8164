"""Index arithmetic: where a loop iteration reads and writes, as exact integer expressions.

An index is an affine sum of loop symbols plus, where a reshape does not fit the loops, quotients
and remainders of such sums. Sizes are known, so most quotients vanish by themselves. What is left
asks for a finer loop: :func:`find_split` says which symbol to split, and where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Atom", "Ix", "Sym", "find_split", "floordiv", "mod", "weighted_sum"]


@dataclass(frozen=True, slots=True)
class Sym:
    """A loop symbol that runs over ``[low, high)``; ``name`` is its C name."""

    name: str
    low: int
    high: int

    @property
    def size(self) -> int:
        """Number of iterations."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Atom:
    """``inner // by`` or ``inner % by`` (``kind`` is ``/`` or ``%``), not to be simplified."""

    kind: str
    inner: Ix
    by: int


@dataclass(frozen=True)
class Ix:
    """``const`` plus the sum of coefficient × symbol or atom, terms in a fixed order."""

    terms: tuple[tuple[Sym | Atom, int], ...] = ()
    const: int = 0

    @classmethod
    def of(cls, value: int | Sym) -> Ix:
        """A constant, or a symbol (a symbol with one iteration is a constant)."""
        if isinstance(value, int):
            return cls((), value)
        return cls((), value.low) if value.size == 1 else cls(((value, 1),), 0)

    @classmethod
    def build(cls, terms: Iterable[tuple[Sym | Atom, int]], const: int) -> Ix:
        """Collect equal terms and drop those with coefficient 0."""
        total: dict[Sym | Atom, int] = {}
        for symbol, factor in terms:
            total[symbol] = total.get(symbol, 0) + factor
        kept = [(symbol, factor) for symbol, factor in total.items() if factor]
        return cls(tuple(sorted(kept, key=_order)), const)

    def __add__(self, other: Ix | int) -> Ix:
        if isinstance(other, int):
            return Ix(self.terms, self.const + other)
        return Ix.build([*self.terms, *other.terms], self.const + other.const)

    def __mul__(self, factor: int) -> Ix:
        if factor == 0:
            return Ix()
        return Ix(tuple((s, f * factor) for s, f in self.terms), self.const * factor)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest value."""
        low = high = self.const
        for symbol, factor in self.terms:
            first, last = _span(symbol)
            low += factor * (first if factor > 0 else last)
            high += factor * (last if factor > 0 else first)
        return low, high

    @cached_property
    def symbols(self) -> frozenset[Sym]:
        """All loop symbols inside, also those within atoms."""
        found: set[Sym] = set()
        for symbol, _ in self.terms:
            found |= {symbol} if isinstance(symbol, Sym) else symbol.inner.symbols
        return frozenset(found)

    @property
    def affine(self) -> bool:
        """Whether no quotient or remainder is left."""
        return all(isinstance(symbol, Sym) for symbol, _ in self.terms)

    def factor(self, symbol: Sym) -> int | None:
        """Coefficient of ``symbol``; None where it sits inside a quotient or remainder."""
        for term, factor in self.terms:
            if term == symbol:
                return factor
        return 0 if symbol not in self.symbols else None

    def replace(self, swap: Mapping[Sym, Ix]) -> Ix:
        """The index with symbols replaced."""
        if not self.symbols & swap.keys():
            return self
        total = Ix((), self.const)
        for symbol, factor in self.terms:
            if isinstance(symbol, Sym):
                total = total + swap.get(symbol, Ix(((symbol, 1),), 0)) * factor
            else:
                inner = symbol.inner.replace(swap)
                total = total + (floordiv if symbol.kind == "/" else mod)(inner, symbol.by) * factor
        return total

    def code(self) -> str:
        """C text of type int64_t."""
        parts = []
        for symbol, factor in self.terms:
            text = symbol.name if isinstance(symbol, Sym) else _atom_code(symbol)
            parts.append(text if factor == 1 else f"{text} * {factor}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")


def _order(term: tuple[Sym | Atom, int]) -> tuple[int, str]:
    symbol = term[0]
    return (0, symbol.name) if isinstance(symbol, Sym) else (1, _atom_code(symbol))


def _span(symbol: Sym | Atom) -> tuple[int, int]:
    if isinstance(symbol, Sym):
        return symbol.low, symbol.high - 1
    low, high = symbol.inner.bounds
    if symbol.kind == "/":
        return low // symbol.by, high // symbol.by
    return 0, symbol.by - 1


def _atom_code(atom: Atom) -> str:
    return f"(({atom.inner.code()}) {atom.kind} {atom.by})"


def weighted_sum(index: Iterable[Ix], weights: Iterable[int], const: int = 0) -> Ix:
    """``const + Σ index × weight``: the offset of an element."""
    terms: list[tuple[Sym | Atom, int]] = []
    for ix, weight in zip(index, weights, strict=True):
        scaled = ix * weight
        terms += scaled.terms
        const += scaled.const
    return Ix.build(terms, const)


def _divide(ix: Ix, by: int) -> tuple[Ix, Ix]:
    """Split ``ix = by * quotient + rest`` term by term; the rest need not be in ``[0, by)``."""
    quotient = [(s, f // by) for s, f in ix.terms if f % by == 0]
    rest = [(s, f) for s, f in ix.terms if f % by]
    return Ix(tuple(quotient), ix.const // by), Ix(tuple(rest), ix.const % by)


def floordiv(ix: Ix, by: int) -> Ix:
    """``ix // by`` for ``ix >= 0`` and ``by > 0``."""
    if by == 1:
        return ix
    quotient, rest = _divide(ix, by)
    low, high = rest.bounds
    if low // by == high // by:
        return quotient + low // by
    if low < 0:
        return Ix(((Atom("/", ix, by), 1),), 0)
    return quotient + Ix(((Atom("/", rest, by), 1),), 0)


def mod(ix: Ix, by: int) -> Ix:
    """``ix % by`` for ``ix >= 0`` and ``by > 0``."""
    if by == 1:
        return Ix()
    _, rest = _divide(ix, by)
    low, high = rest.bounds
    if low // by == high // by:
        return rest + (-(low // by) * by)
    if low < 0:
        return Ix(((Atom("%", ix, by), 1),), 0)
    return Ix(((Atom("%", rest, by), 1),), 0)


def find_split(ix: Ix) -> tuple[Sym, int] | None:
    """A symbol that, split into ``(size // n) × n``, would make a quotient vanish: ``(sym, n)``."""
    for atom, _ in ix.terms:
        if isinstance(atom, Sym):
            continue
        deeper = find_split(atom.inner)
        if deeper is not None:
            return deeper
        for symbol, factor in atom.inner.terms:
            if not isinstance(symbol, Sym) or factor <= 0 or atom.by % factor:
                continue
            size = atom.by // factor
            if 1 < size < symbol.size and symbol.size % size == 0 and symbol.low == 0:
                return symbol, size
    return None
