"""What to ask next in a trial of prompts: one line of descent a target, repairs included.

Pure: from the entries of a transcript to the request for the next step. An attempt that is wrong
is repaired twice at most, then the search goes back to the best one that is right, or starts anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.prompt_faults import label_of
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.proposers.protocol import Action, Attempt, Request
from kforge_nb.proposers.strategies import next_strategy
from kforge_nb.proposers.transcript import Entry
from kforge_nb.targets.target import Target

__all__ = ["attempts_of", "best_of", "next_step"]

MOST_REPAIRS = 2
_REPAIRABLE = frozenset(
    {
        Verdict.WRONG, Verdict.COMPILE_FAILED, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.REFUSED,
        Verdict.SUSPICIOUS,
    }
)  # fmt: skip


def attempts_of(target: Target, entries: Sequence[Entry]) -> list[tuple[Entry, Attempt | None]]:
    """The target's entries in order, each with its judged candidate; None where it had none."""
    found: list[tuple[Entry, Attempt | None]] = []
    for entry in entries:
        if entry.fingerprint != target.fingerprint:
            continue
        answer = parse(entry.answer, target, entry.language)
        if entry.evaluation is None or not isinstance(answer, Answer):
            found.append((entry, None))
            continue
        candidate = answer.candidate
        strategy = entry.strategy if label_of(entry) is None else None  # the label is not told
        candidate.origin.update({"proposer": "paste", "strategy": strategy})
        found.append((entry, Attempt(candidate, Evaluation.from_document(entry.evaluation))))
    return found


def best_of(attempts: Sequence[tuple[Entry, Attempt | None]]) -> Attempt | None:
    """The fastest correct attempt."""
    right = [a for _, a in attempts if a is not None and a.evaluation.correct]
    return max(right, key=lambda a: a.evaluation.speedup or 0.0, default=None)


def next_step(
    target: Target,
    entries: Sequence[Entry],
    device: dict[str, Any],
    roofline_us: float | None = None,
    baseline_us: float | None = None,
) -> tuple[Request, str | None]:
    """The request that comes next, and its strategy if it is an ``optimise``."""
    attempts = attempts_of(target, entries)
    action, parent = _choice(attempts)
    digest = parent.candidate.digest if parent is not None else None
    if parent is not None:
        siblings = tuple(a for e, a in attempts if a is not None and e.parent == digest)
    else:
        siblings = tuple(a for e, a in attempts if a is not None and e.parent is None)
    request = Request(
        target, action, parent, siblings, device, roofline_us, baseline_us=baseline_us
    )
    return request, next_strategy(request) if action == "optimise" else None


def _choice(attempts: Sequence[tuple[Entry, Attempt | None]]) -> tuple[Action, Attempt | None]:
    if not attempts:
        return "draft", None
    last = attempts[-1][1]
    failed = last is not None and last.evaluation.verdict in _REPAIRABLE
    if failed and _failures_in_a_row(attempts) <= MOST_REPAIRS:
        return "repair", last
    best = best_of(attempts)
    return ("optimise", best) if best is not None else ("restart", None)


def _failures_in_a_row(attempts: Sequence[tuple[Entry, Attempt | None]]) -> int:
    count = 0
    for _, attempt in reversed(attempts):
        if attempt is not None and attempt.evaluation.correct:
            break
        count += 1
    return count
