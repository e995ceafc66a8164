"""The files of a trial: one folder for each line of descent, with prompts and answers.

A line begins with a draft of a target, or with a kernel of it that got a fault. Its folder holds
``NN-ACTION.prompt.txt`` (what is pasted), ``NN-ACTION.json`` (what the transcript will say of it),
``NN-ACTION.answer.txt`` (what came back) and ``NN-ACTION.done`` once the answer was judged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.prompt_faults import FAULTS, Fault, label_of
from benchmarks.prompt_targets import TRIAL, TrialTarget
from kforge_nb.proposers.prompting import Prompt
from kforge_nb.proposers.protocol import Request
from kforge_nb.proposers.transcript import Entry

__all__ = [
    "FORM",
    "Line",
    "about_answer",
    "lines",
    "open_prompt",
    "read_json",
    "save_json",
    "say",
    "write_prompt",
]

FORM = ".form"
"""What the name of a prompt ends in that asks for a mended form alone."""


@dataclass(frozen=True, slots=True)
class Line:
    """A target of the trial, with the fault that its line begins with, if any."""

    entry: TrialTarget
    fault: Fault | None = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.fault.folder if self.fault is not None else self.entry.name

    def of(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries of a transcript that belong to it, in order."""
        label = self.fault.label if self.fault is not None else None
        return [e for e in entries if e.target == self.entry.name and label_of(e) == label]


def lines(targets: Sequence[str] = ()) -> Iterator[Line]:
    """Every target's own line, then every planted one; only those of ``targets`` if it names any.

    A planted line goes by its folder's name.
    """
    known = {entry.name: entry for entry in TRIAL}
    found = [Line(entry) for entry in TRIAL]
    found += [Line(known[fault.target], fault) for fault in FAULTS]
    for line in found:
        if not targets or line.name in targets:
            yield line


def open_prompt(folder: Path) -> str | None:
    """The stem of a prompt whose answer was not judged yet."""
    for file in sorted(folder.glob("*.prompt.txt")):
        stem = file.name.removesuffix(".prompt.txt")
        if not (folder / f"{stem}.done").exists():
            return stem
    return None


def write_prompt(
    folder: Path, stem: str, prompt: Prompt, request: Request | None, strategy: str | None
) -> None:
    """A prompt and what the transcript will say of it; ``request`` is None for a mended form."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.prompt.txt").write_text(prompt.text() + "\n", encoding="utf-8")
    parent = request.parent if request is not None else None
    about = {
        "version": prompt.version,
        "prompt": prompt.digest(),
        "characters": len(prompt.text()),
        "language": prompt.language,
        "action": request.action if request is not None else "form",
        "strategy": strategy,
        "parent": parent.candidate.digest if parent is not None else None,
    }
    save_json(folder / f"{stem}.json", about)
    say(f"{folder.name}: {stem}.prompt.txt ({about['characters']} characters)")


def about_answer(folder: Path, stem: str) -> dict[str, Any]:
    """What was kept of a prompt; one for a mended form takes its place from the prompt before."""
    about = read_json(folder / f"{stem}.json")
    if stem.endswith(FORM):
        first = read_json(folder / f"{stem.removesuffix(FORM)}.json")
        about |= {key: first[key] for key in ("action", "strategy", "parent")}
    return about


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; an empty one where there is no file."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save_json(path: Path, data: dict[str, Any]) -> None:
    """Writes it indented, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")


def say(words: str) -> None:
    """A line to the terminal, at once."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()
