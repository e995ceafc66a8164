"""What a run spent, and what for: by target, by node, over time, and for each millisecond saved.

Pure functions of plain rows, as the store and run documents hold them. A booking (*cost*) has
``target``, ``node``, ``calls``, ``tokens_in``, ``tokens_out``, ``usd`` (None where no price is
known), ``seconds`` and ``created``, and may have ``tokens_cached``, ``tokens_reasoning`` and
``model``. A target has ``index``, ``name``, ``mean_us`` (of one call) and ``calls`` (in one run of
the workload). A node has ``id``, ``target``, ``verdict`` and ``speedup``.

Milliseconds saved are those of one run of the workload: the original's time less that of the best
accepted kernel, as judged alone. What the kernel brings inside the model is the guard's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["cumulative", "node_spending", "saved_ms", "target_spending", "total_spending"]

Row = Mapping[str, Any]

_COUNTS = ("calls", "tokens_in", "tokens_cached", "tokens_out", "tokens_reasoning")


def target_spending(
    costs: Iterable[Row], targets: Iterable[Row], nodes: Iterable[Row]
) -> list[dict[str, Any]]:
    """One row a target that anything was spent on, in order of index; bookings without one last.

    Columns: target, name, calls, tokens_in, tokens_cached, tokens_out, tokens_reasoning, usd,
    unpriced (bookings without a price), seconds, judged, best (speed-up, None where nothing was
    accepted), saved_ms (None where the target was never timed), usd_per_ms (None where nothing was
    saved).
    """
    by_target: dict[int | None, list[Row]] = {}
    for cost in costs:
        by_target.setdefault(cost["target"], []).append(cost)
    known = {t["index"]: t for t in targets}
    nodes = list(nodes)
    rows = []
    for index in sorted(by_target, key=lambda i: (i is None, i or 0)):
        found = known.get(index) if index is not None else None
        mine = [n for n in nodes if n["target"] == index]
        best = _best(mine)
        saved = None if found is None else saved_ms(found, best)
        row = {"target": index, "name": found["name"] if found else "", **_sums(by_target[index])}
        row |= {"judged": len(mine), "best": best, "saved_ms": saved}
        rows.append({**row, "usd_per_ms": _price(row["usd"], saved)})
    return rows


def node_spending(costs: Iterable[Row], nodes: Iterable[Row]) -> list[dict[str, Any]]:
    """One row a node that anything was spent on, in order of its first booking.

    Columns: node, target, verdict, speedup (both None for a call that came to no candidate), and
    the sums of :func:`target_spending`.
    """
    known = {n["id"]: n for n in nodes}
    groups: dict[tuple[Any, Any], list[Row]] = {}
    for cost in sorted(costs, key=lambda c: str(c["created"])):
        groups.setdefault((cost["target"], cost["node"]), []).append(cost)
    rows = []
    for (target, node), mine in groups.items():
        found = known.get(node, {})
        facts = {k: found.get(k) for k in ("verdict", "speedup")}
        rows.append({"node": node, "target": target, **facts, **_sums(mine)})
    return rows


def cumulative(
    costs: Iterable[Row], targets: Iterable[Row], nodes: Iterable[Row]
) -> list[dict[str, Any]]:
    """One row a booking, in order of time, with what was spent and saved until then.

    Columns: created, target, node, calls, usd, total_calls, total_usd, total_seconds, saved_ms (of
    all targets), usd_per_ms.
    """
    known = {t["index"]: t for t in targets}
    judged = {n["id"]: n for n in nodes}
    best: dict[int, float] = {}
    calls, total, seconds = 0, 0.0, 0.0
    rows = []
    for cost in sorted(costs, key=lambda c: str(c["created"])):
        calls += cost["calls"] or 0
        total += cost["usd"] or 0.0
        seconds += cost["seconds"] or 0.0
        found = _best([judged[cost["node"]]] if cost["node"] in judged else [])
        if found is not None and cost["target"] is not None:
            best[cost["target"]] = max(best.get(cost["target"], 1.0), found)
        saved = sum(saved_ms(known[i], s) or 0.0 for i, s in best.items() if i in known)
        row = {k: cost[k] for k in ("created", "target", "node", "calls", "usd")}
        row |= {"total_calls": calls, "total_usd": total, "total_seconds": seconds}
        rows.append({**row, "saved_ms": saved, "usd_per_ms": _price(total, saved)})
    return rows


def total_spending(
    costs: Iterable[Row], targets: Iterable[Row], nodes: Iterable[Row]
) -> dict[str, Any]:
    """The whole run: the sums of :func:`target_spending`, saved_ms of all, and usd_per_ms."""
    costs, targets, nodes = list(costs), list(targets), list(nodes)
    sums = _sums(costs)
    found = (saved_ms(t, _best(n for n in nodes if n["target"] == t["index"])) for t in targets)
    saved = sum(ms or 0.0 for ms in found)
    return {**sums, "saved_ms": saved, "usd_per_ms": _price(sums["usd"], saved)}


def saved_ms(target: Row, speedup: float | None) -> float | None:
    """Milliseconds that a speed-up saves in one run of the workload; None without a time."""
    if target["mean_us"] is None:
        return None
    if speedup is None or speedup <= 1.0:
        return 0.0
    return float(target["mean_us"] * target["calls"] * (1 - 1 / speedup) / 1000)


def _best(nodes: Iterable[Row]) -> float | None:
    speedups = (n["speedup"] for n in nodes if n["verdict"] == "accepted")
    return max((s for s in speedups if s is not None), default=None)


def _sums(costs: Iterable[Row]) -> dict[str, Any]:
    costs = list(costs)
    counts = {name: sum(c.get(name) or 0 for c in costs) for name in _COUNTS}
    return {
        **counts,
        "usd": sum(c["usd"] or 0.0 for c in costs),
        "unpriced": sum(c["usd"] is None for c in costs),
        "seconds": sum(c["seconds"] or 0.0 for c in costs),
    }


def _price(amount: float, saved: float | None) -> float | None:
    return amount / saved if saved else None
