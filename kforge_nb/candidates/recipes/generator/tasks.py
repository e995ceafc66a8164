"""Divide a nest into tasks for threads: rows, or blocks of a long loop."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kforge_nb.candidates.recipes.generator import optimise
from kforge_nb.candidates.recipes.generator.index import Sym
from kforge_nb.candidates.recipes.generator.nest import Loop, Nest, Pass, Variant

__all__ = ["elements", "prepare"]

ENOUGH_TASKS = 64


def prepare(
    nest: Nest, variant: Variant, block: int, *, cache: bool
) -> Iterable[tuple[Variant, list[optimise.Buffer]]]:
    """Optimise a variant and divide it; yields each part with the row buffers it needs.

    Args:
        nest: the nest that the variant is of.
        variant: changed in place.
        block: elements of one task where a long loop without reductions has to be cut.
        cache: whether rows may be kept in buffers between passes.
    """
    if nest.reducing:
        buffers = optimise.cache_rows(variant, nest.terms) if cache else []
        optimise.merge_loops(variant, nest.terms)
        optimise.order_loops(variant, reducing=True)
        return [(variant, buffers)]
    optimise.order_loops(variant, reducing=False)
    optimise.merge_loops(variant, nest.terms)
    return [(part, []) for part in _free(variant, block)]


def _free(variant: Variant, block: int) -> list[Variant]:
    """Without reductions every loop but the innermost may be divided among threads."""
    loops = [loop for sweep in variant.passes for loop in sweep.loops]
    shared = [s for s in loops[0].symbols[:-1] if all(s in loop.symbols[:-1] for loop in loops)]
    if len(loops) > 1 and math.prod(s.size for s in shared) < ENOUGH_TASKS:
        return [part for loop in loops for part in _free(Variant([], [Pass([loop])]), block)]
    for loop in loops:
        loop.symbols[:] = [s for s in loop.symbols if s not in shared]
    parts = Variant(shared, [Pass(loops)])
    if len(loops) == 1 and loops[0].symbols:
        _cut(parts, loops[0], block)
    return [parts]


def _cut(variant: Variant, loop: Loop, block: int) -> None:
    long = loop.symbols[-1]
    few = math.prod(s.size for s in variant.rows) < ENOUGH_TASKS
    if few and long.size >= 2 * block:
        variant.block = block
        variant.rows.append(Sym("block", 0, -(-long.size // block)))


def elements(variant: Variant) -> int:
    """How many loop iterations the variant has in all."""
    loops = [loop for sweep in variant.passes for loop in sweep.loops]
    inside = sum(math.prod(s.size for s in loop.symbols) for loop in loops)
    outside = math.prod(s.size for s in variant.rows)
    return inside if variant.block else inside * outside
