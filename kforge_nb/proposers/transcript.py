"""Transcripts: what was asked of a model, what it answered and what came of it, as plain data.

A transcript drives the ``replay`` proposer and the table of prompt versions. It holds no prompt
(the digest says which one it was) and no samples of timings; token counts that nobody metered are
marked as estimates.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from kforge_nb.errors import DocumentError
from kforge_nb.judge.evaluation import Evaluation

__all__ = ["SCHEMA", "Entry", "Transcript", "without_samples"]

SCHEMA = "kforge.transcript/1"
MAX_BYTES = 64 << 20
_TEXTS = ("target", "fingerprint", "language", "action", "version", "prompt", "answer", "problem")
_TEXTS_OR_NONE = ("strategy", "parent", "candidate")
_COUNTS = ("characters", "tokens_in", "tokens_out")
_YES_OR_NO = ("repaired", "estimated")


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer.

    ``target`` is its name, ``fingerprint`` what it is. ``parent`` is the digest of the candidate
    that the prompt showed (None for a draft). ``version`` and ``prompt`` are version and digest of
    the prompt, which had ``characters``. ``repaired`` says that the answer is a mended one.
    ``candidate`` is the digest of what was in it, None where ``problem`` says why nothing was.
    ``evaluation`` is an evaluation as plain data; None where nothing was judged. ``estimated`` says
    that the counts of tokens are estimates.
    """

    target: str
    fingerprint: str
    language: str
    action: str
    version: str
    prompt: str
    characters: int
    answer: str
    strategy: str | None = None
    parent: str | None = None
    repaired: bool = False
    candidate: str | None = None
    problem: str = ""
    evaluation: dict[str, Any] | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: bool = True


@dataclass(slots=True)
class Transcript:
    """Entries in the order in which they were answered. ``source`` says who answered how."""

    source: Literal["paste", "api"]
    model: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_document(), indent=1, ensure_ascii=False)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".transcript-")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
        Path(name).replace(path)

    def to_document(self) -> dict[str, Any]:
        """Plain JSON-ready data."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "model": self.model,
            "facts": self.facts,
            "entries": [asdict(entry) for entry in self.entries],
        }

    @classmethod
    def load(cls, path: Path) -> Transcript:
        """Read one; raises DocumentError for what is none."""
        try:
            if path.stat().st_size > MAX_BYTES:
                raise DocumentError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB")
            return cls.from_document(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as problem:
            raise DocumentError(f"{path.name} is no transcript: {problem}") from problem

    @classmethod
    def from_document(cls, document: Any) -> Transcript:
        """Inverse of :meth:`to_document`; raises DocumentError on malformed data."""
        if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
            raise DocumentError(f"this is no transcript of the schema {SCHEMA}")
        if document.get("source") not in ("paste", "api"):
            raise DocumentError("a transcript's source is 'paste' or 'api'")
        rows = document.get("entries", [])
        if not isinstance(rows, list):
            raise DocumentError("a transcript's entries are a list")
        entries = [_entry(row, place) for place, row in enumerate(rows)]
        facts = document.get("facts")
        known = dict(facts) if isinstance(facts, Mapping) else {}
        return cls(document["source"], str(document.get("model", "")), known, entries)


def _entry(row: Any, place: int) -> Entry:
    names = {f.name for f in fields(Entry)}
    if not isinstance(row, Mapping) or set(row) - names:
        raise DocumentError(f"entry {place} of the transcript has unknown fields, or is none")
    try:
        entry = Entry(**row)
    except TypeError as problem:
        raise DocumentError(f"entry {place} of the transcript lacks a field: {problem}") from None
    wrong = _wrong(entry)
    if wrong:
        raise DocumentError(
            f"entry {place} of the transcript has a field of the wrong type: {', '.join(wrong)}"
        )
    if entry.evaluation is not None:
        try:
            Evaluation.from_document(entry.evaluation)
        except (KeyError, ValueError, TypeError, AttributeError) as problem:
            raise DocumentError(f"entry {place} has a broken evaluation: {problem!r}") from None
    return entry


def _wrong(entry: Entry) -> list[str]:
    """The fields that hold something else than they say."""

    def other(names: tuple[str, ...], *kinds: type) -> list[str]:
        return [name for name in names if type(getattr(entry, name)) not in kinds]

    texts = [*other(_TEXTS, str), *other(_TEXTS_OR_NONE, str, type(None))]
    return [*texts, *other(_COUNTS, int), *other(_YES_OR_NO, bool)]


def without_samples(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as plain data, its single samples left out and what is not finite None."""
    text = json.dumps(evaluation.to_document())
    document: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    for timing in document["timings"]:
        timing["ours_samples_us"], timing["against_samples_us"] = [], []
    return document
