"""What the whole models are to reach on an H200, as rows: the figure, the bar, reached or missed.

Only bars for which something was measured in this report are asked; a bar over several models is
asked when at least so many of them were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from benchmarks.gpu_models_rows import compared
from benchmarks.gpu_models_sides import EAGER
from benchmarks.report import Row, measure_row

__all__ = ["bar_rows"]

OVER_EAGER = {
    "vae": 2.6,
    "sd35": 1.8,
    "gemma4-prefill": 4.0,
    "qwen35-35b-prefill": 1.5,
    "resnet50-b32": 1.9,
}
DECODE = ("gemma4-decode", "qwen35-35b-decode", "qwen35-4b-decode")
DECODE_EAGER, DECODE_GRAPHS = 8.0, 1.0
OPS_MEAN = 1.3
KERNELS_SURE, KERNELS_MORE, KERNELS_MANY = 1.0, 1.05, 3
COMPILE_FLOOR, COMPILE_MORE, COMPILE_MANY = 0.99, 1.05, 3
GRAPHS_FLOOR, GRAPHS_MORE, GRAPHS_MANY = 0.98, 1.1, 2
GRAPH_RESTS = ("guarded-cudagraphs", "guarded-inductor-cudagraphs")


def bar_rows(rows: Sequence[Row], models: Sequence[str]) -> list[Row]:
    """A row a bar that is asked; ``reached`` is True or False."""
    rows = list(rows)
    found = _over_eager(rows, models) + _decode(rows, models) + _ops(rows)
    found += _kernels(rows, models)
    found += _against(rows, models, "guarded-inductor", ("guarded-inductor",), "compile",
                      (COMPILE_FLOOR, COMPILE_MORE, COMPILE_MANY))  # fmt: skip
    found += _against(rows, models, "guarded under CUDA graphs", GRAPH_RESTS, "reduce-overhead",
                      (GRAPHS_FLOOR, GRAPHS_MORE, GRAPHS_MANY))  # fmt: skip
    return found


def _bar(name: str, value: float, bar: float, *, reached: bool, unit: str = "x") -> Row:
    return measure_row(f"bar: {name}", value, unit, bar=bar, reached=reached)


def _best(rows: list[Row], model: str, against: str = EAGER) -> Row | None:
    side = next((r["side"] for r in rows if r.get("model") == model and r.get("best")), None)
    return compared(rows, model, side, against) if side else None


def _over_eager(rows: list[Row], models: Sequence[str]) -> list[Row]:
    found = []
    for model, bar in OVER_EAGER.items():
        row = _best(rows, model) if model in models else None
        if row is not None:
            text = f"{model}: {row['side']} over eager"
            found.append(_bar(text, row["ratio"], bar, reached=row["ratio"] >= bar))
    return found


def _decode(rows: list[Row], models: Sequence[str]) -> list[Row]:
    found = []
    for model in (m for m in DECODE if m in models):
        for against, bar in ((EAGER, DECODE_EAGER), ("reduce-overhead", DECODE_GRAPHS)):
            row = _best(rows, model, against)
            if row is not None:
                text = f"{model}: {row['side']} over {against}"
                found.append(_bar(text, row["ratio"], bar, reached=row["ratio"] >= bar))
    return found


def _ops(rows: list[Row]) -> list[Row]:
    """Geometric mean over max-autotune, each distinct target of each model once."""
    ratios = [r["ratio"] for r in rows if r.get("against") == "max_autotune"]
    if not ratios:
        return []
    mean = math.exp(sum(math.log(max(r, 1e-9)) for r in ratios) / len(ratios))
    text = f"geometric mean of {len(ratios)} listed targets over max-autotune"
    return [_bar(text, mean, OPS_MEAN, reached=mean >= OPS_MEAN)]


def _kernels(rows: list[Row], models: Sequence[str]) -> list[Row]:
    """Guarded over empty: with the best rest and with the eager one, and a kernel in each."""
    found: list[Row] = []
    for title, side_of in (("best rest", _best_side), ("eager rest", _eager_side)):
        lows = []
        for model in (m for m in models if m in OVER_EAGER):
            side = side_of(rows, model)
            rest = side.removeprefix("guarded-")
            row = compared(rows, model, side, f"empty-{rest}") if side else None
            if row is None or row["decided"] != rest:
                continue  # a rest that the run did not decide says nothing of what it decides
            lows.append(row["low"])
            sure = row["low"] > KERNELS_SURE and row["kernels"] > 0
            text = f"{model}: {side} ({row['kernels']} kernels) over empty-{rest}, lower bound"
            found.append(_bar(text, row["low"], KERNELS_SURE, reached=sure))
        found += _many(f"guarded over empty, {title}", lows, KERNELS_MORE, KERNELS_MANY)
    return found


def _best_side(rows: list[Row], model: str) -> str:
    row = _best(rows, model)
    return str(row["side"]) if row else ""


def _eager_side(rows: list[Row], model: str) -> str:
    return "guarded-eager" if compared(rows, model, "guarded-eager", EAGER) else ""


def _many(title: str, figures: Sequence[float], more: float, many: int) -> list[Row]:
    """At least ``many`` figures above ``more``; not asked of fewer models than that."""
    if len(figures) < many:
        return []
    count = sum(1 for figure in figures if figure > more)
    text = f"{title}: models above {more:g}"
    return [_bar(text, count, many, reached=count >= many, unit="models")]


def _against(
    rows: list[Row],
    models: Sequence[str],
    title: str,
    sides: Sequence[str],
    against: str,
    bars: tuple[float, float, int],
) -> list[Row]:
    """The faster of our sides against what a user would take instead: a floor, and some wins."""
    floor, more, many = bars
    ratio: Callable[[Row], float] = lambda row: row["ratio"]  # noqa: E731 - a key with a type
    found, figures = [], []
    for model in models:
        measured = [r for side in sides if (r := compared(rows, model, side, against))]
        if not measured:
            continue
        row = max(measured, key=ratio)
        figures.append(row["ratio"])
        text = f"{model}: {row['side']} over {against}"
        found.append(_bar(text, row["ratio"], floor, reached=row["ratio"] >= floor))
    return found + _many(f"{title} over {against}", figures, more, many)
