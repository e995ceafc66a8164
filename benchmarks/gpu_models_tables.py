"""The two tables of ``gpu_models`` as Markdown: per operator as in the paper, and whole models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu_models_sides import EAGER, MODES, RESTS
from benchmarks.gpu_models_state import Places
from benchmarks.report import Row

__all__ = ["tables"]

_SHOWN = 100


def tables(rows: Sequence[Row], places: Places, models: Sequence[str]) -> str:
    """Both tables; models of which nothing was measured are left out."""
    parts = ["## Whole models", "", *_whole(rows, models), "", "## Operators", ""]
    return "\n".join([*parts, *_ops(places, models)]) + "\n"


def _whole(rows: Sequence[Row], models: Sequence[str]) -> Iterator[str]:
    """A line a model: ms of eager, then how many times faster every other side is."""
    sides = [*MODES, *(f"{kind}-{rest}" for rest in RESTS for kind in ("empty", "guarded"))]
    yield "| model | eager, ms | " + " | ".join(sides) + " | kernels | best |"
    yield "|" + "---|" * (len(sides) + 4)
    for model in models:
        own = [r for r in rows if r.get("model") == model and r.get("against") == EAGER]
        known = {r["side"]: r for r in own if "side" in r}
        if not known:
            continue
        eager = next(iter(known.values()))["against_us"] / 1e3
        why = {r["side"]: r["left_out"] for r in rows
               if r.get("model") == model and "left_out" in r}  # fmt: skip
        cells = [_ratio(known.get(side), why.get(side, "")) for side in sides]
        best = next((s for s, r in known.items() if r["best"]), "")
        kernels = known[best]["kernels"] if best else 0
        yield f"| {model} | {eager:.2f} | {' | '.join(cells)} | {kernels} | {best} |"


def _ratio(row: Row | None, why: str) -> str:
    if row is not None:
        note = f" ({row['note']})" if row.get("note") else ""
        return f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]{note}"
    return why.partition(" ")[0].rstrip(":") or "–"


def _ops(places: Places, models: Sequence[str]) -> Iterator[str]:
    yield "| model | op | variant | share | eager, µs | compile, µs | ours, µs | decision |"
    yield "|---|---|---|---|---|---|---|---|"
    for model in models:
        decided = {d["fingerprint"]: d for d in places.read(model, "search").get("decisions", [])}
        for found in places.read(model, "ops").get("rows", []):
            yield _op(model, found, decided.get(found["fingerprint"], {}))


def _op(model: str, found: dict[str, Any], decision: dict[str, Any]) -> str:
    eager, compiled = found.get("eager"), found.get("compile")
    times = [eager["against_us"] if eager else None, compiled["against_us"] if compiled else None]
    times.append(eager["ours_us"] if eager and found["kernel"] else None)
    told = " | ".join("–" if us is None else f"{us:.1f}" for us in times)
    said = "replaced" if decision.get("installed") else "kept original"
    reason = found["problem"] or decision.get("reason", "not searched")
    text = f"{said}: {_plain(reason.removeprefix('kept original: '))}"
    cells = [model, _plain(found["name"]), _plain(found["variant"]), f"{found['share']:.3f}"]
    return f"| {' | '.join([*cells, told, text])} |"


def _plain(text: str) -> str:
    """One short line without what Markdown would read as a column."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
