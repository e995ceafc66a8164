"""Writes fixtures/example.kforge.json: one small, realistic, wholly invented run.

Four targets, 26 nodes with every kind of verdict, decisions both ways, whole-model rows. Views and
stores are tested against the file; ``python tests/store/make_example.py`` writes it again.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from pathlib import Path

FILE = Path(__file__).parent / "fixtures" / "example.kforge.json"

SOURCE = """#include <cmath>
#include <cstdint>

extern "C" void {entry}(const float* in0, float* out0, int64_t rows, int64_t cols,
                        int32_t nthreads) {{
#pragma omp parallel for num_threads(nthreads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {{
    const float* x = in0 + r * cols;
    float* y = out0 + r * cols;
    for (int64_t c = 0; c < cols; ++c) {{
      y[c] = 0.5f * x[c] * (1.0f + std::erf(x[c] * 0.70710678f));  // unroll {unroll}
    }}
  }}
}}
"""

# name, family, vendor, calls, mean us, roofline us, bytes, flops, shape, module paths, code, state
TARGETS = [
    (
        "gelu",
        "activation",
        False,
        6,
        812.4,
        290.0,
        12_582_912,
        18_874_368,
        (16, 64, 1536),
        [f"encoder.layer.{i}.intermediate" for i in range(6)],
        "def forward(self, in0):\n    gelu = torch.nn.functional.gelu(in0)\n    return (gelu,)\n",
        "done",
        "no gain in the last 8 candidates",
    ),
    (
        "dropout_add_layer_norm",
        "layer_norm",
        False,
        12,
        168.9,
        74.1,
        4_718_592,
        3_145_728,
        (16, 64, 384),
        [f"encoder.layer.{i}.output" for i in range(6)],
        "def forward(self, in0, in1, in2, in3):\n    add = in0 + in1\n    layer_norm = "
        "torch.nn.functional.layer_norm(add, (384,), in2, in3, 1e-12)\n    return (layer_norm,)\n",
        "done",
        "within 8% of its roofline",
    ),
    (
        "mean_pool",
        "reduction",
        False,
        1,
        96.3,
        61.0,
        1_572_864,
        1_179_648,
        (16, 64, 384),
        ["pool"],
        "def forward(self, in0, in1):\n    mul = in0 * in1\n    sum_1 = mul.sum(1)\n    sum_2 = "
        "in1.sum(1)\n    truediv = sum_1 / sum_2\n    return (truediv,)\n",
        "done",
        "the budget of 26 candidates is used up",
    ),
    (
        "linear",
        "vendor:linear",
        True,
        24,
        1104.0,
        980.0,
        9_437_184,
        1_207_959_552,
        (16, 64, 1536),
        [f"encoder.layer.{i}.intermediate.dense" for i in range(6)],
        "def forward(self, in0, in1, in2):\n    linear = "
        "torch.nn.functional.linear(in0, in1, in2)\n    return (linear,)\n",
        "skipped",
        "a library call does this; single vendor operations are left alone",
    ),
]

# target, parent, action, verdict, ratio over eager, what the reason adds
NODES = [
    (0, None, "draft", "accepted", 1.62, "vector width 16, one row a thread"),
    (0, None, "draft", "slower", 0.71, "scalar erf"),
    (0, None, "draft", "compile_failed", None, "line 11: '_mm512_erf_ps' was not declared"),
    (0, 0, "optimise", "accepted", 1.94, "polynomial erf, unroll 2"),
    (0, 0, "optimise", "wrong", None, "out0 is off by 3.1e-02, allowed 4.8e-07, on redrawn 1"),
    (0, 3, "optimise", "accepted", 2.31, "unroll 4, non-temporal stores"),
    (0, 3, "optimise", "undecided", 1.01, "interval 0.97 to 1.05 holds 1"),
    (0, 5, "optimise", "suspicious", None, "faster than memory allows: 3.4 times the bandwidth"),
    (0, 5, "optimise", "slower", 0.96, "unroll 16 spills registers"),
    (0, 2, "repair", "accepted", 1.55, "the intrinsic replaced by a polynomial"),
    (0, 4, "repair", "timed_out", None, "no answer in 20 s, stopped"),
    (1, None, "draft", "accepted", 1.48, "two passes, row in registers"),
    (1, None, "draft", "crashed", None, "signal 11 (segmentation fault) on captured 0"),
    (1, 0, "optimise", "accepted", 1.83, "one pass, Welford"),
    (1, 0, "optimise", "accepted", 1.71, "four accumulators"),
    (1, 2, "optimise", "accepted", 2.09, "one pass, prefetch, two rows a step"),
    (1, 2, "optimise", "wrong", None, "rows with mean far above spread: error 91 times eager's"),
    (1, 1, "repair", "accepted", 1.39, "tail handled by a mask"),
    (1, 4, "optimise", "undecided", 1.02, "interval 0.99 to 1.06 holds 1"),
    (1, 4, "optimise", "slower", 0.88, "four rows a step"),
    (2, None, "draft", "undecided", 1.03, "interval 0.96 to 1.10 holds 1"),
    (2, None, "draft", "slower", 0.64, "threads over columns"),
    (2, None, "draft", "refused", None, "#include <dlfcn.h> is not allowed"),
    (2, 0, "optimise", "accepted", 1.21, "sums kept in registers"),
    (2, 0, "optimise", "wrapper", None, "calls cblas_sgemv: correct, but a library's work"),
    (2, 3, "optimise", "accepted", 1.24, "mask read once"),
]


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _spec(shape: tuple[int, ...]) -> dict:
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return {"shape": list(shape), "stride": strides, "dtype": "float32", "device": "cpu"}


def _inputs(name: str, shape: tuple[int, ...]) -> list[dict]:
    one = {
        "gelu": [shape],
        "dropout_add_layer_norm": [shape, shape, (384,), (384,)],
        "mean_pool": [shape, (16, 64, 1)],
        "linear": [(16, 64, 384), (1536, 384), (1536,)],
    }
    return [_spec(s) for s in one[name]]


def _target(index: int) -> dict:
    (
        name,
        family,
        vendor,
        calls,
        mean,
        roofline,
        size,
        flops,
        shape,
        modules,
        code,
        state,
        reason,
    ) = TARGETS[index]
    wall = 40_980.0
    share = calls * mean / wall
    out = (16, 384) if name == "mean_pool" else shape
    return {
        "index": index,
        "fingerprint": _fingerprint(name),
        "name": name,
        "family": family,
        "granularity": "region",
        "vendor": vendor,
        "calls": calls,
        "mean_us": mean,
        "share": round(share, 4),
        "bytes": size,
        "flops": flops,
        "roofline_us": roofline,
        "headroom": round(mean / roofline, 3),
        "ceiling": round(1 / (1 - share + share * roofline / mean), 4),
        "variant": f"float32[{', '.join(map(str, shape))}] cpu",
        "modules": modules,
        "code": code,
        "state": state,
        "state_reason": reason,
        "best": None,
        "inputs": _inputs(name, shape),
        "outputs": [_spec(out)],
    }


def _samples(rng: random.Random, middle: float, n: int = 15) -> list[float]:
    return [round(middle * rng.lognormvariate(0, 0.02), 2) for _ in range(n)]


def _timing(rng: random.Random, against: str, ours: float, theirs: float) -> dict:
    ratio = theirs / ours
    return {
        "against": against,
        "ratio": round(ratio, 4),
        "low": round(ratio * 0.98, 4),
        "high": round(ratio * 1.021, 4),
        "n": 15,
        "ours_us": round(ours, 2),
        "against_us": round(theirs, 2),
        "ours_samples_us": _samples(rng, ours),
        "against_samples_us": _samples(rng, theirs),
    }


def _node(rng: random.Random, order: int, ids: dict, seen: list[int]) -> tuple[dict, dict]:
    target, parent, action, verdict, ratio, words = NODES[order]
    number = seen[target]
    seen[target] += 1
    node_id = ids[target, number] = f"{target}.{number}"
    name, eager = TARGETS[target][0], TARGETS[target][4]
    ours = eager / ratio if ratio else None
    unroll = rng.choice([1, 2, 4, 8])
    entry, shape = f"k_{name}", TARGETS[target][8]
    row = {
        "id": node_id,
        "target": target,
        "parent": None if parent is None else ids[target, parent],
        "action": action,
        "title": f"{name}: {words}" if ratio else f"{name}, unroll {unroll}",
        "language": "cpp",
        "origin": {"proposer": "recipes", "recipe": name, "params": {"unroll": unroll}},
        "verdict": verdict,
        "reason": f"{ratio}x over eager: {words}" if ratio else words,
        "visits": 1,
        "value": None,
        "speedup": ratio,
        "low": ratio and round(ratio * 0.98, 4),
        "high": ratio and round(ratio * 1.021, 4),
        "ours_us": ours and round(ours, 2),
        "eager_us": eager if ratio else None,
        "compile_us": round(eager / 1.18, 2) if ratio else None,
        "seconds": round(rng.uniform(1.2, 3.4), 2),
        "created": f"2026-03-14T09:{order // 10:02d}:{order % 10 * 5 + 3:02d}.000000Z",
    }
    timings = []
    if ours:
        timings = [_timing(rng, "eager", ours, eager), _timing(rng, "compile", ours, eager / 1.18)]
    failed = verdict == "compile_failed"
    details = {
        "source": SOURCE.format(entry=entry, unroll=unroll),
        "plan": {
            "kernels": [
                {"name": entry, "args": ["in0", "out0", "i64:ROWS", "i64:C", "i32:nthreads"]}
            ],
            "symbols": {"C": "in0.shape[-1]", "ROWS": "numel(in0) // C"},
            "scratch": {},
        },
        "launch": {
            "calls": [{"name": entry, "grid": [1, 1, 1], "block": [1, 1, 1], "shared": 0}],
            "symbols": {"C": shape[-1], "ROWS": math.prod(shape[:-1])},
            "scratch_bytes": 0,
        },
        "log": f"kernel.cpp:11:22: error: {words}\n" if failed else "",
        "errors": []
        if failed or not (ratio or verdict == "wrong")
        else [
            {
                "output": "out0",
                "input_set": s,
                "candidate": 3.1e-2 if verdict == "wrong" else e,
                "eager": e * 0.9,
                "budget": e * 4,
            }
            for s, e in (("captured 0", 1.19e-7), ("redrawn 1", 1.31e-7), ("huge", 2.2e-7))
        ],
        "timings": timings,
        "resources": {"vector_bits": 512} if ratio else {},
        "mismatches": []
        if verdict != "wrong"
        else [{"output": "out0", "index": [0, 3, 17], "expected": 0.8413, "got": 0.8102}],
        "seconds": {"compile": 0.71, "correctness": 0.22, "timing": 0.9 if ratio else 0.0},
        "bandwidth_gbs": ours and round(TARGETS[target][6] / ours / 1e3, 2),
        "roofline_share": ours and round(TARGETS[target][5] / ours, 3),
        "repeatable": True if ratio else None,
    }
    return row, details


def _statistics(rows: list[dict]) -> None:
    """Visits (own plus descendants) and value (log speed-up of the subtree's best)."""
    by_id = {r["id"]: r for r in rows}
    for row in rows:
        row["value"] = math.log(row["speedup"]) if row["speedup"] else None
    for row in reversed(rows):
        parent = by_id.get(row["parent"])
        if parent:
            parent["visits"] += row["visits"]
            values = [v for v in (parent["value"], row["value"]) if v is not None]
            parent["value"] = max(values) if values else None
    for row in rows:
        row["value"] = row["value"] and round(row["value"], 4)


def _decisions(targets: list[dict], rows: list[dict]) -> list[dict]:
    in_model = {0: (1.128, 1.117, 1.139), 1: (1.064, 1.052, 1.077), 2: (0.998, 0.993, 1.004)}
    found = []
    for t in targets:
        index = t["index"]
        best = next((r for r in rows if r["id"] == t["best"]), None)
        ratio, low, high = in_model.get(index, (None, None, None))
        reason = {
            0: "faster in the model",
            1: "faster in the model",
            2: "kept original: 1.24x alone, but no gain in the model (0.993 to 1.004)",
            3: "kept original: a library call does this",
        }[index]
        found.append(
            {
                "target": index,
                "fingerprint": t["fingerprint"],
                "node": best and best["id"],
                "installed": index < 2,
                "reason": reason,
                "isolated": best
                and {k if k != "speedup" else "ratio": best[k] for k in ("speedup", "low", "high")},
                "in_model": ratio
                and {
                    "ratio": ratio,
                    "low": low,
                    "high": high,
                    "ours_us": round(40_980 / ratio, 1),
                    "against_us": 40_980.0,
                },
                "fidelity": {"ratio": 1.0, "inputs": 8, "note": ""} if index < 2 else None,
            }
        )
    return found


def _whole() -> list[dict]:
    wall = 40_980.0
    rows = [
        ("empty", "eager", "eager", 0.991),
        ("guarded", "eager", "empty", 1.199),
        ("guarded", "eager", "eager", 1.188),
        ("guarded", "inductor", "empty", 1.061),
        ("guarded", "inductor", "eager", 1.302),
        ("guarded", "inductor", "compile", 1.058),
    ]
    return [
        {
            "name": n,
            "rest": r,
            "against": a,
            "ratio": x,
            "low": round(x * 0.99, 4),
            "high": round(x * 1.01, 4),
            "n": 25,
            "ours_us": round(wall / x, 1),
            "against_us": wall,
        }
        for n, r, a, x in rows
    ]


def example() -> dict:
    """The run document, the same on every call."""
    rng = random.Random(20260314)
    targets = [_target(i) for i in range(len(TARGETS))]
    ids: dict = {}
    seen = [0] * len(targets)
    pairs = [_node(rng, order, ids, seen) for order in range(len(NODES))]
    rows = [row for row, _ in pairs]
    _statistics(rows)
    for t in targets:
        won = [r for r in rows if r["target"] == t["index"] and r["verdict"] == "accepted"]
        t["best"] = max(won, key=lambda r: r["speedup"])["id"] if won else None
    return {
        "schema": "kforge.run/1.2",
        "id": "20260314-090000-5f3a1c",
        "name": "minilm",
        "state": "done",
        "state_reason": "the budget of 26 candidates is used up",
        "created": "2026-03-14T09:00:00.000000Z",
        "updated": "2026-03-14T09:03:41.000000Z",
        "versions": {
            "kforge_nb": "0.1.0",
            "torch": "2.13.0",
            "python": "3.11.9",
            "transformers": "5.24.0",
        },
        "device": {
            "name": "Intel Xeon @ 2.10GHz",
            "kind": "cpu",
            "threads": 2,
            "isa": "avx512",
            "ram_gb": 24.0,
            "bandwidth_gbs": 21.4,
        },
        "options": {
            "budget": 26,
            "granularity": "region",
            "proposer": "recipes",
            "seed": 0,
            "rest": "auto",
            "max_cost": None,
            "time_limit": 600,
        },
        "progress": {
            "phase": "done",
            "judged": 26,
            "budget": 26,
            "seconds": 221.0,
            "time_limit": 600,
            "eta_s": 0,
            "message": "2 of 4 targets replaced",
            "paused": False,
            "prompts": 0,
            "calls": [],
        },
        "workload": {
            "wall_us": 40_980.0,
            "device_us": 38_410.0,
            "launch_bound": False,
            "notes": ["The tokenizer is not part of the graph."],
            "modules": [{"name": "model", "class": "BertModel", "calls": 1}],
        },
        "targets": targets,
        "nodes": rows,
        "details": {row["id"]: details for row, details in pairs},
        "costs": [
            {
                "target": r["target"],
                "node": r["id"],
                "calls": 0,
                "tokens_in": 0,
                "tokens_cached": 0,
                "tokens_out": 0,
                "tokens_reasoning": 0,
                "estimated": False,
                "usd": 0.0,
                "seconds": r["seconds"],
                "model": "",
                "prompt": "",
                "purpose": "",
                "state": "done",
                "problem": "",
                "created": r["created"],
            }
            for r in rows
        ],
        "decisions": _decisions(targets, rows),
        "whole": _whole(),
        "fidelity": {"ratio": 1.0, "inputs": 8, "note": "1 call of the cell, 7 seeded redraws"},
        "recommendation": {
            "rest": "inductor",
            "reason": "1.302x over raw eager, the fastest that is right",
        },
        "counters": {"launches": 18, "fallbacks": 0, "reasons": {}},
    }


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(example(), indent=1) + "\n")
