"""How verdicts look in still pictures: a word, a colour that works on light and dark, a marker."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GOOD", "LOOKS", "MUTE", "Look"]

GOOD = "#1f8f57"
MUTE = "#8a949e"
WARN = "#b8701a"
BAD = "#cf4a3b"


@dataclass(frozen=True, slots=True)
class Look:
    """``marker`` is matplotlib's letter; the SVG draws the same shapes."""

    word: str
    colour: str
    marker: str


LOOKS = {
    "accepted": Look("accepted", GOOD, "o"),
    "slower": Look("slower", MUTE, "s"),
    "undecided": Look("undecided", MUTE, "D"),
    "wrong": Look("wrong", BAD, "x"),
    "compile_failed": Look("does not compile", BAD, "x"),
    "crashed": Look("crashed", BAD, "x"),
    "timed_out": Look("timed out", BAD, "x"),
    "suspicious": Look("suspicious", WARN, "^"),
    "wrapper": Look("wrapper", WARN, "^"),
    "refused": Look("refused", WARN, "^"),
    "weak_task": Look("weak task", WARN, "^"),
}
