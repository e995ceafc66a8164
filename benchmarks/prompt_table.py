"""The table of a trial by version of the prompts: what compiles, what is right, what is fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.prompt_faults import LABEL, label_of
from benchmarks.report import make_report, measure_row
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.transcript import Entry, Transcript

__all__ = ["report_of"]

NEAR = 0.95
DEEP = 4
_UNCOMPILED = frozenset({Verdict.COMPILE_FAILED, Verdict.REFUSED, Verdict.WRAPPER})
Row = dict[str, Any]


def report_of(said: Transcript, duels: dict[str, Any], recipes: dict[str, Any]) -> Row:
    """Rows by version, then planted faults, then one row a target with its best kernel."""
    answered = [e for e in said.entries if e.action != "planted"]
    rows: list[Row] = []
    for version in sorted({e.version for e in answered}):
        rows += _version_rows(version, [e for e in answered if e.version == version])
    rows += [_fault_row(e, said.entries) for e in said.entries if e.action == "planted"]
    own = [e for e in answered if label_of(e) is None]
    rows += _ends(own, duels)
    rows += [_target_row(name, own, duels, recipes) for name in _names(own)]
    notes = [
        "a draft compiles if the judge does not refuse it and the compiler takes it",
        "a draft is right if its first answer is (a mended form counts)",
        "CUDA drafts count as right or wrong only where a GPU judged them",
        "planted: a recorded kernel got a fault, and the product's own prompt asked for its repair",
        "tokens are estimates by length",
    ]
    if not any(e.action == "repair" for e in own):
        notes.append("no answer failed by itself, so every repair is one of a planted fault")
    return make_report("prompt_trial", rows, notes=notes, source=said.source, model=said.model)


def _names(entries: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(e.target for e in entries))


def _version_rows(version: str, entries: list[Entry]) -> list[Row]:
    own = [e for e in entries if label_of(e) is None]
    drafts = _drafts(own)
    judged = [e for e in drafts if _judged(e)]
    steps = [e for e in own if e.action == "optimise"]
    tokens = sum(e.tokens_in + e.tokens_out for e in entries)
    name = f"prompts {version}"
    rows = [
        _share(f"{name}: drafts that compile", drafts, _compiled),
        _share(f"{name}: drafts right at first try", judged, _right),
        _share(f"{name}: optimisations that are right", [e for e in steps if _judged(e)], _right),
    ]
    for kind, planted in (("natural failures", False), ("planted faults", True)):
        repairs = [
            e for e in entries
            if e.action == "repair" and (label_of(e) is not None) == planted
        ]  # fmt: skip
        rows.append(_share(f"{name}: repairs of {kind} that compile", repairs, _compiled))
        rows.append(_share(f"{name}: repairs of {kind} that are right", repairs, _right))
    return [
        *(row for row in rows if row["n"]),
        measure_row(f"{name}: answers", len(entries), "answers"),
        measure_row(f"{name}: tokens (estimate)", tokens, "tokens"),
    ]


def _fault_row(planted: Entry, entries: Iterable[Entry]) -> Row:
    """A planted fault: what the judge found, and whether repairs mended it."""
    label = label_of(planted)
    tries = [e for e in entries if label_of(e) == label and e is not planted]
    mended = any(_right(e) for e in tries)
    fault = (label or "").removeprefix(LABEL)
    return measure_row(
        f"planted in {planted.target}: {fault}", float(mended), "mended", n=len(tries),
        verdicts=[_verdict(e) for e in (planted, *tries)],
    )  # fmt: skip


def _verdict(entry: Entry) -> str:
    return str(entry.evaluation["verdict"]) if entry.evaluation else "no candidate"


def _share(name: str, entries: Sequence[Entry], holds: Callable[[Entry], bool]) -> Row:
    return _part(name, sum(map(holds, entries)), len(entries))


def _part(name: str, part: int, whole: int) -> Row:
    return measure_row(f"{name} ({part} of {whole})", part / whole if whole else 0.0, "share",
                       n=whole)  # fmt: skip


def _drafts(entries: Iterable[Entry]) -> list[Entry]:
    """First tries; where the form was mended, the mended answer stands for the first."""
    found: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        if entry.action == "draft":
            key = (entry.target, entry.version)
            if key not in found or entry.repaired:
                found[key] = entry
    return list(found.values())


def _evaluation(entry: Entry) -> Evaluation | None:
    return Evaluation.from_document(entry.evaluation) if entry.evaluation is not None else None


def _compiled(entry: Entry) -> bool:
    found = _evaluation(entry)
    return found is not None and found.verdict not in _UNCOMPILED


def _judged(entry: Entry) -> bool:
    """Whether it is known to be right or wrong: not so where only the compiler looked at it."""
    found = _evaluation(entry)
    only_compiled = found is not None and found.verdict is Verdict.UNDECIDED and not found.timings
    return not only_compiled


def _right(entry: Entry) -> bool:
    found = _evaluation(entry)
    return found is not None and found.correct and bool(found.timings)


def _ends(entries: Sequence[Entry], duels: dict[str, Any]) -> list[Row]:
    """How far targets were taken, and how many end near the best recipe or strictly faster."""
    cpu = [n for n in _names(entries) if not n.startswith("cuda_")]
    deep = [n for n in cpu if sum(e.target == n for e in entries) >= DEEP]
    names = [n for n in _names(entries) if "ratio" in duels.get(n, {})]
    near = [n for n in names if duels[n]["ratio"] >= NEAR]
    faster = [n for n in names if duels[n]["low"] > 1.0]
    return [
        _part(f"CPU targets taken {DEEP} steps or more", len(deep), len(cpu)),
        _part("targets within 5% of the best recipe, or better", len(near), len(names)),
        _part("targets strictly faster than the best recipe", len(faster), len(names)),
    ]


def _target_row(
    name: str, entries: Sequence[Entry], duels: dict[str, Any], recipes: dict[str, Any]
) -> Row:
    mine = [e for e in entries if e.target == name]
    duel = duels.get(name, {})
    eager = duel.get("eager", {}) or _fastest(mine)
    tuned = recipes.get(name, {}).get("tuned", {}).get("origin")
    more: Row = {
        "verdicts": [_verdict(e) for e in mine],
        "steps": len(mine),
        "generation": _generation(duel.get("candidate"), mine),
        "over_recipe": {k: duel[k] for k in ("ratio", "low", "high", "n") if k in duel},
        "timed": "afterwards, on fresh samples" if "eager" in duel else "when it was judged",
        "recipe": duel.get("recipe") or tuned,
    }
    if not eager:
        return measure_row(f"{name}: answers, not timed here", len(mine), "answers", **more)
    return measure_row(f"{name}: best over eager", eager["ratio"], "times", low=eager["low"],
                       high=eager["high"], n=eager["n"], **more)  # fmt: skip


def _fastest(entries: Sequence[Entry]) -> dict[str, Any]:
    """Figures of the fastest right kernel against eager, as they were when it was judged."""
    timed = [
        row for e in entries
        if _right(e) and (f := _evaluation(e)) is not None and (row := f.against("eager"))
    ]  # fmt: skip
    if not timed:
        return {}
    best = max(timed, key=lambda row: row.ratio)
    return {"ratio": best.ratio, "low": best.low, "high": best.high, "n": best.n}


def _generation(candidate: str | None, entries: Sequence[Entry]) -> int | None:
    """How many kernels the best one descends from, itself included; None where there is none."""
    parents = {e.candidate: e.parent for e in reversed(entries) if e.candidate is not None}
    if candidate not in parents:
        return None
    count = 0
    at: str | None = candidate
    while at is not None and count <= len(entries):
        count, at = count + 1, parents.get(at)
    return count
