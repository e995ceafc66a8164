"""From judged pairs to error rates with their intervals, and the bars that they must meet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import measure_row

__all__ = ["BARS", "Bar", "missed", "rate_rows", "wilson"]

_Z = 1.96
_LEAST = 20  # pairs of a kind below which a bar says nothing
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """A share of the pairs of one kind that may be reached at most (or at least)."""

    row: str
    most: float | None = None
    least: float | None = None

    @property
    def words(self) -> str:
        """The bar in words."""
        bound = (
            f"at most {self.most:.0%}" if self.most is not None else f"at least {self.least:.0%}"
        )
        return f"{self.row}: {bound}"

    def fails(self, value: float) -> bool:
        """Whether a share misses the bar."""
        return (self.most is not None and value > self.most) or (
            self.least is not None and value < self.least
        )


BARS = (
    Bar("same: decided", most=0.05),
    Bar("slower: called faster", most=0.01),
    Bar("faster: accepted", least=0.80),
    Bar("faster: undecided", most=0.15),
    Bar("all: taken for a cheat or a wrong kernel", most=0.0),
)
_TIMED = ("accepted", "slower", "undecided")
_COUNTED: dict[str, tuple[str, Callable[[str], bool]]] = {
    "same: decided": ("same", lambda verdict: verdict in ("accepted", "slower")),
    "slower: called faster": ("slower", lambda verdict: verdict == "accepted"),
    "slower: called slower": ("slower", lambda verdict: verdict == "slower"),
    "faster: accepted": ("faster", lambda verdict: verdict == "accepted"),
    "faster: undecided": ("faster", lambda verdict: verdict == "undecided"),
    "faster: called slower": ("faster", lambda verdict: verdict == "slower"),
}


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95% interval of a share."""
    if n == 0:
        return 0.0, 1.0
    share, square = hits / n, _Z * _Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    spread = _Z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, middle - spread), min(1.0, middle + spread)


def rate_rows(pairs: Sequence[Record]) -> list[Record]:
    """Rates by kind, seconds a pair, and the ratio that the twins really have."""
    rows: list[Record] = []
    for name, (kind, counts) in _COUNTED.items():
        of_kind = [row for row in pairs if row["kind"] == kind]
        if not of_kind:
            continue
        hits = sum(counts(row["verdict"]) for row in of_kind)
        low, high = wilson(hits, len(of_kind))
        value = hits / len(of_kind)
        rows.append(measure_row(name, value, "share", low=low, high=high, n=len(of_kind)))
    if pairs:
        blamed = sum(row["verdict"] not in _TIMED for row in pairs)
        low, high = wilson(blamed, len(pairs))
        name, value = "all: taken for a cheat or a wrong kernel", blamed / len(pairs)
        rows.append(measure_row(name, value, "share", low=low, high=high, n=len(pairs)))
    for kind in dict.fromkeys(row["kind"] for row in pairs):
        of_kind = [row for row in pairs if row["kind"] == kind]
        for field, unit in (("ratio", "times"), ("seconds", "s"), ("foreign", "share")):
            values = sorted(row[field] for row in of_kind if row[field] is not None)
            if values:
                low, high = values[len(values) // 20], values[-1 - len(values) // 20]
                middle = statistics.median(values)
                name = f"{kind}: {field}, median with 5th and 95th percentile"
                rows.append(measure_row(name, middle, unit, low=low, high=high, n=len(values)))
    return rows


def missed(rows: Sequence[Record]) -> list[str]:
    """The bars that are missed by rows with enough pairs, in words."""
    found = {row["name"]: row for row in rows}
    return [
        f"{bar.words}, and it is {found[bar.row]['value']:.1%} of {found[bar.row]['n']}"
        for bar in BARS
        if bar.row in found and found[bar.row]["n"] >= _LEAST and bar.fails(found[bar.row]["value"])
    ]
