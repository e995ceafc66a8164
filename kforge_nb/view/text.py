"""A run in plain text, for terminals and for ``text/plain`` of a saved notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kforge_nb.view import claims, facts, profiled, words
from kforge_nb.view.entries import has_evidence, ranked_decisions, scaled_times
from kforge_nb.view.facts import Document

__all__ = ["summary"]

NAME_WIDTH = 40
ROWS = 12


def summary(document: Document) -> str:
    """Headline, targets, decisions and notes, a few lines each; only notes may be long lines."""
    blocks = [_headline(document), _targets(document), _decisions(document), _notes(document)]
    return "\n\n".join(block for block in blocks if block)


def _headline(document: Document) -> str:
    lead = facts.headline(document)
    lines = [f"run {document['name']}: {words.ended(document, ', ')}"]
    if further := words.goes_on(document):
        lines.append(f"  {further}")
    if lead.nothing_won:
        won = claims.nothing_won(document["decisions"])
        lines.append(f"  {won}, so every target stays original")
    compared = facts.comparisons(lead)
    if claims.shown(lead.over_eager) in ("faster", "slower") and lead.over_eager is not None:
        before, after = scaled_times(document, lead.over_eager)
        compared[-1] += f", {words.time(before)} → {words.time(after)}"
    lines += [f"  {line}" for line in compared]
    if not compared and not lead.nothing_won and lead.estimate is not None:
        estimated = f"{words.ratio(lead.estimate)} estimated, not yet measured in the model"
        none = f"no candidate is faster{' so far' if facts.running(document) else ''}"
        lines.append(f"  {estimated if lead.estimate > 1 else none}")
    advice = document["recommendation"]
    if advice and advice["rest"] == "none":
        lines.append(f"  the guard recommends to leave the model alone: {advice['reason']}")
    if document["fidelity"] is not None:
        lines.append(f"  fidelity {claims.fidelity(document['fidelity'])}")
    usd, calls = facts.spent(document)
    paid = words.paid(usd, calls, facts.saved_ms(document))
    lines.append(f"  {words.count(document['progress']['judged'], 'candidate')} judged, {paid}")
    return "\n".join(lines)


def _targets(document: Document) -> str:
    tried = Counter(node["target"] for node in document["nodes"])
    nodes = {node["id"]: node for node in document["nodes"]}
    share = profiled.share_words(document)
    rows = [("target", share, "calls", "eager", "best", "speed-up", "state")]
    ranked, open_ones = facts.ranked_targets(document), claims.unconfirmed(document)
    for target in ranked[:ROWS]:
        best = nodes.get(target["best"] or "")
        rows.append(
            (
                _short(f"{target['index']} {target['name']}"),
                words.percent(target["share"]),
                str(target["calls"]),
                words.time(best["eager_us"] if best else target["mean_us"]),
                words.time(best["ours_us"] if best else None),
                words.marked(
                    claims.measured({**best, "ratio": best["speedup"]} if best else None), best
                )
                + (f", {claims.UNCONFIRMED}" if target["index"] in open_ones else ""),
                words.state(target, tried[target["index"]]),
            )
        )
    more = f"\n… and {len(ranked) - ROWS} more" if len(ranked) > ROWS else ""
    return _align(rows) + more if ranked else ""


def _decisions(document: Document) -> str:
    """Decisions about targets that had a candidate; the others are counted."""
    names = {t["index"]: t["name"] for t in document["targets"]}
    nodes = {node["id"]: node for node in document["nodes"]}
    tried = [d for d in ranked_decisions(document) if has_evidence(d)]
    rows = [
        (
            _short(f"{d['target']} {names.get(d['target'], d['fingerprint'][:12])}"),
            f"alone {claims.measured(d['isolated'])}",
            f"in the model {claims.measured(d['in_model'])}",
            words.marked(words.decision(d), nodes.get(d["node"] or "")),
        )
        for d in tried
    ]
    left = len(document["decisions"]) - len(tried)
    untried = f"{words.count(left, 'target')} without a confirmed kernel, left original"
    ran = claims.at_run_time(document["counters"])
    return "\n".join(filter(None, [_align(rows), untried if left else "", ran]))


def _notes(document: Document) -> str:
    """What the profile and the guard had to say about the workload."""
    notes = [*profiled.remarks(document), *document["workload"]["notes"]]
    return "\n".join(f"note: {note}" for note in notes)


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width; the last one is left ragged."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def _short(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"
