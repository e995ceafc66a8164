"""The rule over processes, tried on streams that were recorded from real pairs of processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kforge_nb.judge.ruling import merged, settled
from kforge_nb.judge.statistics import (
    LEAST_PROCESSES,
    MOST_PROCESSES,
    Interval,
    across,
    decide_across,
)
from kforge_nb.judge.timing import Session

STREAMS = json.loads((Path(__file__).parent / "same_kernel_streams.json").read_text())["sessions"]
CONFIRMATIONS = 400


def _ratios(load: str) -> np.ndarray:
    """One ratio of each recorded pair of processes, and its inverse: sides have no names."""
    logs = [float(np.median(row["log_ratios"])) for row in STREAMS if row["load"] == load]
    return np.exp(np.array([*logs, *(-log for log in logs)]))


def _confirm(ratios: np.ndarray, true_ratio: float, generator: np.random.Generator) -> str:
    """A whole confirmation of processes drawn from recorded ones, one process after the other."""
    drawn = generator.choice(ratios, MOST_PROCESSES) * true_ratio
    for count in range(LEAST_PROCESSES, MOST_PROCESSES + 1):
        decision = decide_across(across(drawn[:count]))
        if decision is not None:
            return decision
    return "undecided"


@pytest.mark.parametrize("load", ["quiet", "overloaded"])
def test_the_same_kernel_is_seldom_told_from_itself(load):
    """A/A at the stated level: decided in at most 5% of the confirmations, whatever the load."""
    generator = np.random.default_rng(11)
    ratios = _ratios(load)
    found = [_confirm(ratios, 1.0, generator) for _ in range(CONFIRMATIONS)]

    assert sum(f in ("faster", "slower") for f in found) <= 0.05 * CONFIRMATIONS


@pytest.mark.parametrize("load", ["quiet", "overloaded"])
def test_a_slower_twin_is_not_called_faster(load):
    """3% slower is called faster in at most 1% of the confirmations, whatever the load."""
    generator = np.random.default_rng(12)
    ratios = _ratios(load)
    found = [_confirm(ratios, 1 / 1.03, generator) for _ in range(CONFIRMATIONS)]

    assert found.count("faster") <= 0.01 * CONFIRMATIONS


def test_a_faster_twin_is_found():
    """5% faster on a quiet machine: accepted in at least 80%, undecided in at most 15%."""
    generator = np.random.default_rng(13)
    ratios = _ratios("quiet")
    found = [_confirm(ratios, 1.05, generator) for _ in range(CONFIRMATIONS)]

    assert found.count("faster") >= 0.80 * CONFIRMATIONS
    assert found.count("undecided") <= 0.15 * CONFIRMATIONS


def test_processes_are_the_units():
    """Ten thousand pairs in processes that differ say less than the processes' spread."""
    ours = [1e-3] * 100
    sessions = [
        Session(ours=ours, against=[1e-3 * r] * 100, found=across([r, r, r]))
        for r in (1.02, 0.99, 1.03)
    ]
    found = merged("eager", sessions)

    assert found.n == 300
    assert found.low < 1.0 < found.high
    assert found.ratio == pytest.approx(1.0132, abs=1e-3)
    assert not settled(sessions)


def test_a_clear_winner_needs_three_processes_and_no_more():
    """Twice as fast is settled as soon as there is an interval; two processes give none."""
    sessions = [
        Session(ours=[1e-3] * 12, against=[1e-3 * r] * 12, found=across([r, r, r]))
        for r in (2.0, 2.1, 1.95)
    ]

    assert not settled(sessions[:2])
    assert settled(sessions)
    assert merged("eager", sessions).low > 1.0


def test_a_stop_settles():
    """What was stopped is not gone on with."""
    assert settled([Session(stopped=True)])


def test_too_few_processes_give_no_interval():
    """Two ratios have no spread worth the name: asking for an interval is a mistake."""
    with pytest.raises(ValueError, match="2 processes"):
        across([1.1, 1.2])


def test_a_very_wide_interval_decides_nothing():
    """Three lucky processes on an overloaded machine are no evidence, far ones are."""
    assert decide_across(Interval(2.0, 1.05, 3.8, 30)) is None
    assert decide_across(Interval(4.0, 1.8, 9.0, 30)) == "faster"
