"""The whole model in each way that was measured, and decisions in the order to read them.

Pure functions of the run document; the browser's twins are ``labextension/src/view/entries.ts`` and
``Guard.tsx``.

Sides of one comparison are timed in turn, but each rest at another moment, and a busy machine is
another one by then. Times are therefore the untouched model's, divided by the paired ratios: they
never contradict the ratios beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kforge_nb.view import claims, facts
from kforge_nb.view.facts import Document

__all__ = [
    "SCALED",
    "Entry",
    "change_us",
    "has_evidence",
    "ranked_decisions",
    "scaled_times",
    "untouched_us",
    "whole_entries",
]

SCALED = "times are the untouched model's, divided by each paired ratio"
"""Stands with the table; ``labextension/src/view/Whole.tsx`` has it too."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One way to run the model: µs of one run, with the ends that the interval gives it.

    The rows are those of the document's ``whole``, None where nothing was compared;
    ``over_layout`` is against the same rest laid out for the kernels, without any. ``uncompared``
    says why the one to lead with was not compared with torch.compile.
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
    over_layout: Row | None = None
    uncompared: str = ""


def whole_entries(document: Document) -> list[Entry]:
    """The untouched model, torch.compile, and each rest alone and with kernels."""
    rows: list[Row] = list(document["whole"])
    if not rows:
        return []
    advice = (document["recommendation"] or {}).get("rest")
    ways = list(dict.fromkeys((row["name"], row["rest"]) for row in rows))
    compiled = next((row for row in rows if row["against"] == "compile"), None)
    entries = [Entry("untouched model", untouched_us(document), recommended=advice == "none")]
    if compiled is not None and ("empty", "inductor") not in ways:
        entries.append(Entry("torch.compile", scaled_times(document, compiled)[0]))
    for name, rest in ways:
        own = {r["against"]: r for r in reversed(rows) if (r["name"], r["rest"]) == (name, rest)}
        if "empty" in own and ("empty", rest) not in ways:
            entries.append(Entry(f"rest {rest} alone", scaled_times(document, own["empty"])[0]))
        entries.append(_entry(document, name, rest, own, rest == advice))
    lead = facts.headline(document)
    return [
        replace(e, uncompared=lead.uncompared)
        if e.kernels and e.label == _label("guarded", lead.rest)
        else e
        for e in entries
    ]


def _label(name: str, rest: str | None) -> str:
    return f"rest {rest} {'alone' if name == 'empty' else 'with kernels'}"


def scaled_times(document: Document, row: Row) -> tuple[float | None, float | None]:
    """µs of the other side and of ours, on the base of the untouched model where that is known.

    Else of our side as it was timed; either way their quotient is the paired ratio.
    """
    base, ratio = untouched_us(document), row["ratio"]
    if not ratio:
        return row["against_us"], row["ours_us"]
    if row["against"] == "eager":
        against = row["against_us"] if base is None else base
        return against, None if against is None else against / ratio
    same = ("name", "rest")
    eager = next(
        (
            r["ratio"]
            for r in document["whole"]
            if r["against"] == "eager" and all(r[k] == row[k] for k in same)
        ),
        None,
    )
    ours = base / eager if base is not None and eager else row["ours_us"]
    return None if ours is None else ours * ratio, ours


def untouched_us(document: Document) -> float | None:
    """µs of the untouched model, as timed in turn with the recommended rest or else the first."""
    advice = (document["recommendation"] or {}).get("rest")
    of_eager = [row for row in document["whole"] if row["against"] == "eager"]
    untouched = next((r for r in of_eager if r["rest"] == advice), next(iter(of_eager), None))
    return None if untouched is None else untouched["against_us"]


def _entry(
    document: Document, name: str, rest: str, own: Mapping[str, Row], recommended: bool
) -> Entry:
    eager, empty, compiled = (own.get(side) for side in ("eager", "empty", "compile"))
    timed = eager or empty or compiled
    base = scaled_times(document, eager)[0] if eager else None
    kernels = name != "empty"
    return Entry(
        _label(name, rest),
        scaled_times(document, timed)[1] if timed else None,
        _end(base, eager, "high"),
        _end(base, eager, "low"),
        kernels,
        recommended,
        eager,
        empty,
        compiled,
        own.get("layout"),
    )


def _end(base: float | None, row: Row | None, end: str) -> float | None:
    return float(base / row[end]) if row is not None and base is not None and row[end] else None


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
