"""A profile as a bar chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge_nb.errors import MissingTool

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kforge_nb.profile.table import Profile

__all__ = ["plot_profile"]

_ROOF, _ABOVE, _VENDOR = "#2f6f9f", "#e0a03a", "#9aa5b1"


def plot_profile(profile: Profile, ax: Axes | None = None, limit: int = 15) -> Axes:
    """Horizontal bars of share (percent), largest on top; returns the axes.

    A target's bar is split into the time at its roofline and the time above it; vendor operators
    are grey and hatched. Raises MissingTool where matplotlib is not installed.
    """
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise MissingTool("plots need matplotlib; pip install matplotlib") from error
        _, ax = pyplot.subplots(figsize=(8, 0.6 + 0.32 * max(3, min(limit, len(profile.rows)))))
    rows = [r for r in profile.rows if r.share is not None][:limit]
    places = range(len(rows))
    shares = [100 * (r.share or 0.0) for r in rows]
    needed = [s / (r.headroom or 1.0) for s, r in zip(shares, rows, strict=True)]
    above = [s - n for s, n in zip(shares, needed, strict=True)]
    colours = [_VENDOR if r.vendor else _ROOF for r in rows]
    hatches = ["////" if r.vendor else "" for r in rows]
    ax.barh(places, needed, color=colours, hatch=hatches, label="at the roofline")
    ax.barh(places, above, left=needed, color=_ABOVE, label="above it")
    ax.set_yticks(places, [f"{r.index} {r.name} (×{r.calls})" for r in rows])
    ax.invert_yaxis()
    ax.set_xlabel("share of the workload's time, %")
    if rows:
        ax.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
