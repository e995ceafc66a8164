"""Takes the user's code out of a run document, so that it can be shown to strangers.

What remains are figures: shapes, times, verdicts, decisions, versions, device. Everything that is
free text (sources, printed graphs, logs, notes, reasons, titles) could quote the user's code and
is left out or replaced by words made from the figures; names become stable labels (``module 1``).
Texts from a short list of the tool's own words (``recipes``, ``auto``, …) stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["redacted"]

_OWN_WORDS = frozenset(
    [
        "recipes",
        "openai",
        "paste",
        "replay",
        "manual",
        "eager",
        "inductor",
        "cudagraphs",
        "inductor-cudagraphs",
        "auto",
        "op",
        "module",
        "region",
        "cupy",
        "cupy_raw",
        "cpp_extension",
        "cpp",
        "cuda",
        "cuda_extension",
        "processes",
        "local",
        "dask",
        "cpu",
        "guarded",
        "empty",
        "compile",
        "max_autotune",
        "none",
        "keep",
        "layout",
        "channels_last",
    ]
)
_OPTIONS = frozenset(
    [
        "budget",
        "max_cost",
        "time_limit",
        "granularity",
        "layout",
        "proposer",
        "backend",
        "rest",
        "engine",
        "seed",
        "top",
        "parallel",
        "max_tokens",
        "temperature",
        "price_in",
        "price_out",
        "threads",
        "iterations",
        "workers",
        "wait",
    ]
)
_FACTS = frozenset(
    [
        "name",
        "kind",
        "threads",
        "isa",
        "arch",
        "device",
        "multiprocessors",
        "ram_gb",
        "bandwidth_gbs",
        "flops_gflops",
        "capability",
        "sm_count",
        "memory_gb",
        "driver",
        "cuda",
        "cores",
        "count",
    ]
)
_LABEL = re.compile(r"(?:in|out)[0-9]{1,3}")
_INPUT_SET = re.compile(  # the judge's own names of input sets
    r"(?:(?:captured|redrawn|hard|offset|specials|impulses|large|zeros|huge|tiny|negative"
    r"|infinities|set)[ _:#,-]{0,2}[0-9]{0,4}[ _:,-]{0,2}){1,4}"
)


class _Labels:
    """The same neutral label for the same name, numbered by first appearance."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.seen: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self.seen.setdefault(name, f"{self.word} {len(self.seen) + 1}")


def redacted(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a valid document without anything of the user's code; valid again."""
    modules, classes = _Labels("module"), _Labels("class")
    found = dict(data)
    found |= {"name": "redacted", "state_reason": ""}
    found["options"] = {k: v for k, v in data["options"].items() if k in _OPTIONS and _own(v)}
    found["device"] = {k: v for k, v in data["device"].items() if k in _FACTS and _flat(v)}
    found["progress"] = {**data["progress"], "phase": data["state"], "message": "", "calls": []}
    if "judging" in found["progress"]:
        found["progress"]["judging"] = []
    workload = data["workload"]
    found["workload"] = {
        **workload,
        "notes": [],
        "modules": [
            {**m, "name": modules(m["name"]), "class": classes(m["class"])}
            for m in workload["modules"]
        ],
    }
    found["targets"] = [_target(t, modules) for t in data["targets"]]
    found["nodes"] = [_node(n) for n in data["nodes"]]
    found["details"] = {k: _details(d) for k, d in data["details"].items()}
    found["costs"] = [{**c, "model": "", "problem": ""} for c in data["costs"]]
    found["decisions"] = [_decision(d) for d in data["decisions"]]
    found["whole"] = [_words(w, ("name", "rest", "against")) for w in data["whole"]]
    found["fidelity"] = _figures(data["fidelity"])
    if data["recommendation"] is not None:
        found["recommendation"] = {**_words(data["recommendation"], ("rest",)), "reason": ""}
    if data["counters"] is not None:
        found["counters"] = {
            k: v for k, v in data["counters"].items() if k in ("launches", "fallbacks") and _own(v)
        }
    return found


def _own(value: Any) -> bool:
    """Whether a value is a number, a switch, or one of the tool's own words."""
    return value is None or isinstance(value, bool | int | float) or _own_word(value)


def _own_word(value: Any) -> bool:
    return isinstance(value, str) and value in _OWN_WORDS


def _flat(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(v, int | float) for v in value.values())
    return value is None or isinstance(value, bool | int | float | str)


def _words(row: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {k: ("other" if k in keys and v not in _OWN_WORDS else v) for k, v in row.items()}


def _target(target: Mapping[str, Any], modules: _Labels) -> dict[str, Any]:
    specs = [f"{s['dtype']}[{', '.join(map(str, s['shape']))}]" for s in target["inputs"]]
    return {
        **target,
        "name": f"target {target['index']}",
        "variant": "; ".join(specs)[:4000],
        "modules": [modules(m) for m in target["modules"]],
        "code": "",
        "state_reason": "",
        **({"stopped": {**target["stopped"], "reason": ""}} if target.get("stopped") else {}),
    }


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    proposer = node["origin"].get("proposer")
    return {
        **node,
        "title": f"candidate {node['id']}",
        "origin": {"proposer": proposer} if _own(proposer) else {},
        "reason": "",
    }


def _details(details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **details,
        "source": "",
        "plan": {},
        "launch": None,
        "log": "",
        "prompt": "",
        "answer": "",
        "mismatches": [],
        "resources": _figures(details["resources"]),
        "errors": [
            {
                **e,
                "output": e["output"] if _LABEL.fullmatch(e["output"]) else "other",
                "input_set": e["input_set"] if _INPUT_SET.fullmatch(e["input_set"]) else "other",
            }
            for e in details["errors"]
        ],
        "timings": [_words(t, ("against",)) for t in details["timings"]],
    }


def _decision(decision: Mapping[str, Any]) -> dict[str, Any]:
    reason = "installed" if decision["installed"] else "kept original"
    model = decision["in_model"]
    if model is not None and model["ratio"] is not None:
        reason += f": {model['ratio']:.3f}x in the model"
    found = {**decision, "reason": reason, "fidelity": _figures(decision["fidelity"])}
    if "rests" in decision:
        found["rests"] = [{**rest, "reason": ""} for rest in decision["rests"]]
    counted = decision.get("counters")
    if counted is not None:
        total = sum(counted["fallbacks"].values())
        fallbacks = {"any reason": total} if total else {}
        found["counters"] = {**counted, "fallbacks": fallbacks, "note": ""}
    return found


def _figures(record: Mapping[str, Any] | None) -> Any:
    """Only the numbers of a record; a required note becomes empty."""
    if record is None:
        return None
    numbers = bool | int | float | None
    found: dict[str, Any] = {k: v for k, v in record.items() if isinstance(v, numbers)}
    return found | ({"note": ""} if "note" in record else {})
