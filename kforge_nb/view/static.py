"""The saved view: script-less HTML that shows a run's result on any page, with text beside it.

Every value from the document is escaped: names and reasons may come from anybody's model or file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from kforge_nb.view import claims, facts, profiled, words
from kforge_nb.view.entries import (
    SCALED,
    Entry,
    change_us,
    has_evidence,
    ranked_decisions,
    whole_entries,
)
from kforge_nb.view.facts import Document
from kforge_nb.view.payload import for_notebook
from kforge_nb.view.svg import cost_svg, to_svg
from kforge_nb.view.text import summary

__all__ = ["MIME", "bundle", "to_html", "to_svg"]

MIME = "application/vnd.kforge.run+json"
LARGEST_TREE = 150
ROWS = 60
FEW = 4
REPLACED = "● replaced"
_CELL = "padding:2px 10px;vertical-align:top"
_TEXT = f"text-align:left;{_CELL}"
_NUMBER = f"text-align:right;white-space:nowrap;{_CELL}"


def bundle(document: Document) -> dict[str, Any]:
    """What a notebook saves of a run: the document, HTML without script, and text."""
    return {
        MIME: for_notebook(document),
        "text/html": to_html(document),
        "text/plain": summary(document),
    }


def to_html(document: Document) -> str:
    """Headline, targets, decisions, whole-model rows and the tree most worth seeing."""
    parts = [
        _headline(document),
        _targets(document),
        _decisions(document),
        _whole(document),
        cost_svg(document),
        _tree(document),
        _notes(document),
    ]
    name = escape(document["name"], quote=True)
    body = "".join(part for part in parts if part)
    return f'<div role="region" aria-label="Run {name}" style="line-height:1.45">{body}</div>'


def _headline(document: Document) -> str:
    lead = facts.headline(document)
    row = lead.over_empty or lead.over_eager
    if lead.nothing_won:
        big, after = "0 replaced", claims.nothing_won(document["decisions"])
    elif row is not None:
        big, after, _ = claims.claim(row)
    elif lead.estimate is not None and lead.estimate > 1:
        big, after = f"≈ {words.ratio(lead.estimate)}", "estimated, not yet measured in the model"
    elif not facts.running(document):
        big, after = "no gain", "no candidate is faster; nothing is estimated"
    else:
        big, after = "no gain yet", "no candidate is faster so far; nothing is estimated"
    state = escape(f"Run {document['name']}, {words.ended(document, ': ')}")
    further = escape(words.goes_on(document))
    return (
        f"<p><strong>{state}</strong>{further and '<br>'}{further}</p>"
        f'<p><span style="font-size:1.8em;font-weight:600">{escape(big)}</span> {escape(after)}'
        f"<br>{escape(' · '.join(_lines(document, lead)))}</p>{_remarks(document)}"
    )


def _lines(document: Document, lead: facts.Headline) -> list[str]:
    """What stands below the figure: both comparisons, decisions, fidelity, money."""
    usd, calls = facts.spent(document)
    waiting = document["progress"]["prompts"]
    installed = sum(1 for d in document["decisions"] if d["installed"])
    lines = [
        *facts.comparisons(lead),
        f"{installed} of {len(document['decisions'])} targets replaced"
        if document["decisions"]
        else "",
        f"fidelity {claims.fidelity(document['fidelity'])}" if document["fidelity"] else "",
        f"{words.count(document['progress']['judged'], 'candidate')} judged",
        words.paid(usd, calls, facts.saved_ms(document)),
        f"{words.count(waiting, 'prompt')} to answer: see run.prompts" if waiting else "",
    ]
    return [line for line in lines if line]


def _remarks(document: Document) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in profiled.remarks(document))


def _targets(document: Document) -> str:
    tried = Counter(node["target"] for node in document["nodes"])
    nodes = {node["id"]: node for node in document["nodes"]}
    replaced = {d["target"] for d in document["decisions"] if d["installed"]}
    rows, open_ones = [], claims.unconfirmed(document)
    head, tail = facts.head_and_tail(document)
    for target in head:
        best: Mapping[str, Any] = nodes.get(target["best"] or "", {})
        rows.append(
            [
                f"{target['index']} {target['name']}",
                target["variant"],
                words.percent(target["share"]),
                str(target["calls"]),
                words.time(best.get("eager_us") or target["mean_us"]),
                words.time(best.get("ours_us")),
                words.marked(
                    claims.measured({**best, "ratio": best["speedup"]} if best else None), best
                )
                + (f", {claims.UNCONFIRMED}" if target["index"] in open_ones else ""),
                ("replaced, " if target["index"] in replaced else "")
                + words.state(target, tried[target["index"]]),
            ]
        )
    share = profiled.share_words(document)
    names = ["target", "variant", share, "calls", "eager", "best", "speed-up", "state"]
    table = _table("Targets", names, rows, numbers={2, 3, 4, 5, 6})
    part = words.percent(sum(t["share"] or 0.0 for t in tail))
    return table + (f"<p>… and {len(tail)} more, {part} of the time</p>" if tail else "")


def _decisions(document: Document) -> str:
    """Decisions about targets that had a kernel to try; the others are counted."""
    names = {t["index"]: t["name"] for t in document["targets"]}
    nodes = {node["id"]: node for node in document["nodes"]}
    ranked = ranked_decisions(document)
    shown = [d for d in ranked if has_evidence(d)]
    if len(ranked) - len(shown) < FEW:
        shown = ranked
    counted = any(d.get("counters") for d in shown)
    rows = [
        [
            f"{d['target']} {names.get(d['target'], d['fingerprint'][:12])}",
            _decided(d, nodes.get(d["node"] or "")),
            claims.measured(d["isolated"]),
            claims.measured(d["in_model"]),
            words.change(change_us(d)),
            *([claims.counted(d.get("counters")) or words.NONE] if counted else []),
        ]
        for d in shown
    ]
    head = ["target", "decision", "alone", "in the model", "a run"]
    table = _table("Guard", [*head, *(["at run time"] if counted else [])], rows, numbers={2, 3, 4})
    left = len(ranked) - len(shown)
    more = f"<p>{left} more kept original without a kernel to try.</p>" if left else ""
    ran = claims.at_run_time(document["counters"])
    return table + more + (f"<p>{escape(ran)}</p>" if ran else "")


def _decided(decision: Mapping[str, Any], node: Mapping[str, Any] | None) -> str:
    rests = claims.by_rest(decision)
    return words.marked(words.decision(decision), node) + (f" ({rests})" if rests else "")


def _whole(document: Document) -> str:
    rows = [
        [
            f"{entry.label}{' (recommended)' if entry.recommended else ''}",
            words.time(entry.us),
            _compared(entry.over_eager),
            _over_same(entry),
            _compared(entry.over_compile, entry.uncompared),
        ]
        for entry in whole_entries(document)
    ]
    over = ["over the untouched model", "over the same rest alone", "over torch.compile"]
    table = _table(
        f"The whole model, one run ({SCALED})", ["model", "time", *over], rows, numbers={1, 2, 3, 4}
    )
    advice = document["recommendation"]
    if not table or not advice:
        return table
    lead = "Recommended rest: " + advice["rest"]
    if advice["rest"] == "none":
        lead = "The guard recommends to leave the model alone"
    text = escape(f"{lead}, {advice['reason']}")
    return f"{table}<p>{text}</p>"


def _over_same(entry: Entry) -> str:
    """Against the same rest, and how much of that is left beside the layout alone."""
    laid = entry.over_layout
    beside = f"; laid out, no kernels: {_compared(laid)}" if laid else ""
    return _compared(entry.over_empty) + beside


def _compared(row: Mapping[str, Any] | None, why_not: str = "") -> str:
    if row is None:
        return f"not measured: {why_not}" if why_not else words.NONE
    return f"{claims.claim(row).figure} {claims.claim(row).spread}"


def _tree(document: Document) -> str:
    if len(document["nodes"]) > LARGEST_TREE:
        return ""
    drawn = to_svg(document)
    return f'<div style="overflow-x:auto">{drawn}</div>' if drawn else ""


def _notes(document: Document) -> str:
    notes = dict.fromkeys(document["workload"]["notes"])
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<p><strong>Notes</strong></p><ul>{items}</ul>"


def _table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int]
) -> str:
    body = [
        "<tr>" + "".join(_cell(text, i in numbers) for i, text in enumerate(row)) + "</tr>"
        for row in rows
    ]
    if not body:
        return ""
    if len(body) > ROWS:
        more = (
            f'<tr><td colspan="{len(head)}" style="{_TEXT}">… and {len(body) - ROWS} more</td></tr>'
        )
        body = [*body[:ROWS], more]
    heads = "".join(
        f'<th scope="col" style="{_NUMBER if i in numbers else _TEXT}">{escape(h)}</th>'
        for i, h in enumerate(head)
    )
    return (
        f'<table style="border-collapse:collapse;margin:0 0 12px">'
        f'<caption style="{_TEXT};font-weight:600">{escape(title)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _cell(text: str, number: bool) -> str:
    shown = escape(text)
    if text.startswith(REPLACED):
        shown = f"<strong>{REPLACED}</strong>{escape(text.removeprefix(REPLACED))}"
    return f'<td style="{_NUMBER if number else _TEXT}">{shown}</td>'
