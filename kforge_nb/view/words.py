"""Figures as people read them, the same in text, HTML and plots. None means "not measured"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "HOST_CODE",
    "LETTER",
    "NONE",
    "change",
    "count",
    "decision",
    "doing",
    "ended",
    "goes_on",
    "has_host_code",
    "interval",
    "marked",
    "money",
    "paid",
    "percent",
    "ratio",
    "row_interval",
    "standing",
    "state",
    "time",
]

NONE = "–"
HOST_CODE = "host code"
"""Stands wherever a torch extension is shown; ``labextension/src/view/hostcode.tsx`` has it too."""
LETTER = "H"
"""The same where there is no room for words."""


def has_host_code(node: Mapping[str, Any] | None) -> bool:
    """Whether a candidate is a torch extension, the one kind in which host code runs."""
    return bool(node and node["language"] == "cuda_extension")


def marked(text: str, node: Mapping[str, Any] | None) -> str:
    """``text``, with the mark behind it where it is about a torch extension."""
    return f"{text} ({HOST_CODE})" if has_host_code(node) else text


def ratio(value: float | None) -> str:
    """2.314 becomes ``2.31×``."""
    if value is None:
        return NONE
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}×"


def interval(low: float | None, high: float | None) -> str:
    """A 95% interval of ratios as ``2.27 to 2.35``; empty where there is none."""
    if low is None or high is None:
        return ""
    return f"{ratio(low)[:-1]} to {ratio(high)[:-1]}"


def row_interval(row: Mapping[str, Any] | None) -> str:
    """Ratio and interval of a comparison row, as ``2.31× (2.27 to 2.35)``."""
    if row is None:
        return NONE
    spread = interval(row["low"], row["high"])
    return ratio(row["ratio"]) + (f" ({spread})" if spread else "")


def time(us: float | None) -> str:
    """Microseconds with a fitting unit."""
    if us is None:
        return NONE
    if us < 1:
        return f"{us * 1000:.0f} ns"
    if us < 1000:
        return f"{us:.1f} µs" if us < 100 else f"{us:.0f} µs"
    if us < 1_000_000:
        return f"{us / 1000:.2f} ms" if us < 10_000 else f"{us / 1000:.1f} ms"
    return f"{us / 1e6:.2f} s" if us < 10_000_000 else f"{us / 1e6:.1f} s"


def change(us: float | None) -> str:
    """A difference of times with its sign: ``−4.7 ms``."""
    if us is None:
        return NONE
    return f"{'−' if us < 0 else '+'}{time(abs(us))}" if us else "0"


def percent(share: float | None) -> str:
    """0.314 becomes ``31.4%``."""
    return NONE if share is None else f"{share:.1%}"


def money(usd: float) -> str:
    """US dollars; small sums keep their digits."""
    return f"${usd:.4f}" if 0 < usd < 0.1 else f"${usd:.2f}"


def paid(usd: float, calls: int, saved_ms: float) -> str:
    """``$0.05 for 12 calls ($0.02 for each ms saved a run)``, or that nothing was paid."""
    if not calls:
        return "no paid calls"
    each = f" ({money(usd / saved_ms)} for each ms saved a run)" if usd and saved_ms else ""
    return f"{money(usd)} for {count(calls, 'call')}{each}"


def count(n: int, noun: str, plural: str = "") -> str:
    """``1 kernel``, ``2 kernels``, ``12,000 kernels``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def decision(row: Mapping[str, Any]) -> str:
    """What the guard did with a target and why, with a sign before it."""
    reason = row["reason"].removeprefix("kept original").removeprefix("replaced").lstrip(": ")
    verdict = "● replaced" if row["installed"] else "○ kept original"
    return f"{verdict}: {reason}" if reason else verdict


def doing(run: Mapping[str, Any]) -> str:
    """A run's state as people know it: what it does after its search is not searching any more."""
    state = str(run["state"])
    if state == "searching" and (run.get("progress") or {}).get("phase") == "confirming":
        return "confirming its winners"
    return "measuring in the model" if state == "guarding" else state


def ended(run: Mapping[str, Any], between: str) -> str:
    """A run's state and reason; a reason that begins with the state is not put after it."""
    state, reason = doing(run), str(run["state_reason"])
    if not reason or reason.startswith(state):
        return reason or state
    return f"{state}{between}{reason}"


def standing(target: Mapping[str, Any]) -> str:
    """A target's state, or what its own Pause or Stop has made of it."""
    if target.get("stopping"):
        return "stopping"
    return "paused" if target.get("paused") else str(target["state"])


def goes_on(run: Mapping[str, Any]) -> str:
    """How to go on with a run that ended early; empty where not, or where its reason says it."""
    if run["state"] not in ("stopped", "interrupted") or "kforge resume" in run["state_reason"]:
        return ""
    return f"In its notebook, %kforge resume {run['name']} goes on from here."


def state(target: Mapping[str, Any], tried: int) -> str:
    """What became of a target, in words."""
    parts = [standing(target)]
    if target["vendor"] and not tried:
        return target["state_reason"] or "not searched (vendor op)"
    if tried:
        parts.append(count(tried, "candidate"))
    words = ", ".join(parts)
    return f"{words}: {target['state_reason']}" if target["state_reason"] else words
