"""Run documents as pandas DataFrames that have their columns even when there is no row yet.

What was not measured is NaN in a column of figures, and None in every other one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput
from kforge_nb.proposers import spending
from kforge_nb.store import frames
from kforge_nb.view import claims, entries

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["costs", "costs_by", "decisions", "nodes", "targets", "whole"]

_NODES = (
    "node", "target", "name", "parent", "depth", "action", "title", "language",
    "host_code", "proposer", "verdict", "speedup", "low", "high", "ours_us", "eager_us",
    "compile_us", "over_compile", "visits", "value", "seconds", "created", "reason",
    "best",
)  # fmt: skip
_DECISIONS = (
    "target", "name", "share", "node", "installed", "rests", "reason", "isolated",
    "isolated_low", "isolated_high", "in_model", "in_model_low", "in_model_high", "in_model_us",
    "without_us", "fidelity", "launches", "replayed", "fallbacks", "fallback_reasons",
)  # fmt: skip
_WHOLE = (
    "name", "rest", "against", "ratio", "low", "high", "shown", "n", "ours_us", "against_us",
    "base_ours_us", "base_against_us",
)  # fmt: skip
_COSTS = (
    "target", "name", "node", "purpose", "model", "prompt", "calls", "tokens_in", "tokens_cached",
    "tokens_out", "tokens_reasoning", "estimated", "usd", "seconds", "state", "problem", "created",
    "total_usd", "total_seconds", "best_speedup", "saved_ms", "usd_per_ms",
)  # fmt: skip
_SUMS = (
    "calls", "tokens_in", "tokens_cached", "tokens_out", "tokens_reasoning", "usd", "seconds",
)  # fmt: skip
_BY = {
    "target": ("target", "name", *_SUMS, "judged", "best", "saved_ms", "usd_per_ms"),
    "node": ("node", "target", "verdict", "speedup", *_SUMS),
    "run": (*_SUMS, "saved_ms", "usd_per_ms"),
}
_TARGETS = (
    "target", "name", "family", "granularity", "vendor", "calls", "mean_us", "share", "bytes",
    "flops", "roofline_us", "headroom", "ceiling", "state", "judged", "best", "speedup",
    "low", "high", "ours_us", "eager_us", "compile_us", "installed", "variant", "modules",
)  # fmt: skip
_FIGURES = frozenset({
    "speedup", "low", "high", "ours_us", "eager_us", "compile_us", "over_compile", "value",
    "seconds", "share", "isolated", "isolated_low", "isolated_high", "in_model", "in_model_low",
    "in_model_high", "in_model_us", "without_us", "fidelity", "tokens_in", "tokens_cached",
    "tokens_out", "tokens_reasoning", "usd", "total_usd", "total_seconds", "best_speedup",
    "saved_ms", "usd_per_ms", "mean_us", "bytes", "flops", "roofline_us", "headroom", "ceiling",
    "ratio", "against_us", "base_ours_us", "base_against_us",
})  # fmt: skip


def nodes(document: dict[str, Any]) -> pd.DataFrame:
    """One row a judged candidate."""
    return _frame(frames.node_rows, document, _NODES)


def decisions(document: dict[str, Any]) -> pd.DataFrame:
    """One row a decision of the guard."""
    return _frame(frames.decision_rows, document, _DECISIONS)


def costs(document: dict[str, Any]) -> pd.DataFrame:
    """One row a booking, with what was spent and saved until then."""
    return _frame(_bookings, document, _COSTS)


def costs_by(document: dict[str, Any], what: str) -> pd.DataFrame:
    """Sums by ``target`` or ``node``, or one row for the whole ``run``.

    Raises BadInput for anything else.
    """
    parts = (document["costs"], document["targets"], document["nodes"])
    rows: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "target": lambda: spending.target_spending(*parts),
        "node": lambda: spending.node_spending(parts[0], parts[2]),
        "run": lambda: [spending.total_spending(*parts)],
    }
    if what not in rows:
        raise BadInput(f"costs can be summed by {', '.join(rows)}, not by {what!r}")
    found = rows[what]
    best = {"best": "best_speedup"} if what == "target" else {}
    return _frame(lambda _: found(), document, _BY[what]).rename(columns=best)


def _bookings(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = frames.cost_rows(document)
    sums = spending.cumulative(document["costs"], document["targets"], document["nodes"])
    return [
        {**row, **{k: so_far[k] for k in ("saved_ms", "usd_per_ms")}}
        for row, so_far in zip(rows, sums, strict=True)
    ]


def targets(document: dict[str, Any]) -> pd.DataFrame:
    """One row a target, with what the run says of it."""
    table = _frame(frames.target_rows, document, _TARGETS)
    table["state_reason"] = [t["state_reason"] for t in document["targets"]]
    return table


def whole(document: dict[str, Any]) -> pd.DataFrame:
    """One row a comparison of the whole model, with what its interval shows.

    ``ours_us`` and ``against_us`` are medians of that row's own measurement, to be compared only
    within the row; ``base_ours_us`` and ``base_against_us`` are the untouched model's time divided
    by the paired ratios, so that rows compare as their ratios do.
    """
    return _frame(_whole_rows, document, _WHOLE)


def _whole_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for row in frames.whole_rows(document):
        against, ours = entries.scaled_times(document, row)
        based = {"base_ours_us": ours, "base_against_us": against}
        rows.append({**row, **based, "shown": claims.shown(row)})
    return rows


def _frame(
    rows: Callable[[dict[str, Any]], list[dict[str, Any]]],
    document: dict[str, Any],
    columns: tuple[str, ...],
) -> pd.DataFrame:
    import pandas as pd

    found = rows(document)
    return pd.DataFrame({name: _column([row[name] for row in found], name) for name in columns})


def _column(values: list[Any], name: str) -> pd.Series[Any]:
    """Figures as floats; other values as they are where one is missing, which pandas would hide."""
    import pandas as pd

    if name in _FIGURES:
        return pd.Series(values, dtype="float64")
    return pd.Series(values, dtype="object" if None in values or not values else None)
