"""What the stages of one evaluation share: how one of them ends it, and what is collected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.judge.policy import Finding

__all__ = ["Ended", "Stages", "compile_failed", "end_on"]

_VERDICTS = {
    "breach": Verdict.REFUSED,
    "library": Verdict.WRAPPER,
    "suspicion": Verdict.SUSPICIOUS,
}


class Ended(Exception):
    """A stage came to a verdict; ``details`` are further fields of the evaluation."""

    def __init__(self, verdict: Verdict, reason: str, **details: Any) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.details = details


class Stages:
    """What is collected while one candidate goes through the stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.details: dict[str, Any] = {}
        self.resources: dict[str, Any] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what runs in here under a name; a name that comes again adds up."""
        start = perf_counter()
        try:
            yield
        finally:
            self.add(name, perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Seconds that were measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def waiting(self, for_it: AbstractContextManager[None]) -> Iterator[None]:
        """Hold a lock; waiting for it is a stage of its own."""
        asked = perf_counter()
        with for_it:
            self.add("wait", perf_counter() - asked)
            yield

    def part(self, name: str, part: str, seconds: float) -> None:
        """Tell a part of a stage by itself: its seconds are no longer among those of the stage."""
        own = f"{name} {part}"
        self.seconds[name] = max(0.0, self.seconds.get(name, 0.0) - seconds)
        self.add(own, seconds)

    def close(self, found: Evaluation, total: float) -> None:
        """Tell an evaluation of all stages, and as ``other`` what is in none of them."""
        found.seconds.update(self.seconds)
        named = sum(seconds for name, seconds in found.seconds.items() if name != "total")
        found.seconds["other"] = max(0.0, total - named)
        found.seconds["total"] = total

    def evaluation(self, verdict: Verdict, reason: str, **details: Any) -> Evaluation:
        """The evaluation with everything collected so far."""
        merged = {**self.details, **details}
        return Evaluation(
            verdict, reason, seconds=dict(self.seconds), resources=dict(self.resources), **merged
        )


def end_on(findings: Sequence[Finding]) -> None:
    """The gravest finding decides; all are in the reason. Raises Ended if there are any."""
    if findings:
        words = "; ".join(dict.fromkeys(str(f) for f in findings))
        raise Ended(_VERDICTS[findings[0].kind], words[:1000])


def compile_failed(distilled: str, timed_out: bool) -> Ended:
    """How a source that did not compile ends its evaluation."""
    if timed_out:
        words = "the compiler was stopped: it took too long"
    else:
        words = distilled.strip().split("\n", 1)[0][:300] or "it does not compile"
    return Ended(Verdict.COMPILE_FAILED, words, log=distilled)
