"""What a cell with a kernel of one's own is answered with."""

from __future__ import annotations

import pytest

from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.run.hand_in import KernelVerdict


def verdict(found, *, ended):
    """The answer for a kernel that was timed against eager."""
    timing = Comparison("eager", 1308.18, 64.75, 2024.93, 10, 0.9, 1594.1)
    evaluation = Evaluation(verdict=found, reason="as timed", timings=(timing,))
    return repr(KernelVerdict(6, evaluation, "mine", ended))


def test_figures_are_written_as_everywhere():
    """A ratio has no more digits than in the views, and times have the unit that fits."""
    assert "  1308× over eager (64.8 to 2025), 900 ns against 1.59 ms" in verdict(
        Verdict.ACCEPTED, ended=False
    )


@pytest.mark.parametrize(
    ("found", "ended", "told"),
    [
        (Verdict.ACCEPTED, True, True),
        (Verdict.ACCEPTED, False, False),
        (Verdict.SLOWER, True, False),
    ],
)
def test_a_kernel_for_a_run_that_has_ended_says_how_it_gets_into_the_model(found, ended, told):
    """Nothing goes on by itself there; a live run decides at its end, and a slower one never."""
    assert ("%kforge resume mine" in verdict(found, ended=ended)) is told
