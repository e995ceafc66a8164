"""What the guard decided, and how the whole model fares, as figures for papers and slides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput
from kforge_nb.view import claims, words
from kforge_nb.view.entries import Entry, has_evidence, ranked_decisions, whole_entries
from kforge_nb.view.facts import Document
from kforge_nb.view.plot_axes import axes, label_rows, plain, ratio_scale, short
from kforge_nb.view.verdicts import GOOD, MUTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_guard", "plot_whole"]

ALONE = "#5b6670"
LANES = (("isolated", "alone, over eager", "s", ALONE), ("in_model", "in the model", "o", GOOD))


def plot_guard(document: Document, ax: Axes | None = None, *, limit: int = 15) -> Axes:
    """One row a target with a kernel: alone and in the model, 95% intervals, a line at 1.

    Raises BadInput where the guard has decided nothing, or had no kernel to try.
    """
    shown = [d for d in ranked_decisions(document) if has_evidence(d)][:limit]
    if not shown:
        why = "has tried no kernel" if document["decisions"] else "has decided nothing yet"
        raise BadInput(f"the guard of run {document['name']} {why}, so there is nothing to draw")
    names = {t["index"]: t["name"] for t in document["targets"]}
    nodes = {n["id"]: n for n in document["nodes"]}
    ax = axes(ax, len(shown))
    for lane, (key, label, marker, colour) in enumerate(LANES):
        for row, decision in enumerate(shown):
            _interval(ax, decision[key], row + (lane - 0.5) * 0.28, marker, colour)
        ax.plot([], [], marker=marker, color=colour, mfc=_inside(marker, colour), label=label)
    figures = [f for d in shown for key, *_ in LANES if (f := d[key]) is not None]
    ends = [figure[end] for figure in figures for end in ("ratio", "low", "high")]
    label_rows(ax, [_label(d, names, nodes.get(d["node"] or "")) for d in shown])
    ratio_scale(ax, ends, "times faster (log scale); bars are 95% intervals")
    installed = sum(1 for d in document["decisions"] if d["installed"])
    ax.set_title(f"{document['name']}: {installed} of {len(document['decisions'])} replaced")
    ax.legend(frameon=False, loc="best")
    plain(ax)
    return ax


def plot_whole(document: Document, ax: Axes | None = None) -> Axes:
    """One bar a way to run the whole model, with what each shows against both baselines.

    Bars are milliseconds of one run: the untouched model's, divided by the paired ratio; whiskers
    are what the ends of its 95% interval make of it. Raises BadInput where the whole model was not
    measured.
    """
    entries = whole_entries(document)
    if not entries:
        raise BadInput(
            f"run {document['name']} has not measured the whole model; the guard does at the end"
        )
    ax = axes(ax, len(entries))
    for row, entry in enumerate(entries):
        _bar(ax, row, entry)
    label_rows(ax, [e.label + ("\n(recommended)" if e.recommended else "") for e in entries])
    longest = max((entry.high or entry.us or 0.0) for entry in entries) / 1000
    ax.set_xlim(0, max(longest, 1e-9) * 2.1)
    ax.set_xlabel("one run (ms): untouched over paired ratio; whiskers are 95% intervals")
    ax.set_title(f"{document['name']}: the whole model")
    plain(ax)
    return ax


def _label(
    decision: Mapping[str, Any], names: Mapping[int, str], node: Mapping[str, Any] | None
) -> str:
    name = short(f"{decision['target']} {names.get(decision['target'], '')}")
    return f"{words.marked(name, node)}\n{'replaced' if decision['installed'] else 'kept original'}"


def _interval(ax: Any, found: Mapping[str, Any] | None, y: float, marker: str, colour: str) -> None:
    """Middle and interval of one comparison; only the middle where no interval is known."""
    if found is None or found["ratio"] is None:
        return
    ratio, low, high = found["ratio"], found["low"], found["high"]
    reach = None if low is None or high is None else [[max(0, ratio - low)], [max(0, high - ratio)]]
    ax.errorbar(
        [ratio], [y], xerr=reach, fmt=marker, ms=5, color=colour,
        mfc=_inside(marker, colour), capsize=2.5, lw=1.4,
    )  # fmt: skip


def _inside(marker: str, colour: str) -> str:
    """Squares are open and discs full, so that no colour is needed to tell them apart."""
    return "white" if marker == "s" else colour


def _bar(ax: Any, row: int, entry: Entry) -> None:
    if entry.us is None:
        return
    colour, hatch = (GOOD, "") if entry.kernels else ("white", "///")
    reach = None
    if entry.low is not None and entry.high is not None:
        ends = (max(0.0, entry.us - entry.low), max(0.0, entry.high - entry.us))
        reach = [[ends[0] / 1000], [ends[1] / 1000]]
    ax.barh(
        row, entry.us / 1000, height=0.62, color=colour, edgecolor=GOOD if entry.kernels else MUTE,
        hatch=hatch, xerr=reach, error_kw={"capsize": 3, "lw": 1.2},
    )  # fmt: skip
    text = [words.time(entry.us)]
    if entry.over_eager is not None:
        text.append(claims.versus(entry.over_eager, "eager"))
    if entry.over_empty is not None:
        text.append(claims.versus(entry.over_empty, "the same rest"))
    end = (entry.high or entry.us) / 1000
    ax.annotate(
        "\n".join(text), (end, row), xytext=(5, 0), textcoords="offset points", va="center",
        fontsize=7.5,
    )  # fmt: skip
