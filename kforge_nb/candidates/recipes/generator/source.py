"""Assemble a C++ source: headers, the math that is used, one function a nest, and the entry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kforge_nb.candidates.recipes.generator import mathlib, optimise, print_c, tasks
from kforge_nb.candidates.recipes.generator.index import Sym
from kforge_nb.candidates.recipes.generator.loops import RowWriter
from kforge_nb.candidates.recipes.generator.nest import Nest, Variant
from kforge_nb.candidates.recipes.generator.statements import Statements
from kforge_nb.candidates.recipes.generator.vector import Style, VectorLoops
from kforge_nb.candidates.recipes.generator.writer import Writer
from kforge_nb.targets.target import TensorSpec

__all__ = ["ENTRY", "write_source"]

ENTRY = "kforge_region"
SMALL = 8192
"""Below this many elements a nest runs on the calling thread: starting a team costs more."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One static function: its text, how many tasks it has, and whether a team pays off."""

    name: str
    text: str
    tasks: int
    large: bool


def write_source(
    nests: Sequence[Nest],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    style: Style,
    *,
    cache: bool,
    title: str,
) -> str:
    """The C++ source of a planned target."""
    parameters = _parameters(inputs, outputs)
    needs: set[str] = set()
    parts: list[_Part] = []
    for nest in nests:
        for variant in nest.variants:
            for task, buffers in tasks.prepare(nest, variant, style.block, cache=cache):
                statements = Statements(Writer(), inputs, nest.terms, needs)
                vectors = VectorLoops(statements, outputs, style)
                parts.append(_part(f"rows{len(parts)}", parameters, task, buffers, vectors))
    body = [*(part.text for part in parts), _entry(parts, parameters)]
    return "\n\n".join([_head(needs, style, title), *body]) + "\n"


def _head(needs: set[str], style: Style, title: str) -> str:
    lines = [f"// {title}", "#include <cstdint>"]
    if "stream" in needs:
        lines.append("#if defined(__SSE2__)\n#include <immintrin.h>\n#endif")
    lines.append("#include <omp.h>")
    if style.width:
        lines.append(
            "#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)\n"
            f'#pragma GCC target("prefer-vector-width={style.width}")\n#endif'
        )
    math_text = mathlib.text_for(needs)
    return "\n".join(lines) + (f"\n\n{math_text}" if math_text else "")


def _parameters(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[str]:
    ins = [f"const {print_c.C_TYPES[s.dtype]}* __restrict in{i}" for i, s in enumerate(inputs)]
    outs = [f"{print_c.C_TYPES[s.dtype]}* __restrict out{i}" for i, s in enumerate(outputs)]
    return ins + outs


def _part(
    name: str,
    parameters: Sequence[str],
    variant: Variant,
    buffers: Sequence[optimise.Buffer],
    vectors: VectorLoops,
) -> _Part:
    """One function over tasks ``[first, last)``."""
    out = vectors.statements.out
    with out.block(f"static void {name}({', '.join(parameters)}, int64_t first, int64_t last)"):
        for number, (ctype, size) in enumerate(buffers):
            out.line(f"alignas(64) {ctype} buffer{number}[{size}];")
        with _rows(out, variant.rows):
            RowWriter(vectors.statements, vectors).row(variant)
        if vectors.streams:
            out.line("#if defined(__SSE2__)")
            out.line("_mm_sfence();")
            out.line("#endif")
    count = math.prod(symbol.size for symbol in variant.rows)
    return _Part(name, out.text(), count, tasks.elements(variant) >= SMALL and count > 1)


@contextmanager
def _rows(out: Writer, rows: Sequence[Sym]) -> Iterator[None]:
    """A loop over tasks that keeps one counter for each row symbol."""
    if len(rows) == 1 and rows[0].low == 0:
        name = rows[0].name
        with out.block(f"for (int64_t {name} = first; {name} < last; ++{name})"):
            yield
        return
    if rows:
        out.line("int64_t rest = first;")
    for symbol in reversed(rows):
        low = f" + {symbol.low}" if symbol.low else ""
        out.line(f"int64_t {symbol.name} = rest % {symbol.size}{low};")
        out.line(f"rest /= {symbol.size};")
    with out.block("for (int64_t task = first; task < last; ++task)"):
        yield
        if rows:
            _advance(out, list(reversed(rows)))


def _advance(out: Writer, rows: list[Sym]) -> None:
    """Count up like an odometer."""
    symbol = rows[0]
    if len(rows) == 1:
        out.line(f"++{symbol.name};")
        return
    with out.block(f"if (++{symbol.name} == {symbol.high})"):
        out.line(f"{symbol.name} = {symbol.low};")
        _advance(out, rows[1:])


def _entry(parts: Sequence[_Part], parameters: Sequence[str]) -> str:
    given = ", ".join(parameter.split()[-1] for parameter in parameters)
    out = Writer()
    with out.block(f'extern "C" void {ENTRY}({", ".join([*parameters, "int32_t nthreads"])})'):
        team = [part for part in parts if part.large]
        for part in parts:
            if not part.large:
                out.line(f"{part.name}({given}, 0, {part.tasks});")
        if team:
            with out.block("if (nthreads <= 1)"):
                for part in team:
                    out.line(f"{part.name}({given}, 0, {part.tasks});")
                out.line("return;")
            out.line("#pragma omp parallel num_threads(nthreads)")
            with out.block(""):
                out.line("const int64_t t = omp_get_thread_num(), n = omp_get_num_threads();")
                for part in team:
                    share = f"{part.tasks} * t / n, {part.tasks} * (t + 1) / n"
                    out.line(f"{part.name}({given}, {share});")
    return out.text()
