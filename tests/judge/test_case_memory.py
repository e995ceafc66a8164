"""What making input sets holds on to: a device that is nearly full has room for one case."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from judge_kernels import target_of

from kforge_nb.judge.cases import build_cases, make_case, secret_generator


class Seen:
    """A case that is told when nobody holds it any more (slots leave no room for that in one)."""

    def __init__(self, case):
        self.case = case

    def __getattr__(self, name):
        return getattr(self.case, name)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.tanh, [(8, 32)]),
        (lambda x, m, v, w, b: F.batch_norm(x, m, v * v, w, b), [(2, 8, 4, 4), *[(8,)] * 4]),
    ],
    ids=["one input", "sets of one input each"],
)
def test_no_case_is_held_while_the_next_is_made(function, shapes):
    """Beyond what ``keep`` keeps: here nothing but names."""
    target = target_of(function, *(torch.randn(*shape) for shape in shapes))
    made: list[weakref.ref[Seen]] = []

    def make(*args):
        assert not [ref for ref in made if ref() is not None], "an earlier case is still held"
        case = Seen(make_case(*args))
        made.append(weakref.ref(case))
        return case

    names = build_cases(target, secret_generator(), make=make, keep=lambda case: case.name)
    assert len(names) > 6
    assert made[0]() is None
