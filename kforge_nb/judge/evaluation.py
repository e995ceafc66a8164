"""What the judge found about one candidate. Failures are values here, never exceptions."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Comparison", "ErrorFigure", "Evaluation", "Verdict", "shown"]

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def shown(text: str) -> str:
    """Text of a candidate or a file as it may be printed.

    Without characters that steer a terminal, turn the direction of text, or cannot be encoded.
    """
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


class Verdict(StrEnum):
    """The closed set of outcomes (design words); each evaluation adds a reason in words."""

    ACCEPTED = "accepted"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    WRONG = "wrong"
    COMPILE_FAILED = "compile_failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    SUSPICIOUS = "suspicious"
    WRAPPER = "wrapper"
    REFUSED = "refused"
    WEAK_TASK = "weak_task"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Interleaved timing of the candidate against one baseline (``eager`` or ``compile``).

    ``warm`` (on a CPU) is eager on the same inputs again and again, ``call`` (on a GPU) eager by
    the host's time of a call; neither decides anything.

    ``ratio`` is baseline time over candidate time (above 1: the candidate is faster); ``low`` and
    ``high`` bound its 95% interval. Times are medians in microseconds per call. The samples are
    paired: sample i of both sides came from neighbouring batches.
    """

    against: str
    ratio: float
    low: float
    high: float
    n: int
    ours_us: float
    against_us: float
    ours_samples_us: tuple[float, ...] = ()
    against_samples_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorFigure:
    """Error of one output on one input set, candidate and eager, both against float64."""

    output: str
    input_set: str
    candidate: float
    eager: float
    budget: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Verdict, reason and evidence for one candidate on one target."""

    verdict: Verdict
    reason: str
    log: str = ""
    errors: tuple[ErrorFigure, ...] = ()
    timings: tuple[Comparison, ...] = ()
    bandwidth_gbs: float | None = None
    roofline_share: float | None = None
    resources: dict[str, Any] = field(default_factory=dict)
    repeatable: bool | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    mismatches: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Words of a candidate are in both: its exceptions, and lines of its source."""
        object.__setattr__(self, "reason", shown(self.reason))
        object.__setattr__(self, "log", shown(self.log))

    @property
    def correct(self) -> bool:
        """Whether the candidate computed the right thing, fast or not."""
        return self.verdict in {Verdict.ACCEPTED, Verdict.SLOWER, Verdict.UNDECIDED}

    def against(self, baseline: str) -> Comparison | None:
        """The comparison with one baseline, if it was timed."""
        return next((t for t in self.timings if t.against == baseline), None)

    @property
    def speedup(self) -> float | None:
        """Ratio over eager, if timed."""
        found = self.against("eager")
        return found.ratio if found else None

    def to_document(self) -> dict[str, Any]:
        """Plain JSON-ready data."""
        return {**asdict(self), "verdict": str(self.verdict)}

    @classmethod
    def from_document(cls, data: dict[str, Any]) -> Evaluation:
        """Inverse of :meth:`to_document`; raises KeyError or ValueError on malformed data."""
        fields = dict(data)
        fields["verdict"] = Verdict(fields["verdict"])
        fields["errors"] = tuple(ErrorFigure(**e) for e in fields.get("errors", ()))
        fields["timings"] = tuple(
            Comparison(
                **{
                    **t,
                    "ours_samples_us": tuple(t.get("ours_samples_us", ())),
                    "against_samples_us": tuple(t.get("against_samples_us", ())),
                }
            )
            for t in fields.get("timings", ())
        )
        fields["mismatches"] = tuple(fields.get("mismatches", ()))
        return cls(**fields)
