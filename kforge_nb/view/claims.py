"""What figures allow to say, in words; the browser's twin is ``labextension/src/view/claims.ts``.

A gain is claimed only where the whole interval lies above 1: anything else reads as a difference
that was not shown, however large the figure in its middle is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kforge_nb.view import words

__all__ = [
    "Claim",
    "at_run_time",
    "by_rest",
    "claim",
    "counted",
    "fidelity",
    "measured",
    "nothing_won",
    "shown",
    "unconfirmed",
    "versus",
]

UNCONFIRMED = "not confirmed"
"""Stands behind the figure of a candidate that only the search accepted."""
HAIR = 0.0005
"""Intervals nearer to 1 than three digits can tell say nothing."""

Row = Mapping[str, Any] | None

_LINKS = {
    "faster": "over",
    "slower": "the speed of",
    "same": "against",
    "open": "against",
    "none": "against",
}


class Claim(NamedTuple):
    """A comparison in three parts, to be followed by what it is against."""

    figure: str
    spread: str
    link: str


def shown(row: Row) -> str:
    """What an interval shows: ``faster``, ``slower`` or ``same``.

    ``open`` is a figure without an interval, ``none`` no figure.
    """
    if row is None or row["ratio"] is None:
        return "none"
    if row["low"] is None or row["high"] is None:
        return "open"
    if row["low"] > 1 + HAIR:
        return "faster"
    return "slower" if row["high"] < 1 - HAIR else "same"


def claim(row: Row) -> Claim:
    """What the row shows, such as ``2.31×``, ``(2.27 to 2.35)`` and ``over``."""
    what = shown(row)
    link = _LINKS[what]
    if row is None or what == "none":
        return Claim("not measured", "", link)
    if what == "open":
        return Claim(words.ratio(row["ratio"]), "(no interval)", link)
    figure, spread = _figures(row)
    lead = {"faster": figure, "slower": f"slower: {figure}", "same": "no difference shown"}[what]
    return Claim(lead, f"({spread})", link)


def versus(row: Row, what: str) -> str:
    """The same as one text: ``2.31× (2.27 to 2.35) over the untouched eager model``."""
    figure, spread, link = claim(row)
    return " ".join(part for part in (figure, spread, link, what) if part)


def measured(row: Row) -> str:
    """Ratio and interval for a table: ``2.31× (2.27 to 2.35)``."""
    if row is None or row["ratio"] is None:
        return words.NONE
    if row["low"] is None or row["high"] is None:
        return words.ratio(row["ratio"])
    figure, spread = _figures(row)
    return f"{figure} ({spread})"


def _figures(row: Mapping[str, Any]) -> tuple[str, str]:
    """A third digit where two would hide on which side of 1 an end lies."""
    low, high = row["low"], row["high"]
    if "1.00" not in (f"{low:.2f}", f"{high:.2f}"):
        return words.ratio(row["ratio"]), words.interval(low, high)
    return f"{row['ratio']:.3f}×", f"{low:.3f} to {high:.3f}"


def unconfirmed(document: Mapping[str, Any]) -> frozenset[int]:
    """Targets whose best candidate was accepted in the search only: the guard had no winner."""
    accepted = {n["id"] for n in document["nodes"] if n["verdict"] == "accepted"}
    without = {d["target"] for d in document["decisions"] if d["node"] is None}
    return frozenset(
        t["index"] for t in document["targets"] if t["index"] in without and t["best"] in accepted
    )


def fidelity(found: Mapping[str, Any] | None) -> str:
    """Output error against eager's own."""
    if found is None:
        return "not measured"
    if found.get("infinite") is True:
        return "an error where eager has none"
    ratio = found["ratio"]
    return "not measured" if ratio is None else f"{words.ratio(ratio)} eager's error"


def by_rest(decision: Mapping[str, Any]) -> str:
    """Which rests take the kernel, where some do and several were measured; else nothing."""
    rests = decision.get("rests") or ()
    kept = [entry["rest"] for entry in rests if entry["installed"]]
    left = [entry["rest"] for entry in rests if not entry["installed"]]
    if not kept or len(rests) == 1:
        return ""
    original = f"; original with {', '.join(left)}" if left else ""
    return f"replaced with rest {', '.join(kept)}{original}"


def nothing_won(decisions: Sequence[Mapping[str, Any]]) -> str:
    """``nothing won inside the model``, and with which other rests something did."""
    entries = [entry for d in decisions for entry in d.get("rests") or () if entry["installed"]]
    rests = ", ".join(dict.fromkeys(entry["rest"] for entry in entries))
    if not rests:
        return "nothing won inside the model"
    return f"nothing won with the recommended rest; kernels won with {rests}"


def counted(found: Mapping[str, Any] | None) -> str:
    """What became of an installed kernel at run time; empty where nothing was counted."""
    if found is None:
        return ""
    fallbacks = {why: n for why, n in found["fallbacks"].items() if n}
    total, note = sum(fallbacks.values()), found["note"]
    if not (found["launches"] or found["replayed"] or total):
        return f"off: {note}" if note else "not called yet"
    why = ", ".join(f"{reason} {n:,}" for reason, n in fallbacks.items())
    parts = [
        words.count(found["launches"], "launch", "launches"),
        f"{found['replayed']:,} more in CUDA graphs" if found["replayed"] else "",
        f"{words.count(total, 'fallback')}: {why}" if total else "no fallback",
        f"off: {note}" if note else "",
    ]
    return ", ".join(part for part in parts if part)


def at_run_time(counters: Mapping[str, Any] | None) -> str:
    """Calls of the model since ``apply()``: what ran compiled, and what went past the kernels.

    Empty where nothing was counted.
    """
    calls = (counters or {}).get("calls")
    if not isinstance(calls, Mapping) or not {"calls", "compiled"} <= calls.keys():
        return ""
    past = [
        (calls.get("original"), "of these with the original at a kernel's place"),
        (calls.get("bypassed"), "ran plain, past the kernels"),
        (calls.get("hooked"), "ran plain because of hooks added later"),
    ]
    rest = [f"{n:,} {text}" for n, text in past if isinstance(n, int) and n > 0]
    ran = f"{words.count(calls['calls'], 'call')} of the model since apply()"
    compiled = f"{calls['compiled']:,} compiled"
    return f"At run time: {', '.join([ran, compiled, *rest])}."
