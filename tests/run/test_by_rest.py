"""Which kernels go with which rest, from decisions alone."""

from __future__ import annotations

import pytest

from kforge_nb.run.by_rest import (
    decided_for,
    installs_any,
    rests_with_kernels,
    targets_of,
    unmeasured,
)

ADVICE = {"rest": "inductor", "reason": ""}


def decision(target, installed, **rests):
    """One decision; ``rests`` by name, with ``_`` for ``-``."""
    said = [
        {"rest": rest.replace("_", "-"), "installed": on, "reason": ""}
        for rest, on in rests.items()
    ]
    found = {"target": target, "installed": installed}
    return {**found, "rests": said} if said else found


DECISIONS = [
    decision(0, True, eager=True, inductor=True),
    decision(1, False, eager=True, inductor=False),
    decision(2, False),
]


def test_each_measured_rest_has_its_own_kernels():
    """Exactly those that were decided for it, whatever the best rest installs."""
    assert targets_of(DECISIONS, "eager") == {0, 1}
    assert targets_of(DECISIONS, "inductor") == {0}
    assert rests_with_kernels(DECISIONS) == ["eager", "inductor"]
    assert [installs_any(d) for d in DECISIONS] == [True, True, False]


@pytest.mark.parametrize(
    ("decisions", "advice", "rest", "home"),
    [
        (DECISIONS, ADVICE, "eager", "eager"),
        (DECISIONS, ADVICE, "cudagraphs", "eager"),
        (DECISIONS, ADVICE, "inductor-cudagraphs", "inductor"),
        (DECISIONS[1:2], {"rest": "none"}, "inductor-cudagraphs", "inductor"),
        ([decision(0, True, cudagraphs=True)], None, "inductor", "cudagraphs"),
        ([decision(0, True)], ADVICE, "eager", "inductor"),
        ([decision(0, True)], {"rest": "none"}, "eager", ""),
        ([decision(0, True)], None, "eager", "eager"),
    ],
)
def test_a_rest_that_was_not_measured_follows_the_nearest(decisions, advice, rest, home):
    """Recordings follow what they record, others the recommendation; the user is told of both."""
    assert decided_for(decisions, advice, rest) == home
    told = unmeasured(decisions, advice, rest)
    assert bool(told) == (home != rest)
    assert not told or (f"rest={rest!r} nobody has measured" in told and home in told)
