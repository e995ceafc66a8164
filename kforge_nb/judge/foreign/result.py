"""What is said of a foreign file: an evaluation, with the file's own claims beside the figures."""

from __future__ import annotations

from dataclasses import dataclass, fields
from html import escape
from typing import Any

from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict, shown

__all__ = ["FileEvaluation"]

_NAMES = {
    "eager": "eager",
    "compile": "torch.compile",
    "max_autotune": "torch.compile, max-autotune",
    "warm": "eager, the same inputs every time (warm cache)",
    "call": "eager, by the time of a call on the host",
}
_MEANS = {
    Verdict.ACCEPTED: "right, and faster than eager",
    Verdict.SLOWER: "right, and not faster than eager",
    Verdict.UNDECIDED: "right as far as was seen; not decided",
    Verdict.WRONG: "an output is wrong",
    Verdict.WRAPPER: "right, but somebody else's work: no credit",
    Verdict.SUSPICIOUS: "evidence of cheating",
    Verdict.REFUSED: "not judged",
    Verdict.WEAK_TASK: "the reference cannot tell right from wrong",
}
_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"


@dataclass(frozen=True, slots=True, repr=False)
class FileEvaluation(Evaluation):
    """An :class:`Evaluation` of a file.

    Attributes:
        file: name of the file.
        kind: what it is, in words.
        reference: where the reference comes from, and on which device it ran.
        claims: the file's claims beside what was measured, one in a line.
        notes: what a reader should know: settings of the file's own measurement, weights, modes.
    """

    file: str = ""
    kind: str = ""
    reference: str = ""
    claims: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Names, claims and notes are the file's words too."""
        Evaluation.__post_init__(self)
        for name in ("file", "kind", "reference"):
            object.__setattr__(self, name, shown(getattr(self, name)))
        for name in ("claims", "notes"):
            object.__setattr__(self, name, tuple(shown(words) for words in getattr(self, name)))

    @classmethod
    def of(cls, found: Evaluation, **more: Any) -> FileEvaluation:
        """An evaluation with what is known of the file."""
        return cls(**{f.name: getattr(found, f.name) for f in fields(Evaluation)}, **more)

    @property
    def host_code(self) -> bool:
        """Whether it ran code on the host: what its process says is worth less."""
        return bool(self.resources.get("host_code"))

    def __repr__(self) -> str:
        lines = [f"{self.file} ({self.kind}): {self.verdict}", f"  {self.reason}"]
        if self.reference:
            lines.append(f"  reference: {self.reference}")
        if self.verdict is Verdict.COMPILE_FAILED and self.log.strip():
            lines += [f"  {line}" for line in self.log.strip().splitlines()[:20]]
        lines += [f"  {_words(row)}" for row in self.timings]
        lines += [f"  claim: {words}" for words in self.claims]
        lines += [f"  note: {words}" for words in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Headline, figures, claims and notes; every word of the file escaped."""
        meaning = _MEANS.get(self.verdict, "")
        head = f"{escape(self.file)} <small>({escape(self.kind)})</small>"
        parts = [
            f"<p><strong>{head}: {escape(str(self.verdict))}</strong>"
            f"{' · ' + escape(meaning) if meaning else ''}<br>{escape(self.reason)}</p>"
        ]
        if self.reference:
            parts.append(f"<p>Reference: {escape(self.reference)}</p>")
        if self.timings:
            parts.append(_table(self.timings))
        if self.verdict is Verdict.COMPILE_FAILED and self.log.strip():
            parts.append(f"<pre>{escape(self.log.strip()[:4000])}</pre>")
        for title, entries in (("Claims", self.claims), ("Notes", self.notes)):
            if entries:
                items = "".join(f"<li>{escape(words)}</li>" for words in entries)
                parts.append(f"<p>{title}</p><ul>{items}</ul>")
        name = escape(self.file, quote=True)
        return f'<div role="region" aria-label="Judgement of {name}">{"".join(parts)}</div>'


def _words(row: Comparison) -> str:
    return (
        f"{row.ratio:.2f}× over {_NAMES.get(row.against, row.against)} "
        f"({row.low:.2f} to {row.high:.2f}), {row.ours_us:.1f} µs against {row.against_us:.1f} µs"
    )


def _table(timings: tuple[Comparison, ...]) -> str:
    head = "".join(
        f'<th style="{_CELL}" scope="col">{title}</th>'
        for title in ("against", "times faster", "95% interval", "its µs", "baseline's µs", "pairs")
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td style="{_CELL}">{escape(cell)}</td>'
            for cell in (
                _NAMES.get(row.against, row.against),
                f"{row.ratio:.2f}×",
                f"{row.low:.2f} to {row.high:.2f}",
                f"{row.ours_us:.1f}",
                f"{row.against_us:.1f}",
                str(row.n),
            )
        )
        + "</tr>"
        for row in timings
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
