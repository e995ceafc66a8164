"""A search tree, and gain against money, as still SVG: no script, no style sheet."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kforge_nb.view import facts, words
from kforge_nb.view.facts import Document
from kforge_nb.view.treelayout import Place, arrange, path_to, won_by
from kforge_nb.view.verdicts import BAD, GOOD, LOOKS, MUTE

__all__ = ["cost_svg", "shown_target", "to_svg"]

COLUMN, ROW, MARGIN = 112, 30, 20
CORNER, LABEL = 9, 110
LEFT, LOW, WIDE, TALL = 44, 110, 380, 96
SHAPES = {
    "o": '<circle r="7" fill="{c}"/>',
    "s": '<rect x="-5" y="-5" width="10" height="10" fill="{c}"/>',
    "D": '<circle r="6" fill="none" stroke="{c}" stroke-width="2"/>',
    "x": '<path d="M-5-5L5 5M-5 5L5-5" stroke="{c}" stroke-width="2"/>',
    "+": '<path d="M-6-6H6V6H-6ZM-3 0H3M0-3V3" fill="none" stroke="{c}" stroke-width="2"/>',
    "^": '<path d="M0-6L6 5L-6 5Z" fill="none" stroke="{c}" stroke-width="2"/>',
}

FRAME = (
    '<rect x="-9" y="-9" width="18" height="18" fill="none" stroke="{c}" stroke-dasharray="2 1.5"/>'
)


def shown_target(document: Document, index: int | None = None) -> Mapping[str, Any] | None:
    """The target to draw: the one asked for, else the largest won, with a best one, or tried."""
    if index is not None:
        return next((t for t in document["targets"] if t["index"] == index), None)
    tried = {node["target"] for node in document["nodes"]}
    accepted = {node["id"] for node in document["nodes"] if node["verdict"] == "accepted"}
    ranked = sorted(document["targets"], key=lambda t: -(t["share"] or 0.0))
    ways = (
        [t for t in ranked if t["best"] in accepted],
        [t for t in ranked if t["best"] is not None],
        [t for t in ranked if t["index"] in tried],
    )
    return next((found[0] for found in ways if found), None)


def to_svg(document: Document, target: int | None = None) -> str:
    """The tree of a target (by index; None picks the one most worth seeing); empty if untried."""
    chosen = shown_target(document, target)
    nodes = [n for n in document["nodes"] if chosen is not None and n["target"] == chosen["index"]]
    if chosen is None or not nodes:
        return ""
    path = path_to(nodes, chosen["best"])
    places = arrange(nodes, path)
    at = {p.key: _point(p) for p in places}
    width = max(x for x, _ in at.values()) + LABEL
    height = max(y for _, y in at.values()) + 20
    won = won_by(nodes, chosen["best"])
    edges = [_edge(p, at, p.key in path, p.key in won) for p in places]
    marks = [_mark(p, at[p.key], p.key == chosen["best"]) for p in places]
    label = escape(f"Search tree of {chosen['name']}: {len(nodes)} candidates", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="11">'
        f"{''.join(edges)}{''.join(marks)}</svg>"
    )


def cost_svg(document: Document) -> str:
    """Gain against money as a line; empty where nothing was paid or judged."""
    points = facts.progress(document)
    if not points or not points[-1].usd:
        return ""
    end, top = points[-1].usd, max(1.01, *(p.gain for p in points))
    steps = "".join(
        f"H{LEFT + p.usd / end * WIDE:.1f}V{LOW - (p.gain - 1) / (top - 1) * TALL:.1f}"
        for p in points
    )
    said = escape(f"Estimated gain {words.ratio(points[-1].gain)} after {words.money(end)}")
    label = f'fill="{MUTE}" font-family="sans-serif" font-size="11"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{said}" '
        f'width="{LEFT + WIDE + 10}" height="{LOW + 22}">'
        f'<path d="M{LEFT} {LOW - TALL}V{LOW}H{LEFT + WIDE}" fill="none" stroke="{MUTE}"/>'
        f'<path d="M{LEFT} {LOW}{steps}" fill="none" stroke="{GOOD}" stroke-width="2"/>'
        f'<text x="4" y="{LOW}" {label}>1×</text>'
        f'<text x="4" y="{LOW - TALL + 4}" {label}>{words.ratio(top)}</text>'
        f'<text x="{LEFT}" y="{LOW + 16}" {label}>$0</text>'
        f'<text x="{LEFT + WIDE}" y="{LOW + 16}" text-anchor="end" {label}>'
        f"{words.money(end)} spent</text></svg>"
    )


def _point(place: Place) -> tuple[float, float]:
    return MARGIN + place.level * COLUMN, 24 + place.row * ROW


def _edge(place: Place, at: Mapping[str, tuple[float, float]], way: bool, won: bool) -> str:
    """Down the parent's column, round the corner, along the child's row."""
    if place.parent is None:
        return ""
    (x0, y0), (x1, y1) = at[place.parent.key], at[place.key]
    colour, width = GOOD if won else MUTE, 3 if way else 1
    turn = "" if y0 == y1 else f"V{y1 - CORNER:.0f}q0 {CORNER} {CORNER} {CORNER}"
    return (
        f'<path d="M{x0:.0f} {y0:.0f}{turn}H{x1:.0f}" fill="none" stroke="{colour}" '
        f'stroke-width="{width}"/>'
    )


def _mark(place: Place, point: tuple[float, float], best: bool) -> str:
    where = f'<g transform="translate({point[0]:.0f} {point[1]:.0f})">'
    node = place.node
    if node is None:
        failed = len(place.folded)
        text, colour = (f"{failed} failed", BAD) if failed else ("eager 1×", MUTE)
        shape = SHAPES["+" if failed else "D"].format(c=colour)
        return f'{where}{shape}<text x="10" y="-5" fill="{colour}">{text}</text></g>'
    look = LOOKS[node["verdict"]]
    text = look.word if node["speedup"] is None else words.ratio(node["speedup"])
    frame = ""
    if words.has_host_code(node):
        text, frame = f"{words.LETTER} {text}", FRAME.format(c=look.colour)
    weight = ' font-weight="700"' if best else ""
    title = escape(f"{words.marked(node['title'], node)}: {look.word}. {node['reason']}")
    return (
        f"{where}<title>{title}</title>"
        f"{frame}{SHAPES[look.marker].format(c=look.colour)}"
        f'<text x="10" y="-5" fill="{look.colour}"{weight}>{escape(text)}</text></g>'
    )
