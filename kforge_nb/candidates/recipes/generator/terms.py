"""What one loop iteration computes: shared expression terms with exact indices.

Asking a value of the IR for its element at an index gives a term. Equal terms are one object, so
common work is found by identity, also across passes over the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kforge_nb.candidates.recipes.generator.index import Ix, Sym

__all__ = ["Leaf", "Term", "Terms", "walk"]

Leaf = tuple[object, ...]
_HEAVY = {
    "exp": 8, "exp_flush": 8, "expm1": 10, "log": 8, "log1p": 10, "tanh": 10, "sigmoid": 10,
    "erf": 12, "gelu_erf": 14, "gelu_finite": 15, "gelu_tanh": 12, "/": 4, "sqrt": 4, "rsqrt": 6,
    "reciprocal": 4, "pow": 30, "sin": 20, "cos": 20,
}  # fmt: skip


@dataclass(eq=False, slots=True)
class Term:
    """A scalar expression.

    ``kind`` is ``load`` (input position), ``const`` (value), ``iota``, ``red`` (reduction number),
    ``buffer`` (number) or ``op`` (operation); ``data`` is what stands in parentheses. ``ix`` is the
    index of loads, iotas and buffers. ``ctype`` is float, double, int64_t or bool.
    """

    kind: str
    data: object
    ctype: str
    ix: Ix | None
    args: tuple[Term, ...]
    symbols: frozenset[Sym]
    reductions: frozenset[int]
    cost: int

    @property
    def name(self) -> str:
        """Operation, input or reduction in text."""
        return str(self.data)


class Terms:
    """Makes terms, each different one once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Term] = {}

    def make(
        self,
        kind: str,
        data: object,
        ctype: str,
        *,
        ix: Ix | None = None,
        args: Iterable[Term] = (),
    ) -> Term:
        """The term with these parts."""
        parts = tuple(args)
        key = (kind, type(data), repr(data), ctype, ix, tuple(id(part) for part in parts))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _term(kind, data, ctype, ix, parts)
        return found

    def rebuild(self, term: Term, change: Callable[[Term], Term | None]) -> Term:
        """The term with sub-terms changed where ``change`` gives a replacement."""
        done: dict[int, Term] = {}

        def visit(old: Term) -> Term:
            if id(old) not in done:
                new = change(old)
                if new is None and old.args:
                    args = tuple(visit(arg) for arg in old.args)
                    new = self.make(old.kind, old.data, old.ctype, ix=old.ix, args=args)
                done[id(old)] = new or old
            return done[id(old)]

        return visit(term)


def _term(kind: str, data: object, ctype: str, ix: Ix | None, args: tuple[Term, ...]) -> Term:
    symbols = frozenset(ix.symbols if ix is not None else ())
    reductions = frozenset([data]) if kind == "red" and isinstance(data, int) else frozenset()
    cost = {"load": 1, "op": _HEAVY.get(str(data), 1)}.get(kind, 0)
    for arg in args:
        symbols |= arg.symbols
        reductions |= arg.reductions
        cost += arg.cost
    return Term(kind, data, ctype, ix, args, symbols, reductions, min(cost, 1000))


def walk(roots: Iterable[Term]) -> Iterable[Term]:
    """All terms below the roots, arguments before what uses them, each once."""
    seen: set[int] = set()
    for root in roots:
        stack: list[tuple[Term, bool]] = [(root, False)]
        while stack:
            term, ready = stack.pop()
            if ready:
                yield term
            elif id(term) not in seen:
                seen.add(id(term))
                stack.append((term, True))
                stack.extend((arg, False) for arg in reversed(term.args))
