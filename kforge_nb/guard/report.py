"""What the guard decided, as plain records: decisions, whole-model rows, recommendation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kforge_nb.judge.evaluation import Comparison

if TYPE_CHECKING:
    from kforge_nb.guard.accepted import Accepted

__all__ = ["Decision", "GuardReport", "InRest", "Whole", "isolated_comparison"]


@dataclass(frozen=True, slots=True)
class InRest:
    """What was decided about one kernel for one rest: it is installed with it or not, and why."""

    rest: str
    installed: bool
    reason: str

    def to_document(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"rest": self.rest, "installed": self.installed, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens with one target: its kernel is installed, or the original stays, and why.

    ``isolated`` is the judge's comparison with eager, ``in_model`` the comparison with the original
    at the target's places in the model (µs a run, all occurrences together); ``fidelity`` is that
    of the whole model with all installed kernels. ``installed`` holds for the rest that was found
    best; ``rests`` has one entry for each rest that was measured, as each decides by itself.
    """

    target_fingerprint: str
    installed: bool
    reason: str
    isolated: Comparison | None = None
    in_model: Comparison | None = None
    fidelity: dict[str, Any] | None = None
    rests: tuple[InRest, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Plain JSON, without samples."""
        return {
            "fingerprint": self.target_fingerprint,
            "installed": self.installed,
            "reason": self.reason,
            "isolated": figures(self.isolated),
            "in_model": figures(self.in_model),
            "fidelity": self.fidelity,
            "rests": [found.to_document() for found in self.rests],
        }


@dataclass(frozen=True, slots=True)
class Whole:
    """One whole-model comparison: ``name`` with ``rest`` against ``empty``, ``eager``, ``compile``.

    ``name`` is ``guarded``, the model with kernels, or ``empty``, the rest alone, where none was
    kept. As ``against``, ``empty`` is the same rest without kernels, ``eager`` the untouched model;
    ``layout`` is that rest with its graphs laid out as for the kernels, but without any.
    """

    name: str
    rest: str
    against: str
    comparison: Comparison

    def to_document(self) -> dict[str, Any]:
        """Plain JSON, without samples."""
        row = figures(self.comparison) or {}
        return {"name": self.name, "rest": self.rest, **row, "against": self.against}


@dataclass(slots=True)
class GuardReport:
    """Everything that one ``decide`` found.

    ``best_rest`` is what ``apply`` should use: one of the rests, or ``none`` where none is surely
    faster than the untouched model; ``why_rest`` says why. ``notes`` hold what was left out.
    """

    decisions: list[Decision]
    whole: list[Whole]
    fidelity: dict[str, Any] | None
    best_rest: str
    why_rest: str
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def installed(self) -> list[str]:
        """Fingerprints of the installed kernels."""
        return [d.target_fingerprint for d in self.decisions if d.installed]

    @property
    def by_rest(self) -> dict[str, list[str]]:
        """Fingerprints of the kernels of each rest that was measured, in the order of measuring."""
        found: dict[str, list[str]] = {}
        for decision in self.decisions:
            for entry in decision.rests:
                kernels = found.setdefault(entry.rest, [])
                kernels.extend([decision.target_fingerprint] if entry.installed else [])
        return found

    def to_document(self) -> dict[str, Any]:
        """The parts of the run document that the guard fills."""
        return {
            "decisions": [d.to_document() for d in self.decisions],
            "whole": [w.to_document() for w in self.whole],
            "fidelity": self.fidelity,
            "recommendation": {"rest": self.best_rest, "reason": self.why_rest},
            "notes": list(self.notes),
        }


def figures(found: Comparison | None) -> dict[str, Any] | None:
    """A comparison as the run document has it."""
    if found is None:
        return None
    return {
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "n": found.n,
        "ours_us": found.ours_us,
        "against_us": found.against_us,
    }


_NUMBERS = ("ratio", "low", "high", "ours_us", "against_us")


def isolated_comparison(kernel: Accepted, against: str = "eager") -> Comparison | None:
    """The judge's comparison with a baseline, from the evidence; None where there is none."""
    for row in kernel.evidence.get("timings", ()):
        if isinstance(row, dict) and row.get("against") == against:
            try:
                ratio, low, high, ours, theirs = (float(row[k]) for k in _NUMBERS)
                return Comparison(against, ratio, low, high, int(row["n"]), ours, theirs)
            except (KeyError, TypeError, ValueError):
                return None
    return None
