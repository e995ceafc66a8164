"""What the figures share: axes to draw on, a scale for ratios, and how they stay plain.

The figures are made for print: labelled axes with units, intervals, shapes and hatches beside
colours, nothing transparent (EPS knows no transparency) and nothing drawn as pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import MissingTool

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["axes", "label_rows", "plain", "ratio_scale", "short", "ticks"]

NAME_WIDTH = 34
_ROUND = (
    1, 0.001, 0.01, 0.1, 10, 100, 1000, 10_000, 2, 5, 0.5, 0.2, 20, 50, 200, 500, 3, 1.5, 0.7, 0.8,
    1.2, 0.9, 1.1, 0.95, 1.05,
)  # fmt: skip
_APART = 0.08


def axes(ax: Axes | None, rows: int | None = None) -> Any:
    """The given axes, or new ones; ``rows`` makes them as tall as so many lines need.

    Raises MissingTool where matplotlib is not installed.
    """
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingTool("Plots need matplotlib: pip install matplotlib") from None
    size = None if rows is None else (7.2, 1.3 + 0.42 * max(2, rows))
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def plain(ax: Axes) -> None:
    """No frame at the top and on the right."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def label_rows(ax: Axes, labels: list[str]) -> None:
    """One row a label, the first one on top."""
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)


def ratio_scale(ax: Axes, values: Iterable[float | None], label: str) -> None:
    """A logarithmic x axis of ratios with a line at 1: half and twice as fast lie equally far."""
    found = [value for value in values if value is not None and value > 0]
    low, high = min([*found, 0.95]), max([*found, 1.05])
    margin = (high / low) ** 0.06
    ax.set_xscale("log")
    ax.set_xlim(low / margin, high * margin)
    at = ticks(low / margin, high * margin)
    ax.minorticks_off()
    ax.set_xticks(at, [f"{value:g}×" for value in at])
    ax.axvline(1.0, color="black", linewidth=1.0, zorder=0)
    ax.set_xlabel(label)


def ticks(low: float, high: float) -> list[float]:
    """Round ratios between two others, the rounder ones first, none too near to another."""
    width = math.log(high / low)
    found: list[float] = []
    for value in _ROUND:
        near = any(abs(math.log(value / other)) < _APART * width for other in found)
        if low < value < high and not near:
            found.append(value)
    return sorted(found)


def short(name: str) -> str:
    """A target's name, cut to what a row has room for."""
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"
