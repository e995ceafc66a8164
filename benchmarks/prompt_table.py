"""The table of a trial by version of the prompts: what compiles, what is right, what is fast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.report import make_report, measure_row
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.transcript import Entry, Transcript

__all__ = ["report_of"]

NEAR = 0.95
_UNCOMPILED = frozenset({Verdict.COMPILE_FAILED, Verdict.REFUSED, Verdict.WRAPPER})
Row = dict[str, Any]


def report_of(said: Transcript, duels: dict[str, Any], recipes: dict[str, Any]) -> Row:
    """Rows by version, then one row a target with its best kernel."""
    versions = sorted({e.version for e in said.entries})
    rows: list[Row] = []
    for version in versions:
        rows += _version_rows(version, [e for e in said.entries if e.version == version])
    rows += _ends(said.entries, duels)
    rows += [_target_row(name, said.entries, duels, recipes) for name in _names(said.entries)]
    notes = [
        "a draft compiles if the judge does not refuse it and the compiler takes it",
        "a draft is right if its first answer is (a mended form counts)",
        "CUDA drafts count as right or wrong only where a GPU judged them",
        "tokens are estimates by length",
    ]
    return make_report("prompt_trial", rows, notes=notes, source=said.source, model=said.model)


def _names(entries: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(e.target for e in entries))


def _version_rows(version: str, entries: list[Entry]) -> list[Row]:
    drafts = _drafts(entries)
    judged = [e for e in drafts if _judged(e)]
    compiled = [e for e in drafts if _compiled(e)]
    right = [e for e in judged if _right(e)]
    repairs = [e for e in entries if e.action == "repair"]
    mended = [e for e in repairs if _right(e)]
    tokens = sum(e.tokens_in + e.tokens_out for e in entries)
    name = f"prompts {version}"
    return [
        _share(f"{name}: drafts that compile", len(compiled), len(drafts)),
        _share(f"{name}: drafts right at first try", len(right), len(judged)),
        _share(f"{name}: repairs that mend", len(mended), len(repairs)),
        measure_row(f"{name}: answers", len(entries), "answers"),
        measure_row(f"{name}: tokens (estimate)", tokens, "tokens"),
    ]


def _share(name: str, part: int, whole: int) -> Row:
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


def _ends(entries: Iterable[Entry], duels: dict[str, Any]) -> list[Row]:
    """How many targets end near the best recipe or better, and how many are strictly faster."""
    names = [n for n in _names(entries) if n in duels or not n.startswith("cuda_")]
    near = [n for n in names if n in duels and duels[n]["ratio"] >= NEAR]
    faster = [n for n in names if n in duels and duels[n]["low"] > 1.0]
    return [
        _share("targets within 5% of the best recipe, or better", len(near), len(names)),
        _share("targets strictly faster than the best recipe", len(faster), len(names)),
    ]


def _target_row(
    name: str, entries: Iterable[Entry], duels: dict[str, Any], recipes: dict[str, Any]
) -> Row:
    mine = [e for e in entries if e.target == name]
    verdicts = [e.evaluation["verdict"] if e.evaluation else "no candidate" for e in mine]
    speeds = [f.speedup or 0.0 for e in mine if _right(e) and (f := _evaluation(e)) is not None]
    duel = duels.get(name, {})
    recipe = recipes.get(name, {}).get("evaluation")
    more: Row = {
        "verdicts": verdicts,
        "over_recipe": {k: duel[k] for k in ("ratio", "low", "high") if k in duel},
        "recipe_over_eager": Evaluation.from_document(recipe).speedup if recipe else None,
    }
    best = max(speeds, default=0.0)
    return measure_row(f"{name}: best over eager", best, "times", n=len(mine), **more)
