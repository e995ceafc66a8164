"""What the GPU table has to reach, row by row: the bars that were set before it was tuned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import measure_row

__all__ = ["BARS", "Bar", "bar_rows", "bar_text", "missed"]


@dataclass(frozen=True, slots=True)
class Bar:
    """``field`` of the row ``name`` against ``against`` must be at least ``least``."""

    name: str
    against: str
    field: str
    least: float


_GROUPS = ("512x128x128", "512x256x256", "256x512x512", "128x1024x1024")
BARS: tuple[Bar, ...] = (
    *(
        Bar(f"group norm silu {shape}", "eager", "ratio", least)
        for shape, least in zip(_GROUPS, (8.4, 10.0, 13.5, 17.0), strict=True)
    ),
    *(
        Bar(f"group norm silu {shape}", "compile", "ratio", least)
        for shape, least in zip(_GROUPS, (1.3, 1.7, 5.5, 6.9), strict=True)
    ),
    Bar("softmax 65536x4096", "eager", "ratio", 3.0),
    Bar("softmax 65536x4096", "eager", "copy_share", 0.95),
    Bar("rms norm composed 8192x4096", "eager", "ratio", 12.0),
    Bar("rms norm composed 8192x4096", "eager", "copy_share", 0.85),
)
SHARE_OVER_EAGER, MEAN_OVER_COMPILE = 0.9, 1.15


def bar_rows(
    rows: Sequence[Mapping[str, Any]],
    asked: Collection[str],
    sides: Collection[str] = ("eager", "compile"),
) -> list[dict[str, Any]]:
    """One measuring row a bar: what was found, what is wanted, whether it is reached.

    Args:
        rows: the comparisons of the fixed list, and its totals.
        asked: the cases of the list that were asked for. One that failed, or was not come to,
            misses its bars (its figure is 0) and counts as slower than eager.
        sides: what was to be compared with; a side that gave no row at all misses its bars too.
    """
    found = {(r["name"], r.get("against")): r for r in rows}
    result = []
    for bar in BARS:
        if bar.name in asked and bar.against in sides:
            value = found.get((bar.name, bar.against), {}).get(bar.field) or 0.0
            what = f"over {bar.against}" if bar.field == "ratio" else "of copy bandwidth"
            unit = "x" if bar.field == "ratio" else ""
            result.append(_row(f"bar: {bar.name}, {what}", value, bar.least, unit))
    if not asked:
        return result
    over = [r for r in rows if r.get("against") == "eager"]
    share = sum(r["ratio"] >= 1.0 for r in over) / len(asked)
    slower = [r["name"] for r in over if r["ratio"] < 1.0]
    slower += [f"{name} (no figure)" for name in asked if (name, "eager") not in found]
    row = _row("bar: share of the list not slower than eager", share, SHARE_OVER_EAGER, "")
    result.append({**row, "slower": slower})
    if "compile" in sides:
        mean = found.get(("geometric mean over compile", None), {}).get("value", 0.0)
        name = "bar: geometric mean over max-autotune"
        result.append(_row(name, mean, MEAN_OVER_COMPILE, "x"))
    return result


def _row(name: str, value: float, least: float, unit: str) -> dict[str, Any]:
    return measure_row(name, value, unit, wanted=least, met=value >= least)


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the bars that are not reached."""
    return [row["name"] for row in rows if not row.get("met", True)]


def bar_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The bars as a table: each reached or missed, its figure and what is wanted."""
    lines = []
    for row in rows:
        if "wanted" in row:
            mark = "reached" if row["met"] else "MISSED "
            lines.append(f"  {mark} {row['name']:<70} {row['value']:.3f} of {row['wanted']:g}")
            lines += [f"            slower: {name}" for name in row.get("slower", [])]
    if not lines:
        return "  no bar was asked for"
    few = missed(rows)
    lines.append(f"  {len(few)} bars missed" if few else "  all bars asked for are reached")
    return "\n".join(lines)
