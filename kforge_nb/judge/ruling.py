"""From timing sessions to comparisons, verdict and reason. Pure: takes figures, gives values."""

from __future__ import annotations

import statistics as plain
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kforge_nb.judge.evaluation import Comparison, Verdict
from kforge_nb.judge.statistics import (
    LEAST_PROCESSES,
    MIN_PAIRS,
    across,
    decide_across,
    may_be_moved,
    paired_ratio,
)

if TYPE_CHECKING:
    from kforge_nb.judge.statistics import Interval
    from kforge_nb.judge.timing import Session
    from kforge_nb.targets.target import Target

__all__ = ["Ruling", "comparison", "merged", "paired", "rule", "settled", "throughput"]

_LOADED = 0.15
_HIDDEN_SHARE = 0.05
_HIDDEN_SECONDS = 2e-3
_FAR_UNEVEN = 3.0
_FAR_SLOWER = 0.5  # the best of a handful of pairs, for a verdict
_KEPT_SAMPLES = 512


@dataclass(frozen=True, slots=True)
class Ruling:
    """Verdict and reason."""

    verdict: Verdict
    reason: str


def comparison(against: str, session: Session) -> Comparison:
    """The comparison that one session found."""
    return merged(against, [session])


def merged(against: str, sessions: Sequence[Session]) -> Comparison:
    """One comparison over several sessions of different processes.

    Their samples are put together; ratio and interval are over the processes, where there are
    enough of them.
    """
    ours = [t for session in sessions for t in session.ours]
    pooled = paired(against, ours, [t for session in sessions for t in session.against])
    found = _across(sessions)
    if found is None:
        return pooled
    return replace(pooled, ratio=found.ratio, low=found.low, high=found.high)


def settled(sessions: Sequence[Session]) -> bool:
    """Whether one more process would not change what is said of a comparison."""
    if any(session.stopped for session in sessions):
        return True
    found = _across(sessions)
    return found is not None and decide_across(found) is not None


def _across(sessions: Sequence[Session]) -> Interval | None:
    """The interval over processes; None where there are too few."""
    timed = [s for s in sessions if s.ours]
    if len(timed) < LEAST_PROCESSES:
        return None
    ratios = [plain.median(b / a for a, b in zip(s.ours, s.against, strict=True)) for s in timed]
    return across(ratios, sum(len(s.ours) for s in timed))


def paired(against: str, ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """A comparison of paired samples in seconds."""
    ours, theirs = [t * 1e6 for t in ours], [t * 1e6 for t in theirs]
    found = paired_ratio(ours, theirs)
    low, high = found.low, found.high
    if found.n < MIN_PAIRS:  # no level can be kept with so few; what was seen is all there is
        seen = [b / a for a, b in zip(ours, theirs, strict=True)]
        low, high = min(seen), max(seen)
    return Comparison(
        against=against,
        ratio=found.ratio,
        low=low,
        high=high,
        n=found.n,
        ours_us=plain.median(ours),
        against_us=plain.median(theirs),
        ours_samples_us=tuple(round(t, 4) for t in ours[:_KEPT_SAMPLES]),
        against_samples_us=tuple(round(t, 4) for t in theirs[:_KEPT_SAMPLES]),
    )


def rule(
    target: Target, found: Comparison, sessions: Sequence[Session], floor_seconds: float
) -> Ruling:
    """The verdict on a correct candidate from its comparison with eager."""
    figures = (
        f"{found.ratio:.3g} times eager's speed on {target.name} "
        f"(95% interval {found.low:.3g} to {found.high:.3g}, {found.n} pairs{_processes(sessions)})"
    )
    fastest = found.ours_us
    if found.n > 1:  # inside of what was seen: of few samples the other rule makes less than any
        fastest = plain.quantiles(found.ours_samples_us, n=10, method="inclusive")[0]
    blur = max((s.blur for s in sessions), default=0.0)
    device = "machine" if target.device == "cpu" else "device"
    if fastest * 1e-6 < floor_seconds <= fastest * 1e-6 + blur:
        return Ruling(
            Verdict.UNDECIDED,
            f"{fastest:.3g} µs a call would be faster than physics allows, but what is taken off "
            f"each timing was uncertain by {blur * 1e6:.3g} µs: others used the {device}",
        )
    if fastest * 1e-6 < floor_seconds:
        return Ruling(
            Verdict.SUSPICIOUS,
            f"faster than physics allows: {fastest:.3g} µs a call, where this machine cannot move "
            f"the data in less than {floor_seconds * 1e6:.3g} µs",
        )
    hidden, watched = sum(s.hidden for s in sessions), sum(s.watched for s in sessions)
    if hidden > _HIDDEN_SHARE * watched + _HIDDEN_SECONDS:
        return Ruling(
            Verdict.SUSPICIOUS,
            f"it worked for {hidden * 1e3:.3g} ms of the {watched * 1e3:.3g} ms after its answers "
            "and in the baseline's time: work hidden from the clock",
        )
    clocks = next((s.disagreement for s in sessions if s.disagreement is not None), None)
    if clocks is not None:
        return Ruling(Verdict.SUSPICIOUS, clocks)
    foreign = max((s.foreign for s in sessions), default=0.0)
    load = f"; other programs used {foreign:.0%} of the machine" if foreign > _LOADED else ""
    if found.n < MIN_PAIRS:
        return _by_few(found, figures, load)
    sure = _surely(found, sessions) if foreign > _LOADED else found
    moved = _moved(sure, sessions, foreign)
    if moved is not None:
        return Ruling(moved.verdict, f"{figures}, but {moved.reason}{load}")
    if sure.low <= 1.0 < found.low:
        words = "but by the CPU time that both used it may be no faster: others decided who waited"
        return Ruling(Verdict.UNDECIDED, f"{figures}, {words}{load}")
    disagree = {_side(s) for s in sessions} >= {"faster", "slower"}
    if disagree:
        return Ruling(Verdict.UNDECIDED, f"{figures}; its processes disagree{load}")
    if _too_wide(found, sessions):
        words = f"{figures}: too wide to decide anything{load}"
        return Ruling(Verdict.UNDECIDED, words)
    if found.low > 1.0:
        return Ruling(Verdict.ACCEPTED, f"{figures}{load}")
    if found.high < 1.0:
        return Ruling(Verdict.SLOWER, f"{figures}{load}")
    if any(s.stopped for s in sessions):
        return Ruling(Verdict.UNDECIDED, f"stopped while it was timed: {figures}{load}")
    return Ruling(Verdict.UNDECIDED, f"no difference found: {figures}{load}")


def _surely(found: Comparison, sessions: Sequence[Session]) -> Comparison:
    """The comparison with the lower end that it has by CPU time, too, where that is known.

    On a busy machine both sides wait for a core, and one of them may be the luckier.
    """
    rows = [session.by_cpu for session in sessions if session.by_cpu is not None]
    if not rows or len(rows) < len(sessions):
        return found
    ratios = [row.ratio for row in rows]
    low = across(ratios).low if len(rows) >= LEAST_PROCESSES else min(row.low for row in rows)
    return replace(found, low=min(found.low, low))


def _moved(found: Comparison, sessions: Sequence[Session], foreign: float) -> Ruling | None:
    """The ruling where a gain may be work that was moved from timed calls to others."""
    if not sessions:
        return None
    uneven = plain.fmean(s.uneven for s in sessions)
    ahead = plain.fmean(s.ahead for s in sessions)
    if may_be_moved(found.low, found.high, uneven):
        quiet = uneven > _FAR_UNEVEN and foreign <= _LOADED
        return Ruling(
            Verdict.SUSPICIOUS if quiet else Verdict.UNDECIDED,
            f"all of its calls together used {uneven:.3g} times the CPU time that this rests on: "
            "the work of timed calls may be done in others",
        )
    if may_be_moved(found.low, found.high, uneven, ahead):
        return Ruling(
            Verdict.UNDECIDED,
            f"with what the calls just before use too much of the CPU, timed calls would take "
            f"{ahead:.3g} times as long: their work may be done there",
        )
    return None


def _too_wide(found: Comparison, sessions: Sequence[Session]) -> bool:
    """Whether an interval over processes leaves 1 out and decides nothing all the same."""
    over = _across(sessions)
    return over is not None and not found.low <= 1.0 <= found.high and decide_across(over) is None


def _processes(sessions: Sequence[Session]) -> str:
    return f" in {len(sessions)} processes" if len(sessions) > 1 else ""


def _by_few(found: Comparison, figures: str, load: str) -> Ruling:
    """The ruling where calls take so long that only a handful of pairs was timed."""
    seen = figures.replace("95% interval", "seen")
    if found.high < _FAR_SLOWER:
        return Ruling(Verdict.SLOWER, f"{seen}{load}")
    words = f"its calls take {found.ours_us * 1e-6:.3g} s, so the time was up early: {seen}{load}"
    return Ruling(Verdict.UNDECIDED, words)


def _side(session: Session) -> str | None:
    found = session.found
    if found is None:
        return None
    return "faster" if found.low > 1.0 else "slower" if found.high < 1.0 else None


def throughput(target: Target, found: Comparison, bandwidth_gbs: float) -> dict[str, Any]:
    """``bandwidth_gbs`` and ``roofline_share`` of an evaluation, where they can be said."""
    from kforge_nb.judge.physics import moved_bytes

    achieved = moved_bytes(target) / (found.ours_us * 1e-6) / 1e9 if found.ours_us > 0 else None
    share = achieved / bandwidth_gbs if achieved is not None and bandwidth_gbs > 0 else None
    return {"bandwidth_gbs": achieved, "roofline_share": share}
