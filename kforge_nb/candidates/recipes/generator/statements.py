"""Write terms as C statements, each once in its scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kforge_nb.candidates.recipes.generator import print_c
from kforge_nb.candidates.recipes.generator.index import Ix, Sym
from kforge_nb.candidates.recipes.generator.nest import Root
from kforge_nb.candidates.recipes.generator.terms import Term, Terms, walk
from kforge_nb.candidates.recipes.generator.writer import Writer
from kforge_nb.targets.target import TensorSpec

__all__ = ["Scope", "Statements"]

Scope = dict[int, str]
"""C names of the terms computed so far, by the terms' identity."""


@dataclass
class Statements:
    """Writes terms; ``needs`` collects the math functions, ``terms`` is the nest's.

    ``near_angles`` is set while a loop is written whose angles are known to be moderate; elsewhere
    sine and cosine are the library's, which take any angle.
    """

    out: Writer
    inputs: Sequence[TensorSpec]
    terms: Terms
    needs: set[str] = field(default_factory=set)
    near_angles: bool = False

    def define(
        self, roots: Sequence[Root], scope: Scope, symbols: Sequence[Sym] | None, depth: int
    ) -> Scope:
        """Write the terms below ``roots`` that belong at ``depth`` loops of ``symbols``.

        Without ``symbols`` every term is written. Names are added to ``scope``, which is returned.
        """
        place = {symbol: position + 1 for position, symbol in enumerate(symbols or ())}
        for term in walk(root.term for root in roots):
            level = max((place.get(symbol, 0) for symbol in term.symbols), default=0)
            if id(term) not in scope and (symbols is None or level == depth):
                scope[id(term)] = self._statement(term, scope)
        return scope

    def moved(self, root: Root, symbol: Sym, to: Sym) -> Root:
        """``root`` with one symbol replaced by another (the same loop at another place)."""
        swap = {symbol: Ix(((to, 1),), 0)}

        def change(term: Term) -> Term | None:
            if term.ix is None or symbol not in term.ix.symbols:
                return None
            ix = term.ix.replace(swap)
            return self.terms.make(term.kind, term.data, term.ctype, ix=ix, args=term.args)

        ix = root.ix.replace(swap) if root.ix is not None else None
        return Root(root.kind, root.number, self.terms.rebuild(root.term, change), ix)

    def _statement(self, term: Term, scope: Scope) -> str:
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
        elif term.name in ("sin", "cos") and term.ctype == "float" and not self.near_angles:
            text = f"__builtin_{term.name}f({scope[id(term.args[0])]})"
        else:
            text = print_c.operation(term, [scope[id(arg)] for arg in term.args], self.needs)
        name = self.out.fresh("t")
        self.out.line(f"const {term.ctype} {name} = {text};")
        return name
