"""The same pictures for papers and slides: matplotlib Axes from a run document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.view import facts, words
from kforge_nb.view.facts import Document
from kforge_nb.view.svg import shown_target
from kforge_nb.view.treelayout import arrange, path_to
from kforge_nb.view.verdicts import GOOD, LOOKS, MUTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_cost", "plot_targets", "plot_tree"]

ROWS = 15


def plot_cost(document: Document, ax: Axes | None = None) -> Axes:
    """Estimated whole-model gain against money, or against candidates where nothing was paid."""
    ax = _axes(ax)
    points = facts.progress(document)
    paid = any(p.usd > 0 for p in points)
    ax.step(
        [0.0, *(p.usd if paid else p.judged for p in points)],
        [1.0, *(p.gain for p in points)],
        where="post",
    )
    measured = [r for r in document["whole"] if (r["name"], r["against"]) == ("guarded", "empty")]
    for row, style in zip(measured, ("--", ":", "-.", (0, (1, 3))), strict=False):
        if row["ratio"] is not None:
            label = f"measured, rest {row['rest']}: {words.row_interval(row)}"
            ax.axhline(row["ratio"], color=GOOD, linestyle=style, label=label)
            ax.legend()
    ax.set_xlabel("US dollars spent" if paid else "candidates judged")
    ax.set_ylabel("whole-model gain, estimated")
    ax.set_title(f"{document['name']}: gain against cost")
    return ax


def plot_targets(document: Document, ax: Axes | None = None) -> Axes:
    """Share of the time of each target, and what is left of it with the best candidate."""
    ax = _axes(ax)
    ranked = facts.ranked_targets(document)[:ROWS]
    best = facts.best_speedups(document["nodes"])
    names = [f"{t['index']} {t['name']}" for t in ranked]
    shares = [(t["share"] or 0.0) * 100 for t in ranked]
    left = [s / best.get(t["index"], 1.0) for s, t in zip(shares, ranked, strict=True)]
    ax.barh(names, shares, color=MUTE, alpha=0.5, label="eager")
    ax.barh(names, left, color=GOOD, height=0.4, label="with the best candidate")
    ax.invert_yaxis()
    ax.set_xlabel("% of the workload's time")
    ax.set_title(f"{document['name']}: targets")
    ax.legend()
    return ax


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
    ax = _axes(ax)
    places, root = arrange(nodes)
    path = path_to(nodes, chosen["best"])
    at: dict[str | None, tuple[float, float]] = {None: (root, 0.0)}
    at.update({p.node["id"]: (p.x, -float(p.level)) for p in places})
    ax.plot(*at[None], marker="o", color=MUTE)
    ax.annotate("eager 1×", at[None], xytext=(7, -3), textcoords="offset points")
    for place in places:
        node, (x, y) = place.node, at[place.node["id"]]
        look, best = LOOKS[node["verdict"]], node["id"] in path
        (x0, y0) = at[place.parent]
        ax.plot([x0, x], [y0, y], color=GOOD if best else MUTE, lw=2.5 if best else 0.8, zorder=1)
        ax.plot(x, y, marker=look.marker, color=look.colour, zorder=2)
        text = look.word if node["speedup"] is None else words.ratio(node["speedup"])
        ax.annotate(text, (x, y), xytext=(7, -3), textcoords="offset points", fontsize=7)
    ax.set_title(f"{document['name']}: tree of {chosen['index']} {chosen['name']}")
    ax.set_axis_off()
    return ax


def _axes(ax: Axes | None) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingTool("Plots need matplotlib: pip install matplotlib") from None
    return pyplot.subplots(layout="constrained")[1]
