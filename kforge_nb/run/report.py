"""The guard's report as people read it: what was installed, what was not, and why."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

__all__ = ["GuardSummary"]


@dataclass(frozen=True, slots=True)
class GuardSummary:
    """Decisions and whole-model comparisons of a run document, with a text and an HTML form."""

    document: dict[str, Any]

    @property
    def installed(self) -> list[dict[str, Any]]:
        """The decisions that put a kernel into the model."""
        return [d for d in self.document["decisions"] if d["installed"]]

    def __repr__(self) -> str:
        rows = self._decision_rows()
        lines = [self._headline(), *("  " + "  ".join(row) for row in _aligned(rows))]
        whole = self._whole_rows()
        if whole:
            lines += ["the whole model:", *("  " + "  ".join(row) for row in _aligned(whole))]
        return "\n".join(lines + self._closing())

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{html.escape(self._headline())}</strong></p>"]
        parts.append(_table(self._decision_rows()))
        whole = self._whole_rows()
        if whole:
            parts += ["<p>the whole model:</p>", _table(whole)]
        parts += [f"<p>{html.escape(line)}</p>" for line in self._closing()]
        return "".join(parts)

    def _headline(self) -> str:
        total = len(self.document["decisions"])
        return f"{len(self.installed)} of {total} targets are replaced"

    def _decision_rows(self) -> list[list[str]]:
        names = {t["index"]: t["name"] for t in self.document["targets"]}
        head = ["target", "name", "decision", "alone", "in the model", "why"]
        return [head, *(_decision_row(d, names) for d in self.document["decisions"])]

    def _whole_rows(self) -> list[list[str]]:
        if not self.document["whole"]:
            return []
        rows = [["what", "rest", "against", "ratio", "ours", "theirs"]]
        for w in self.document["whole"]:
            times = [f"{w[k] / 1000:.2f} ms" if w[k] else "" for k in ("ours_us", "against_us")]
            rows.append([w["name"], w["rest"], w["against"], _ratio(w), *times])
        return rows

    def _closing(self) -> list[str]:
        lines = []
        fidelity, advice = self.document["fidelity"], self.document["recommendation"]
        if fidelity:
            lines.append(
                f"error against float64: {_number(fidelity['ratio'])} times eager's own. "
                f"{fidelity.get('note', '')}".strip()
            )
        if advice:
            lines.append(f"recommended: rest={advice['rest']!r}, {advice['reason']}")
        return lines


def _decision_row(decision: dict[str, Any], names: dict[int, str]) -> list[str]:
    return [
        str(decision["target"]),
        str(names.get(decision["target"], "")),
        "replaced" if decision["installed"] else "original",
        _ratio(decision["isolated"]),
        _ratio(decision["in_model"]),
        decision["reason"],
    ]


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def _ratio(figure: dict[str, Any] | None) -> str:
    if not figure or figure["ratio"] is None:
        return ""
    if figure["low"] is None or figure["high"] is None:
        return f"{figure['ratio']:.2f}×"
    return f"{figure['ratio']:.2f}× ({figure['low']:.2f} to {figure['high']:.2f})"


def _aligned(rows: list[list[str]]) -> list[list[str]]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows]


def _table(rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows[1:]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
