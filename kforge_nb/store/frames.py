"""Rows for tables: from a run document to flat records, one a line, ready for a DataFrame.

Pure functions of the document; pandas stays outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BOOKED = (
    "node", "purpose", "model", "prompt", "calls", "tokens_in", "tokens_cached", "tokens_out",
    "tokens_reasoning", "estimated", "usd", "seconds", "state", "problem", "created",
)  # fmt: skip

__all__ = [
    "cost_rows",
    "decision_rows",
    "node_rows",
    "rests_told",
    "target_rows",
    "whole_rows",
]


def target_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a target: what it is, what it weighs, how far the search came.

    Columns: target, name, family, granularity, vendor, calls, mean_us, share, bytes, flops,
    roofline_us, headroom, ceiling, state, judged, best (node id), then of the best candidate
    speedup, low, high, ours_us, eager_us, compile_us; installed, variant, modules.
    """
    names: tuple[str, ...] = ("name", "family", "granularity", "vendor", "calls", "mean_us")
    names += ("share", "bytes")
    names += ("flops", "roofline_us", "headroom", "ceiling", "state")
    of_best = ("speedup", "low", "high", "ours_us", "eager_us", "compile_us")
    nodes = {n["id"]: n for n in document["nodes"]}
    installed = {d["target"]: d["installed"] for d in document["decisions"]}
    judged: dict[int, int] = {}
    for node in document["nodes"]:
        judged[node["target"]] = judged.get(node["target"], 0) + 1
    return [
        {
            "target": t["index"],
            **{n: t[n] for n in names},
            "judged": judged.get(t["index"], 0),
            "best": t["best"],
            **{k: nodes[t["best"]][k] if t["best"] is not None else None for k in of_best},
            "installed": installed.get(t["index"]),
            "variant": t["variant"],
            "modules": t["modules"],
        }
        for t in document["targets"]
    ]


def node_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a candidate, in the order they were finished.

    Columns: node, target, name (of the target), parent, depth, action, title, language,
    host_code (whether it is a torch extension), proposer, verdict, speedup, low, high, ours_us,
    eager_us, compile_us, over_compile, visits, value, seconds, created, reason, best (whether it
    is its target's best).
    """
    names = {t["index"]: t["name"] for t in document["targets"]}
    best = {t["best"] for t in document["targets"]}
    same = ("action", "title", "language")
    figures = ("speedup", "low", "high", "ours_us", "eager_us", "compile_us")
    last = ("visits", "value", "seconds", "created", "reason")
    depth: dict[str, int] = {}
    rows = []
    for n in document["nodes"]:
        depth[n["id"]] = 0 if n["parent"] is None else depth.get(n["parent"], 0) + 1
        rows.append(
            {
                "node": n["id"],
                "target": n["target"],
                "name": names.get(n["target"], ""),
                "parent": n["parent"],
                "depth": depth[n["id"]],
                **{k: n[k] for k in same},
                "host_code": n["language"] == "cuda_extension",
                "proposer": n["origin"].get("proposer"),
                "verdict": n["verdict"],
                **{k: n[k] for k in figures},
                "over_compile": _ratio(n["compile_us"], n["ours_us"]),
                **{k: n[k] for k in last},
                "best": n["id"] in best,
            }
        )
    return sorted(rows, key=lambda r: (r["created"], r["node"]))


def decision_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a decision of the guard.

    Columns: target, name, share, node, installed (with the best rest), rests (what each measured
    rest does with it), reason; isolated, isolated_low, isolated_high; in_model, in_model_low,
    in_model_high, in_model_us, without_us; fidelity; since ``apply`` the kernel's launches,
    replayed (in CUDA graphs), fallbacks and fallback_reasons.
    """
    targets = {t["index"]: t for t in document["targets"]}
    rows = []
    for d in document["decisions"]:
        alone, model = d["isolated"] or {}, d["in_model"] or {}
        counted = d.get("counters") or {}
        fallbacks = counted.get("fallbacks")
        target = targets[d["target"]]
        rows.append(
            {
                "target": d["target"],
                "name": target["name"],
                "share": target["share"],
                "node": d["node"],
                "installed": d["installed"],
                "rests": rests_told(d),
                "reason": d["reason"],
                "isolated": alone.get("ratio"),
                "isolated_low": alone.get("low"),
                "isolated_high": alone.get("high"),
                "in_model": model.get("ratio"),
                "in_model_low": model.get("low"),
                "in_model_high": model.get("high"),
                "in_model_us": model.get("ours_us"),
                "without_us": model.get("against_us"),
                "fidelity": (d["fidelity"] or {}).get("ratio"),
                "launches": counted.get("launches"),
                "replayed": counted.get("replayed"),
                "fallbacks": None if fallbacks is None else sum(fallbacks.values()),
                "fallback_reasons": fallbacks,
            }
        )
    return rows


def rests_told(decision: Mapping[str, Any]) -> str:
    """``replaced with eager; original with inductor``; empty where no rest is named."""
    rests = decision.get("rests", ())
    parts = {
        word: [r["rest"] for r in rests if r["installed"] is installed]
        for word, installed in (("replaced", True), ("original", False))
    }
    return "; ".join(f"{word} with {', '.join(found)}" for word, found in parts.items() if found)


def cost_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a booking, in order of time, with running totals.

    Columns: target, name, node, purpose, model, prompt (its version), calls, tokens_in,
    tokens_cached, tokens_out, tokens_reasoning, estimated, usd, seconds, state, problem, created,
    total_usd (of the known prices), total_seconds, best_speedup (of that target so far).
    """
    names = {t["index"]: t["name"] for t in document["targets"]}
    nodes = {n["id"]: n for n in document["nodes"]}
    best: dict[int | None, float] = {}
    usd = seconds = 0.0
    rows = []
    for cost in sorted(document["costs"], key=lambda c: str(c["created"])):
        usd += cost["usd"] or 0.0
        seconds += cost["seconds"] or 0.0
        node = nodes.get(cost["node"])
        target = cost["target"]
        if node is not None and node["verdict"] == "accepted" and node["speedup"]:
            best[target] = max(best.get(target, 1.0), node["speedup"])
        rows.append(
            {
                "target": target,
                "name": names.get(target, ""),
                **{k: cost[k] for k in _BOOKED},
                "total_usd": usd,
                "total_seconds": seconds,
                "best_speedup": best.get(target),
            }
        )
    return rows


def whole_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a whole-model comparison, as in the document."""
    return [dict(row) for row in document["whole"]]


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
