"""A run of thousands of candidates, the same on every call: trees grow as a search makes them."""

from __future__ import annotations

import copy
import json
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"
START = datetime(2026, 3, 14, 9)
FAILURES = ["wrong", "compile_failed", "crashed", "timed_out", "suspicious", "refused"]
SOURCE = '#include <cstdint>\n\nextern "C" void k(const float* in0, float* out0, int64_t n) {\n'


def large(nodes: int = 2000, targets: int = 1, seed: int = 7) -> dict[str, Any]:
    """A run whose targets share ``nodes`` candidates; details of all of them."""
    rng = random.Random(seed)
    run = json.loads(EXAMPLE.read_text())
    run["targets"] = [{**copy.deepcopy(run["targets"][0]), "index": i} for i in range(targets)]
    run["nodes"], run["details"], run["costs"] = [], {}, []
    run["decisions"], run["whole"], run["recommendation"] = [], [], None
    for index in range(targets):
        _grow(run, index, nodes // targets + (index < nodes % targets), rng)
    run["progress"] |= {"judged": nodes, "budget": nodes}
    return run


def _grow(run: dict[str, Any], index: int, count: int, rng: random.Random) -> None:
    template = json.loads(EXAMPLE.read_text())
    details = template["details"]["0.3"]
    rows: list[dict[str, Any]] = []
    by_id: dict[str, dict[str, Any]] = {}
    for number in range(count):
        node_id = f"{index}.{number}"
        parent = _parent(rows, rng)
        failed = rng.random() < 0.45
        base = parent["speedup"] if parent and parent["speedup"] else 1.2
        speedup = None if failed else round(max(0.3, base * rng.lognormvariate(0.01, 0.12)), 3)
        verdict = rng.choice(FAILURES) if failed else _verdict(speedup)
        row = {
            **template["nodes"][0],
            "id": node_id,
            "target": index,
            "parent": parent and parent["id"],
            "action": "draft" if parent is None else rng.choice(["optimise", "repair"]),
            "title": f"gelu: {rng.choice([1, 2, 4, 8])} rows a step, unroll {number % 16}",
            "verdict": verdict,
            "reason": f"{speedup}x over eager" if speedup else "out0 is off by 3.1e-02",
            "visits": 1,
            "value": None,
            "speedup": speedup,
            "low": speedup and round(speedup * 0.98, 3),
            "high": speedup and round(speedup * 1.02, 3),
            "ours_us": speedup and round(812.4 / speedup, 2),
            "created": (START + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        rows.append(row)
        by_id[node_id] = row
        while parent is not None:
            parent["visits"] += 1
            parent = by_id.get(parent["parent"])
        body = "".join(f"  out0[{i}] = in0[{i}] * {number}.0f;\n" for i in range(40))
        run["details"][node_id] = {**details, "source": f"{SOURCE}{body}}}\n"}
        run["costs"].append({**template["costs"][0], "target": index, "node": node_id,
                             "created": row["created"]})  # fmt: skip
    won = [row for row in rows if row["verdict"] == "accepted"]
    run["targets"][index]["best"] = max(won, key=lambda r: r["speedup"])["id"] if won else None
    run["nodes"] += rows


def _parent(rows: list[dict[str, Any]], rng: random.Random) -> dict[str, Any] | None:
    """The better of a few, so that trees are deep where it goes well, as UCT makes them."""
    if len(rows) < 3 or rng.random() < 0.01:
        return None
    few = rng.choices(rows, k=3)
    return max(few, key=lambda row: row["speedup"] or 0.0)


def _verdict(speedup: float | None) -> str:
    ratio = speedup or 0.0
    return "accepted" if ratio > 1.03 else "undecided" if ratio > 0.97 else "slower"


if __name__ == "__main__":
    import sys

    json.dump(large(int(sys.argv[1]), int(sys.argv[2])), sys.stdout)
