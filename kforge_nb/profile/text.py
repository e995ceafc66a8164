"""A profile as plain text: what a terminal, a log or a notebook without HTML shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge_nb.profile.table import Profile, Row

__all__ = ["HEADINGS", "cells", "headings", "profile_text", "rest_cells", "summary", "time_text"]

HEADINGS = ("#", "target", "family", "calls", "each", "share", "headroom", "ceiling", "variant")
LIMIT = 30


ROUGH = ("share", "headroom", "ceiling")
"""Columns that a profile beside other work has only roughly."""


def headings(profile: Profile) -> tuple[str, ...]:
    """The headings, with a word at those columns that are not to be taken as sure."""
    return tuple(f"{h} (rough)" if profile.rough and h in ROUGH else h for h in HEADINGS)


def time_text(us: float | None) -> str:
    """Microseconds as µs, ms or s with three digits."""
    if us is None:
        return "–"
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def summary(profile: Profile) -> str:
    """One sentence: how long, on what, and whether launches are the problem."""
    names = ", ".join(m["name"] for m in profile.to_document()["workload"]["modules"])
    text = (
        f"{names}: {time_text(profile.wall_us)} a run on {profile.device.get('name', 'unknown')}, "
        f"{time_text(profile.device_us)} of it computing"
    )
    return text + ("; launch-bound" if profile.launch_bound else "")


def cells(row: Row) -> tuple[str, ...]:
    """The texts of one line, in the order of ``HEADINGS``."""
    share = f"{row.share:.1%}" if row.share is not None else "–"
    headroom = f"{row.headroom:.1f}×" if row.headroom is not None else "–"
    ceiling = f"{row.ceiling:.3f}×" if row.ceiling is not None else "–"
    return (
        str(row.index), row.name, row.family, str(row.calls), time_text(row.mean_us), share,
        headroom, ceiling, row.variant,
    )  # fmt: skip


def rest_cells(profile: Profile) -> tuple[str, ...]:
    """The line of what no row has, in the order of ``HEADINGS``."""
    left = profile.everything_else
    part = left.share if left is not None else 0.0
    texts = {1: "everything else", 4: time_text(part * profile.wall_us), 5: f"{part:.1%}"}
    return tuple(texts.get(column, "") for column in range(len(HEADINGS)))


def profile_text(profile: Profile, limit: int = LIMIT) -> str:
    """The summary, the ``limit`` largest targets as a table, and the notes."""
    lines = [summary(profile), ""]
    shown = profile.rows[:limit]
    rest = [rest_cells(profile)] if profile.everything_else is not None else []
    lines += _table([headings(profile), *(cells(row) for row in shown), *rest])
    if len(profile.rows) > limit:
        lines.append(f"… and {len(profile.rows) - limit} more in .table")
    if not profile.rows:
        lines.append("no targets: nothing in this workload can be replaced at this granularity")
    lines += [f"note: {text}" for text in profile.notes]
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    wide = [[_short(cell, 44) for cell in row] for row in rows]
    widths = [max(len(row[c]) for row in wide) for c in range(len(HEADINGS))]
    left = {1, 2, 8}
    return [
        "  ".join(
            cell.ljust(widths[c]) if c in left else cell.rjust(widths[c])
            for c, cell in enumerate(row)
        ).rstrip()
        for row in wide
    ]


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
