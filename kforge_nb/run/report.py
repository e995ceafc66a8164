"""The guard's report as people read it: what was installed, what was not, and why."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kforge_nb.store.frames import rests_told
from kforge_nb.view import claims, words
from kforge_nb.view.entries import SCALED, ranked_decisions, whole_entries

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
            lines += [
                f"the whole model ({SCALED}):",
                *("  " + "  ".join(row) for row in _aligned(whole)),
            ]
        return "\n".join(lines + self._closing())

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{html.escape(self._headline())}</strong></p>"]
        parts.append(_table(self._decision_rows()))
        whole = self._whole_rows()
        if whole:
            parts += [f"<p>the whole model ({html.escape(SCALED)}):</p>", _table(whole)]
        parts += [f"<p>{html.escape(line)}</p>" for line in self._closing()]
        return "".join(parts)

    def _headline(self) -> str:
        total = len(self.document["decisions"])
        return f"run {self.document['name']}: {len(self.installed)} of {total} targets are replaced"

    def _decision_rows(self) -> list[list[str]]:
        names = {t["index"]: t["name"] for t in self.document["targets"]}
        applied = any(d.get("counters") for d in self.document["decisions"])
        head = ["target", "name", "decision", "alone", "in the model"]
        head += [*(["at run time"] if applied else []), "each rest", "why"]
        ranked = ranked_decisions(self.document)
        return [head, *(_decision_row(d, names, applied) for d in ranked)]

    def _whole_rows(self) -> list[list[str]]:
        entries = whole_entries(self.document)
        if not entries:
            return []
        over = ["over untouched", "over the same rest", "over torch.compile"]
        rows = [["model", "time", *over]]
        for e in entries:
            label = f"{e.label} (recommended)" if e.recommended else e.label
            compared = [_claim(row) for row in (e.over_eager, e.over_empty, e.over_compile)]
            if e.over_layout:
                compared[1] += f"; laid out, no kernels: {_claim(e.over_layout)}"
            if e.uncompared:
                compared[-1] = f"not measured: {e.uncompared}"
            rows.append([label, words.time(e.us), *compared])
        return rows

    def _closing(self) -> list[str]:
        lines = []
        fidelity, advice = self.document["fidelity"], self.document["recommendation"]
        if ran := claims.at_run_time(self.document["counters"]):
            lines.append(ran)
        if fidelity:
            note = fidelity.get("note", "")
            lines.append(f"fidelity: {claims.fidelity(fidelity)}{f'. {note}' if note else ''}")
        if advice:
            lines.append(f"recommended: rest={advice['rest']!r}, {advice['reason']}")
        return lines


def _decision_row(decision: Mapping[str, Any], names: dict[int, str], applied: bool) -> list[str]:
    return [
        str(decision["target"]),
        str(names.get(decision["target"], "")),
        "replaced" if decision["installed"] else "original",
        claims.measured(decision["isolated"]),
        claims.measured(decision["in_model"]),
        *([claims.counted(decision.get("counters")) or words.NONE] if applied else []),
        rests_told(decision) or words.NONE,
        decision["reason"],
    ]


def _claim(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    figure, spread, _ = claims.claim(row)
    return f"{figure} {spread}".strip()


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
