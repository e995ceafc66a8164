"""What views show but a run document does not say outright. Pure functions of the document.

The browser has its twin, ``labextension/src/view/derive.ts``; a test holds both to one fixture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kforge_nb.view import claims

__all__ = [
    "Document",
    "Headline",
    "Point",
    "best_speedups",
    "comparisons",
    "estimate",
    "head_and_tail",
    "headline",
    "progress",
    "ranked_targets",
    "running",
    "saved_ms",
    "spent",
    "uncompared",
]

Document = Mapping[str, Any]
Row = Mapping[str, Any]

SMALL = 0.005
MOST = 40
WORTH_HIDING = 4

EAGER = "the untouched eager model"

_NO_COMPILE = (
    "there is no comparison with torch.compile: ",
    "rest=inductor was not used: ",
    "rest=inductor failed: ",
    "rest=inductor was not tried: ",
)
"""How the guard's notes begin that say why torch.compile was not measured, the surest first."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The whole-model figures to lead with; rows are those of the document's ``whole``.

    ``nothing_won``: the guard has decided, and installs no kernel; ``over_eager`` is then what the
    rest gives alone. ``over_compile`` is None where that was not measured; ``uncompared`` then says
    why, if anything could have been.
    """

    nothing_won: bool
    rest: str | None
    over_empty: Mapping[str, Any] | None
    over_eager: Mapping[str, Any] | None
    estimate: float | None
    over_compile: Mapping[str, Any] | None = None
    uncompared: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """Gain reached after ``judged`` candidates, with the money and seconds spent by then."""

    judged: int
    usd: float
    seconds: float
    gain: float


def headline(document: Document) -> Headline:
    """Figures of the recommended rest, or else of the first rest that was measured.

    A rest that kept no kernel was measured ``empty``, any other one ``guarded``.
    """
    decided = document["decisions"]
    nothing_won = bool(decided) and not any(d["installed"] for d in decided)
    rows = sorted(document["whole"], key=lambda row: row["name"] != "guarded")
    wanted = (document["recommendation"] or {}).get("rest")
    first = rows[0]["rest"] if rows else None
    rest = wanted if any(row["rest"] == wanted for row in rows) else first
    against = {row["against"]: row for row in reversed(rows) if row["rest"] == rest}
    return Headline(
        nothing_won,
        rest,
        None if nothing_won else against.get("empty"),
        against.get("eager"),
        estimate(document["targets"], best_speedups(document["nodes"])),
        None if nothing_won else against.get("compile"),
        "" if nothing_won or "compile" in against else uncompared(document),
    )


def uncompared(document: Document) -> str:
    """Why no model with kernels was measured against torch.compile, as the guard's notes tell it.

    Empty where one was, and where nobody knows a reason.
    """
    whole, notes = document["whole"], document["workload"]["notes"]
    if not whole or any(row["against"] == "compile" for row in whole):
        return ""
    if document["options"].get("baseline") == "eager":
        return "not asked for (--baseline eager)"
    told = (n.removeprefix(start) for start in _NO_COMPILE for n in notes if n.startswith(start))
    return next(told, "")


def comparisons(lead: Headline) -> list[str]:
    """What was measured of the whole model, against both baselines, in words."""
    gives = " gives " if claims.shown(lead.over_eager) == "faster" else ": "
    alone = f"rest {lead.rest} alone{gives}" if lead.nothing_won else ""
    same = f"the same rest ({lead.rest}) without kernels"
    return [
        *([claims.versus(lead.over_empty, same)] if lead.over_empty else []),
        *([claims.versus(lead.over_compile, "torch.compile")] if lead.over_compile else []),
        *([f"over torch.compile: not measured: {lead.uncompared}"] if lead.uncompared else []),
        *([alone + claims.versus(lead.over_eager, EAGER)] if lead.over_eager else []),
    ]


def best_speedups(nodes: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Speed-up over eager of each target's best accepted candidate, by target index."""
    best: dict[int, float] = {}
    for node in nodes:
        _raise(best, node)
    return best


def _raise(best: dict[int, float], node: Mapping[str, Any]) -> None:
    speedup = node["speedup"]
    if node["verdict"] == "accepted" and speedup and speedup > best.get(node["target"], 1.0):
        best[node["target"]] = speedup


def estimate(targets: Iterable[Mapping[str, Any]], speedups: Mapping[int, float]) -> float | None:
    """Whole-model gain if each best candidate held in the model; never a measurement.

    None where no target has a share of the time.
    """
    shares = [(t["index"], t["share"]) for t in targets if t["share"] is not None]
    left = 1.0 - sum(share * (1.0 - 1.0 / speedups.get(index, 1.0)) for index, share in shares)
    return 1.0 / left if shares and left > 0 else None


def progress(document: Document) -> list[Point]:
    """The estimate after each judged candidate, in the order of their creation."""
    nodes = sorted(document["nodes"], key=lambda n: n["created"])
    costs = sorted(document["costs"], key=lambda c: c["created"])
    start = _seconds(document["created"])
    best: dict[int, float] = {}
    points, usd, paid = [], 0.0, 0
    for judged, node in enumerate(nodes, start=1):
        while paid < len(costs) and costs[paid]["created"] <= node["created"]:
            usd += costs[paid]["usd"] or 0.0
            paid += 1
        _raise(best, node)
        seconds = max(0.0, _seconds(node["created"]) - start)
        points.append(Point(judged, usd, seconds, estimate(document["targets"], best) or 1.0))
    return points


def ranked_targets(document: Document) -> list[Mapping[str, Any]]:
    """Targets by their share of the time, largest first; those without a share last."""
    return sorted(document["targets"], key=lambda t: -(t["share"] or 0.0))


def head_and_tail(document: Document) -> tuple[list[Row], list[Row]]:
    """Ranked targets to show, and the others.

    The tail holds those under 0.5% of the time that no candidate was tried for, and whatever comes
    after forty; a handful is not worth hiding.
    """
    tried = {node["target"] for node in document["nodes"]}
    ranked = ranked_targets(document)
    weigh = [t for t in ranked if (t["share"] or 0.0) >= SMALL or t["index"] in tried]
    head = weigh[:MOST]
    shown = {t["index"] for t in head}
    tail = [t for t in ranked if t["index"] not in shown]
    return (ranked, []) if len(tail) < WORTH_HIDING else (head, tail)


def spent(document: Document) -> tuple[float, int]:
    """US dollars and paid calls so far."""
    costs = document["costs"]
    return sum(c["usd"] or 0.0 for c in costs), sum(c["calls"] for c in costs)


def saved_ms(document: Document) -> float:
    """Milliseconds of the workload that the best candidates save; never a measurement."""
    best = best_speedups(document["nodes"])
    times = ((t["index"], (t["mean_us"] or 0.0) * t["calls"]) for t in document["targets"])
    return sum(us * (1.0 - 1.0 / best.get(index, 1.0)) for index, us in times) / 1000


def running(document: Document) -> bool:
    """Whether work is still going on."""
    return document["state"] in {"profiling", "searching", "guarding"}


def _seconds(when: str) -> float:
    return datetime.fromisoformat(when).timestamp()
