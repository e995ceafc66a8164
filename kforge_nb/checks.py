"""What the doctor finds: one line a check, and a report that text and HTML show alike."""

from __future__ import annotations

import html
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

__all__ = ["Check", "Doctor", "installed"]

Level = Literal["ok", "missing", "optional"]
MARKS = {"ok": "ok", "missing": "MISSING", "optional": "-"}


@dataclass(frozen=True, slots=True)
class Check:
    """One line: ``missing`` stops something from working, ``optional`` only narrows it."""

    name: str
    level: Level
    found: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Doctor:
    """All checks; ``ok`` when nothing needed is missing."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that optimizing on this machine needs is here."""
        return all(check.level != "missing" for check in self.checks)

    def __repr__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [
            f"{MARKS[c.level]:>7}  {c.name:<{width}}  {c.found}" + (f"; {c.hint}" if c.hint else "")
            for c in self.checks
        ]
        verdict = "everything needed is here" if self.ok else "something needed is missing"
        return "\n".join([*lines, verdict])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{MARKS[c.level]}</td><th style='text-align:left'>{html.escape(c.name)}</th>"
            f"<td style='text-align:left'>{html.escape(c.found)}"
            f"{'<br><em>' + html.escape(c.hint) + '</em>' if c.hint else ''}</td></tr>"
            for c in self.checks
        )
        verdict = "everything needed is here" if self.ok else "something needed is missing"
        return f"<table><caption>kforge doctor: {verdict}</caption><tbody>{rows}</tbody></table>"


def installed(package: str) -> str | None:
    """The version of an installed package, else None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
