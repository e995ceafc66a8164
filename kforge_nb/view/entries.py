"""The whole model in each way that was measured, and decisions in the order to read them.

Pure functions of the run document; the browser's twins are ``labextension/src/view/entries.ts`` and
``Guard.tsx``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kforge_nb.view import claims
from kforge_nb.view.facts import Document

__all__ = ["Entry", "change_us", "has_evidence", "ranked_decisions", "whole_entries"]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One way to run the model: µs of one run, with the ends that the interval gives it.

    The rows are those of the document's ``whole``, None where nothing was compared.
    """

    label: str
    us: float | None
    low: float | None = None
    high: float | None = None
    kernels: bool = False
    recommended: bool = False
    over_eager: Row | None = None
    over_empty: Row | None = None
    over_compile: Row | None = None


def whole_entries(document: Document) -> list[Entry]:
    """The untouched model, torch.compile, and each rest alone and with kernels."""
    rows: list[Row] = list(document["whole"])
    if not rows:
        return []
    advice = (document["recommendation"] or {}).get("rest")
    ways = list(dict.fromkeys((row["name"], row["rest"]) for row in rows))
    of_eager = [row for row in rows if row["against"] == "eager"]
    untouched = next((r for r in of_eager if r["rest"] == advice), next(iter(of_eager), None))
    compiled = next((row for row in rows if row["against"] == "compile"), None)

    us = untouched["against_us"] if untouched else None
    entries = [Entry("untouched model", us, recommended=advice == "none")]
    if compiled is not None and ("empty", "inductor") not in ways:
        entries.append(Entry("torch.compile", compiled["against_us"]))
    for name, rest in ways:
        own = {r["against"]: r for r in reversed(rows) if (r["name"], r["rest"]) == (name, rest)}
        if "empty" in own and ("empty", rest) not in ways:
            entries.append(Entry(f"rest {rest} alone", own["empty"]["against_us"]))
        entries.append(_entry(name, rest, own, rest == advice))
    return entries


def _entry(name: str, rest: str, own: Mapping[str, Row], recommended: bool) -> Entry:
    eager, empty, compiled = (own.get(side) for side in ("eager", "empty", "compile"))
    timed = eager or empty or compiled
    kernels = name != "empty"
    return Entry(
        f"rest {rest} {'with kernels' if kernels else 'alone'}",
        timed["ours_us"] if timed else None,
        _end(eager, "high"),
        _end(eager, "low"),
        kernels,
        recommended,
        eager,
        empty,
        compiled,
    )


def _end(row: Row | None, end: str) -> float | None:
    if row is None or row["against_us"] is None or not row[end]:
        return None
    return float(row["against_us"] / row[end])


def ranked_decisions(document: Document) -> list[Row]:
    """Installed ones first, then those with evidence, then by share of the time."""
    shares = {t["index"]: t["share"] or 0.0 for t in document["targets"]}
    return sorted(
        document["decisions"],
        key=lambda d: (not d["installed"], not has_evidence(d), -shares.get(d["target"], 0.0)),
    )


def has_evidence(decision: Row) -> bool:
    """Whether a kernel was there to be tried."""
    evidence = (decision["node"], decision["isolated"], decision["in_model"])
    return bool(decision["installed"]) or any(found is not None for found in evidence)


def change_us(decision: Row) -> float | None:
    """Microseconds of one run that a kernel changes at its places; negative where it saves.

    None where no difference was shown, or nothing measured.
    """
    found = decision["in_model"]
    if claims.shown(found) not in ("faster", "slower"):
        return None
    if found["ours_us"] is None or found["against_us"] is None:
        return None
    return float(found["ours_us"] - found["against_us"])
