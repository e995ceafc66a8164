"""The same pictures for papers and slides: matplotlib Axes from a run document."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput
from kforge_nb.view import claims, facts, words, worth
from kforge_nb.view.facts import Document
from kforge_nb.view.plot_axes import axes, label_rows, plain, short
from kforge_nb.view.svg import shown_target
from kforge_nb.view.treelayout import Place, arrange, path_to, won_by
from kforge_nb.view.verdicts import BAD, GOOD, LOOKS, MUTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_cost", "plot_targets", "plot_tree"]

ROWS = 15
OUTER = "#dfe3e7"
UNITS = {
    "usd": "US dollars spent",
    "calls": "calls of a language model",
    "seconds": "seconds of search",
    "judged": "candidates judged",
}


def plot_cost(
    document: Document, ax: Axes | None = None, *, by: str | None = None, target: int | None = None
) -> Axes:
    """Gain against cost, with what equal budgets would have spent and what the guard measured.

    ``by`` is ``usd``, ``calls``, ``seconds`` or ``judged``; None takes money where any was paid,
    else judged candidates. The gain is the one expected of the whole model, or the speed-up of one
    ``target`` alone. Raises BadInput for another unit or a target that the run does not have.
    """
    spots = worth.curve(document, target)
    unit = by or ("usd" if spots[-1].usd > 0 else "judged")
    if unit not in UNITS:
        raise BadInput(f"cost can be drawn by {', '.join(UNITS)}, not by {unit!r}")
    name = document["name"] if target is None else _named(document, target)
    ax = axes(ax)
    at = [getattr(spot, unit) for spot in spots]
    ax.step(at, [spot.gain for spot in spots], where="post", color=GOOD, lw=2, label="best so far")
    ax.plot(at[-1], spots[-1].gain, marker="o", color=GOOD, mfc="white", linestyle="none")
    why = _end(document, target)
    if why:
        ax.annotate(
            _wrapped(why), (at[-1], spots[-1].gain), xytext=(-6, -8), textcoords="offset points",
            ha="right", va="top", fontsize=7.5,
        )  # fmt: skip
    if target is None:
        _ended_targets(ax, document, [(at_, s.gain) for at_, s in zip(at, spots, strict=True)])
        _equal_budgets(ax, document, unit)
        _measured(ax, document)
    ax.set_xlabel(UNITS[unit])
    ax.set_ylabel("whole-model gain, expected (×)" if target is None else "speed-up over eager (×)")
    ax.set_title(f"{name}: gain against cost")
    ax.legend(frameon=False, fontsize=8)
    plain(ax)
    return ax


def _named(document: Document, target: int) -> str:
    for row in document["targets"]:
        if row["index"] == target:
            return f"{document['name']}, {target} {row['name']}"
    raise BadInput(f"run {document['name']} has no target {target}")


def _end(document: Document, target: int | None) -> str:
    """Why the search ended there, where it has."""
    if target is not None:
        row = next(t for t in document["targets"] if t["index"] == target)
        return str(row["state_reason"])
    return "" if facts.running(document) else str(document["state_reason"])


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 34)[:3])


def _ended_targets(ax: Any, document: Document, spots: list[tuple[float, float]]) -> None:
    """Where a rule, or the user, ended the search of a target; the end of the run is no such."""
    ended = [t["stopped"] for t in document["targets"] if t.get("stopped")]
    found = [spots[min(e["judged"], len(spots) - 1)] for e in ended if e["by"] != "run"]
    if found:
        xs, ys = zip(*found, strict=True)
        ax.plot(
            xs, ys, marker="v", ms=6, color="black", mfc="white", linestyle="none",
            label="a target ended",
        )  # fmt: skip


def _equal_budgets(ax: Any, document: Document, unit: str) -> None:
    """What the same number of candidates for every target would have spent, dashed."""
    equal = worth.uniform(document)
    if equal is not None:
        at, gains = zip(*((getattr(s, unit), s.gain) for s in equal.spots), strict=True)
        label = "equal budgets, estimated"
        ax.step(at, gains, where="post", color=MUTE, lw=1.5, linestyle="--", label=label)


def _measured(ax: Any, document: Document) -> None:
    """What the guard measured, each rest a line of its own, named with its interval."""
    rows = [r for r in document["whole"] if (r["name"], r["against"]) == ("guarded", "empty")]
    for row, style in zip(rows, (":", "-.", (0, (1, 3)), (0, (5, 1, 1, 1))), strict=False):
        if row["ratio"] is not None:
            label = f"measured, rest {row['rest']}: {claims.measured(row)}"
            ax.axhline(row["ratio"], color="black", linestyle=style, lw=1, label=label)


def plot_targets(document: Document, ax: Axes | None = None, *, limit: int = ROWS) -> Axes:
    """Share of the time of each target, what is left of it, and what its roofline needs.

    Bars are percent of the workload's time: the outer one eager (hatched for vendor operators), the
    inner one with the best candidate (its 95% interval as a whisker), the line the roofline.
    Largest shares first.
    """
    ranked = facts.ranked_targets(document)[:limit]
    ax = axes(ax, len(ranked))
    nodes = {node["id"]: node for node in document["nodes"]}
    shares = [(t["share"] or 0.0) * 100 for t in ranked]
    best = [nodes.get(t["best"] or "") for t in ranked]
    left = [
        share / node["speedup"] if node and node["speedup"] else 0.0
        for share, node in zip(shares, best, strict=True)
    ]
    rows = range(len(ranked))
    hatches = ["////" if t["vendor"] else "" for t in ranked]
    ax.barh(rows, shares, height=0.7, color=OUTER, edgecolor=MUTE, hatch=hatches, label="eager")
    ax.barh(rows, left, height=0.34, color=GOOD, label="best kernel")
    for row, (share, node) in enumerate(zip(shares, best, strict=True)):
        if node is not None and node["low"] and node["high"]:
            ax.plot([share / node["high"], share / node["low"]], [row, row], color="black", lw=1.2)
    roofs = [
        s / t["headroom"] if t["headroom"] else None for s, t in zip(shares, ranked, strict=True)
    ]
    at = [(roof, row) for row, roof in enumerate(roofs) if roof is not None]
    if at:
        xs, ys = zip(*at, strict=True)
        ax.plot(
            xs, ys, marker="|", ms=13, mew=1.5, color="black", linestyle="none", label="roofline"
        )
    names = [words.marked(_row_name(t), node) for t, node in zip(ranked, best, strict=True)]
    label_rows(ax, names)
    ax.set_xlim(left=0)
    ax.set_xlabel("share of the workload's time (%)")
    ax.set_title(f"{document['name']}: targets")
    if ranked:
        ax.legend(frameon=False, loc="lower right")
    plain(ax)
    return ax


def _row_name(target: Mapping[str, Any]) -> str:
    return short(f"{target['index']} {target['name']}") + (" (vendor)" if target["vendor"] else "")


def _draw_item(ax: Axes, place: Place, way: bool, won: bool) -> None:
    """An item of the tree, and the line to it: down the parent's column, then along its own row."""
    x, y = place.level, -place.row
    if place.parent is not None:
        x0, y0 = place.parent.level, -place.parent.row
        colour, width = GOOD if won else MUTE, 2.5 if way else 0.8
        ax.plot([x0, x0, x], [y0, y, y], color=colour, lw=width, zorder=1)
    node = place.node
    if node is None:
        failed = len(place.folded)
        text, colour, marker = (f"{failed} failed", BAD, "P") if failed else ("eager 1×", MUTE, "o")
    else:
        look = LOOKS[node["verdict"]]
        text = look.word if node["speedup"] is None else words.ratio(node["speedup"])
        colour, marker = look.colour, look.marker
        if words.has_host_code(node):
            text = f"{words.LETTER} {text}"
            ax.plot(x, y, marker="s", ms=11, mfc="none", mec=colour, zorder=1)
    ax.plot(x, y, marker=marker, color=colour, zorder=2)
    ax.annotate(text, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=7)


def plot_tree(document: Document, target: int | None = None, ax: Axes | None = None) -> Axes:
    """Search tree of one target, by index; None takes the largest one that was searched.

    Raises BadInput where that target does not exist or has no candidates.
    """
    chosen = shown_target(document, target)
    nodes = [n for n in document["nodes"] if chosen is not None and n["target"] == chosen["index"]]
    if chosen is None or not nodes:
        if target is None:
            raise BadInput(f"run {document['name']} has judged no candidate, so there is no tree")
        raise BadInput(f"Target {target} has no candidates to draw; run optimize first")
    ax = axes(ax)
    path = path_to(nodes, chosen["best"])
    won = won_by(nodes, chosen["best"])
    for place in arrange(nodes, path):
        _draw_item(ax, place, place.key in path, place.key in won)
    seen = {LOOKS[node["verdict"]] for node in nodes}
    for look in sorted(seen, key=lambda found: found.word):
        ax.plot([], [], marker=look.marker, color=look.colour, linestyle="none", label=look.word)
    if any(words.has_host_code(node) for node in nodes):
        label = f"{words.LETTER}: torch extension ({words.HOST_CODE})"
        ax.plot([], [], marker="s", mfc="none", mec=MUTE, linestyle="none", label=label)
    ax.legend(frameon=False, fontsize=7, loc="best")
    ax.set_title(f"{document['name']}: tree of {chosen['index']} {chosen['name']}")
    ax.set_axis_off()
    return ax
