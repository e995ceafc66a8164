"""Prompts that wait for the user, as a list that shows itself with what to do."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kforge_nb.proposers.paste import Pending

__all__ = ["Prompts"]


class Prompts(list["Pending"]):
    """Pending prompts, oldest first; ``prompts[0].text`` is what to paste into a chat window."""

    def __init__(self, pending: Iterable[Pending], run: str) -> None:
        super().__init__(pending)
        self._run = run

    def __repr__(self) -> str:
        if not self:
            return f"no prompt of run {self._run} waits for an answer"
        lines = [f"{_what(p)}, {len(p.text)} characters" for p in self]
        return "\n".join([*lines, self._how()])

    def _repr_html_(self) -> str:
        if not self:
            return f"<p>{html.escape(repr(self))}</p>"
        parts = [
            f"<details><summary>{html.escape(_what(p))}</summary>"
            f"<pre style='white-space:pre-wrap'>{html.escape(p.text)}</pre></details>"
            for p in self
        ]
        return "".join([*parts, f"<p>{html.escape(self._how())}</p>"])

    def _how(self) -> str:
        first = self[0].id
        return (
            f"paste run.prompts[0].text into a chat window, and bring the whole answer back by "
            f"run.answer({first!r}, text), or in a cell under "
            f"%%kforge answer {first} --run {self._run}"
        )


def _what(prompt: Pending) -> str:
    note = f" (again: {prompt.note})" if prompt.note else ""
    return f"prompt {prompt.id}: {prompt.action} for target {prompt.target} {prompt.name}{note}"
