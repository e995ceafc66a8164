"""Puts a kernel's source together: constants, the kernel texts of this package, and the entry."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan, Scratch
from kforge_nb.candidates.recipes.families.isa import available_isas, isa_level
from kforge_nb.candidates.recipes.family import Match, Params, origin_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kforge_nb.candidates.recipes.families.rowcode import RowCode

__all__ = ["FARTHER", "candidate", "common_parameters", "entry", "kernel_text", "stream_first"]

FARTHER = 8 << 20
"""Output bytes from which the best guess is to write around the caches."""


@lru_cache(maxsize=64)
def kernel_text(name: str) -> str:
    """Text of ``recipes/kernels/NAME``, shipped with the package."""
    folder = resources.files("kforge_nb.candidates.recipes") / "kernels"
    return (folder / name).read_text(encoding="utf-8")


def stream_first(output_bytes: int) -> list[str]:
    """Ways to store the output, best guess first."""
    return ["stream", "plain"] if output_bytes >= FARTHER else ["plain", "stream"]


def common_parameters(
    output_bytes: int, streamable: bool, own: dict[str, list[Any]]
) -> dict[str, list[Any]]:
    """A row kernel's moves, those that matter most first: stores, ``own``, unrolling, isa."""
    stores = stream_first(output_bytes) if streamable else ["plain"]
    unroll = own.pop("unroll", [4, 2, 8, 1])
    return {"stores": stores, **own, "unroll": unroll, "isa": available_isas()}


def _cpp(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def source(isa: str, constants: dict[str, tuple[str, Any]], texts: Sequence[str], tail: str) -> str:
    """``KF_ISA``, the shared headers, named constants, then kernel texts and the entry."""
    head = f"#define KF_ISA {isa_level(isa)}\n"
    shared = "".join(kernel_text(n) for n in ("types.h", "vec.h", "math.h", "loop.h"))
    named = "".join(f"static constexpr {t} {n} = {_cpp(v)};\n" for n, (t, v) in constants.items())
    return "\n".join([head, shared, named, *texts, tail])


def entry(
    name: str, arguments: Sequence[tuple[str, str]], body: str, scalars: Sequence[str] = ()
) -> str:
    """The ``extern "C"`` function: pointers, scalars, number of threads."""
    parts = [f"{t}{n}" for t, n in arguments] + [*scalars, "int32_t nthreads"]
    return f'extern "C" void {name}({", ".join(parts)}) {{\n{body}\n}}\n'


def row_entry(name: str, code: RowCode, stream: bool) -> str:
    """The entry of a row kernel: share the tasks between threads."""
    arguments = code.arguments()
    outs = [n for _, n in arguments if n.startswith("out")]
    guard = " && ".join(f"aligned({n})" for n in outs) if stream else "false"
    names = ", ".join(n for _, n in arguments)
    body = (
        f"  const Args a{{{names}}};\n"
        f"  const bool around = {guard};\n"
        "  share(TASKS, ROWS * C, nthreads, [&](int64_t first, int64_t last) {\n"
        "    if (around) rows<true>(a, first, last);\n"
        "    else rows<false>(a, first, last);\n  });"
    )
    if not stream:
        body = (
            f"  const Args a{{{names}}};\n"
            "  share(TASKS, ROWS * C, nthreads, [&](int64_t first, int64_t last) {\n"
            "    rows<false>(a, first, last);\n  });"
        )
    return entry(name, arguments, body)


def candidate(
    match: Match,
    params: Params,
    name: str,
    text: str,
    args: Sequence[str],
    scratch: dict[str, Scratch] | None = None,
) -> Candidate:
    """A ``cpp`` candidate with one kernel whose arguments are tensors and the thread count."""
    plan = LaunchPlan((Kernel(name, (*args, "i32:nthreads")),), {}, scratch or {})
    said = ", ".join(f"{k} {v}" for k, v in params.items())
    return Candidate("cpp", text, plan, f"{match.family} ({said})", origin_of(match, params))
