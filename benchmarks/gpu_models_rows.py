"""Rows of ``gpu_models``: comparisons of one model's sides, its decisions, its listed targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from benchmarks.gpu_models_profile import list_rows
from benchmarks.gpu_models_sides import EAGER, MODES, RESTS
from benchmarks.gpu_models_state import Body, Places
from benchmarks.report import Row, compare_row, measure_row
from benchmarks.timing import compare

__all__ = ["best_rest", "compared", "decided_for", "rows_of"]


def rows_of(places: Places, name: str, *, listed: bool = True) -> list[Row]:
    """All rows of one model that its stages have left."""
    rows = _profile_rows(places.read(name, "profile"), name) if listed else []
    searched = places.read(name, "search")
    if searched.get("decisions") is not None:
        rows += _search_rows(searched, name)
    elif searched:
        text = f"{name}: search did_not_finish ({searched.get('step', 'starting')})"
        rows.append(measure_row(text, sum(searched["seconds"].values()), "s", model=name))
        rows += _judging_rows(searched, name)
    rows += _ops_rows(places.read(name, "ops"), name)
    timed = places.read(name, "time")
    rows += list(_time_rows(timed, searched, name))
    rows += list(_unfinished(timed, places, name))
    rows += list(_fidelity_rows(places.read(name, "fidelity"), name))
    return rows


def _profile_rows(body: Body, name: str) -> list[Row]:
    if body.get("done"):
        return list_rows(body)
    if not body:
        return []
    text = f"{name}: profile did_not_finish ({body.get('step', 'starting')})"
    return [measure_row(text, sum(body["seconds"].values()), "s", model=name)]


def _search_rows(body: Body, name: str) -> list[Row]:
    return [
        measure_row(f"{name}: kernels installed", body["installed"], "kernels", model=name),
        *(
            measure_row(f"{name}: kernels kept with {rest}", len(kept), "kernels", model=name)
            for rest, kept in (body.get("by_rest") or {}).items()
        ),
        measure_row(f"{name}: candidates judged", body["judged"], "candidates", model=name),
        *_judging_rows(body, name),
    ]


def _judging_rows(body: Body, name: str) -> Iterator[Row]:
    """Where the judge's time goes: seconds of a candidate by step, the mean over all candidates."""
    judged = [found["seconds"] for found in body.get("candidates", [])]
    for step in dict.fromkeys(step for seconds in judged for step in seconds):
        taken = [seconds[step] for seconds in judged if step in seconds]
        mean = sum(taken) / len(taken)
        low, high = min(taken), max(taken)
        title = f"{name}: judge {step}"
        yield measure_row(title, mean, "s", low=low, high=high, n=len(taken), model=name)


def _ops_rows(body: Body, name: str) -> list[Row]:
    rows: list[Row] = []
    for found in body.get("rows", []):
        kept = ("fingerprint", "family", "variant", "calls", "share", "kernel", "problem")
        more = {"model": name, **{key: found[key] for key in kept}}
        for other, against in (("eager", "eager"), ("compile", "max_autotune")):
            if other in found and (found["kernel"] or other != "eager"):
                title = f"{name}: op {found['name']}"
                rows.append({"name": title, "against": against, **found[other], **more})
    return rows


def decided_for(body: Body, searched: Body, rest: str) -> str:
    """The rest that the kernels of a guarded side were decided for: itself if the run measured it.

    Files that do not say so hold kernels of the one rest that the run was asked for.
    """
    told = body.get("decided", {}).get(f"guarded-{rest}")
    asked = (searched.get("budget") or [None, None, "auto"])[2]
    return str(told if told is not None else rest if asked == "auto" else asked)


def best_rest(
    samples: Mapping[str, list[float]], searched: Body, decided: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """The rest whose guarded figure counts, and who chose it.

    The guard's own recommendation where it measured all rests; else the fastest here of those that
    have kernels of their own. Two empty strings where no guarded side was timed.

    Args:
        samples: of each side.
        searched: what the search stage left.
        decided: of each guarded rest the one that its kernels were decided for.
    """
    guarded = [r for r in RESTS if f"guarded-{r}" in samples]
    own = [r for r in guarded if (decided or {}).get(r, r) == r]
    guarded = own or guarded
    advice = (searched.get("recommendation") or {}).get("rest")
    asked = (searched.get("budget") or [None, None, "auto"])[2]
    if asked == "auto" and advice in guarded:
        return str(advice), "guard"
    if not guarded:
        return "", ""
    return min(guarded, key=lambda r: statistics.median(samples[f"guarded-{r}"])), "time"


def _pairs(samples: Mapping[str, list[float]]) -> Iterator[tuple[str, str]]:
    """(ours, against) of every comparison that the table has."""
    for side in samples:
        if side != EAGER:
            yield side, EAGER
    for rest in RESTS:
        ours = f"guarded-{rest}"
        if ours in samples:
            others = [f"empty-{rest}", *MODES]
            yield from ((ours, other) for other in others if other in samples)


def _time_rows(body: Body, searched: Body, name: str) -> Iterator[Row]:
    samples = body.get("samples", {})
    if not samples:
        return
    decided = {r: decided_for(body, searched, r) for r in RESTS if f"guarded-{r}" in samples}
    best, chosen_by = best_rest(samples, searched, decided)
    for ours, against in _pairs(samples):
        rest = ours.partition("-")[2] if ours.startswith(("guarded-", "empty-")) else ""
        foreign = ours.startswith("guarded-") and decided[rest] != rest
        note = f"kernels decided for rest {decided[rest] or 'unknown'}" if foreign else ""
        yield compare_row(
            f"{name}: {ours} ({note})" if note else f"{name}: {ours}",
            against,
            compare(samples[ours], samples[against]),
            model=name,
            side=ours,
            kernels=body["kernels"].get(ours, 0),
            best=ours == f"guarded-{best}",
            chosen_by=chosen_by,
            rest=rest,
            decided=decided.get(rest, "") if ours.startswith("guarded-") else "",
            note=note,
            difference=body["differences"].get(ours),
        )


def _unfinished(body: Body, places: Places, name: str) -> Iterator[Row]:
    """Sides that are not timed, with the reason in the row's name."""
    for side, why in body.get("left_out", {}).items():
        spent = places.read(name, f"ahead.{side}").get("seconds", {})
        row = measure_row(f"{name}: {side} {why}", sum(spent.values()), "s", model=name)
        yield {**row, "side": side, "left_out": why}


def _fidelity_rows(body: Body, name: str) -> Iterator[Row]:
    for side, check in body.get("checks", {}).items():
        ratio = check["ratio"]
        value = float("nan") if ratio is None else float(ratio)
        ratios = [float(r) for r in check["ratios"]] or [value]
        yield measure_row(
            f"{name}: fidelity {side}",
            value,
            "of eager's error",
            low=min(ratios),
            high=max(ratios),
            n=len(check["ratios"]),
            model=name,
            side=side,
            good=check["good"],
            note=check["note"],
        )


def compared(rows: list[Row], model: str, ours: str, against: str) -> Row | None:
    """The row of one comparison, if it was measured."""
    for row in rows:
        if row.get("model") == model and row.get("side") == ours and row.get("against") == against:
            return row
    return None
