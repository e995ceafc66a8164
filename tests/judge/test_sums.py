"""How many numbers a target sums, in what arithmetic, and what that allows and does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from judge_kernels import target_of

from kforge_nb.judge.cases import build_cases, make_case, secret_generator
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.draws import hard_set
from kforge_nb.judge.sums import LONGEST, sums_of

COUNTS = {
    "groups are an argument": (lambda x: F.group_norm(x, 2), (3, 8, 5, 7), 4 * 5 * 7),
    "two dimensions": (lambda x: x - x.mean((1, 2), keepdim=True), (3, 40, 50), 2000),
    "the shape of a norm": (lambda x: F.layer_norm(x, (5, 26)), (7, 5, 26), 130),
    "a window": (lambda x: F.avg_pool2d(x, 3), (1, 1, 9, 9), 9),
    "nothing": (lambda x: torch.relu(x) * 2, (3, 40), 0),
    "no more than can be taken one by one": (lambda x: x.sum(), (1 << 17,), LONGEST),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_reduction_is_looked_at(name):
    """Also those that leave no trace in the shapes of inputs and outputs."""
    function, shape, count = COUNTS[name]
    x = torch.randn(*shape)
    found = sums_of(target_of(function, x).graph, [x], [function(x)]).most
    assert found == count if name != "a window" else found >= count


def _mixed(x, w):
    h = x.to(torch.float32)
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _pure(x, w):
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _float32(x, w):
    h = x.to(torch.float32)
    with np.errstate(invalid="ignore"):
        total = np.add.accumulate(h.square().numpy()[:, ::-1], axis=-1)[:, -1:].copy()
    return w * (h * (1.0 / (torch.from_numpy(total) / x.shape[-1] + 1e-6).sqrt())).double()


def _half(x, w):
    return w * _float32(x, w).div(w).half().double()


@pytest.mark.parametrize(
    ("target", "kernel", "right"),
    [(_mixed, _float32, True), (_mixed, _half, False), (_pure, _float32, False)],
    ids=["as the target", "in half", "where the target is exact"],
)
def test_a_double_that_was_made_of_floats_is_as_exact_as_they(target, kernel, right):
    """Rows of 33 are too few for eager's luck to even out, so many draws are tried."""
    inputs = [torch.randn(4, 33).double(), torch.randn(33).double()]
    graph = target_of(target, *inputs).graph
    wrong = 0
    for _ in range(200):
        case = make_case(graph, "specials", hard_set("specials", inputs, secret_generator()))
        wrong += check_output(case.expected[0], kernel(*case.inputs), "o", "s").wrong is not None
    assert wrong == 0 if right else wrong > 100  # in some draws a NaN is in every row


def _one_by_one(x, groups, off=1.0):
    """A group norm whose sums are taken one number after the other in float32."""
    rows = x.reshape(groups * x.shape[0], -1)
    n = rows.shape[1]

    def total(values):
        return torch.from_numpy(np.add.accumulate(values.numpy(), axis=-1)[:, -1:].copy())

    middle = total(rows) / n
    spread = total((rows - middle).square()) / n * off
    return F.silu(((rows - middle) / (spread + 1e-5).sqrt()).view(x.shape))


def test_equal_numbers_may_be_summed_one_by_one():
    """Among zeros each rounding goes the same way; a variance that is off by a hundredth is not."""
    x = torch.randn(2, 36, 13, 11)
    graph = target_of(lambda t: F.silu(F.group_norm(t, 4)), x).graph
    for _ in range(40):
        case = make_case(graph, "impulses", hard_set("impulses", [x], secret_generator()))
        (given,) = case.inputs
        found = check_output(case.expected[0], _one_by_one(given, 4), "o", case.name)
        assert found.wrong is None, found
        assert check_output(case.expected[0], _one_by_one(given, 4, 1.01), "o", case.name).wrong


def test_a_variance_that_cancels_is_wrong_whatever_the_number_of_its_terms():
    """Summed in the best order there is, over a group as large as those of pictures."""
    x = torch.randn(1, 8, 128, 256)
    graph = target_of(lambda t: F.group_norm(t, 2), x).graph
    for _ in range(3):
        case = make_case(graph, "offset", hard_set("offset", [x], secret_generator()))
        rows = case.inputs[0].view(2, -1)
        middle, squares = rows.mean(-1, keepdim=True), rows.square().mean(-1, keepdim=True)
        spread = (squares - middle * middle).clamp_min(0.0)
        once = ((rows - middle) / (spread + 1e-5).sqrt()).view(x.shape)
        assert check_output(case.expected[0], once, "o", case.name).wrong
        parts = rows.view(2, -1, 16)
        middle = parts.mean((1, 2)).view(2, 1)
        twice = (rows - middle) / ((rows - middle).square().mean(-1, keepdim=True) + 1e-5).sqrt()
        assert check_output(case.expected[0], twice.view(x.shape), "o", case.name).wrong is None
        assert check_output(case.expected[0], twice.view(x.shape) + 2.0, "o", case.name).wrong


def _mix(x, w):
    return w @ x


def test_numbers_that_infinities_leave_alone_are_judged_by_more_than_eager_s_luck():
    """A few finite columns of a product: any order is right, a lower precision is not."""
    inputs = [torch.randn(40, 256), torch.randn(16, 40)]
    graph = target_of(_mix, *inputs).graph
    found = 0
    for _ in range(60):
        name = "negative infinities"
        case = make_case(graph, name, hard_set(name, inputs, secret_generator()))
        x, w = case.inputs
        terms = (w.unsqueeze(-1) * x).numpy()
        with np.errstate(invalid="ignore"):  # infinities of both signs
            other = torch.from_numpy(np.add.accumulate(terms[:, ::-1], axis=1)[:, -1].copy())
        assert check_output(case.expected[0], other, "o", name).wrong is None
        short = w.to(torch.bfloat16).float() @ x
        found += check_output(case.expected[0], short, "o", name).wrong is not None
    assert found > 40  # in some draws hardly anything finite is left


POINTWISE = {
    "softplus": (F.softplus, lambda x: torch.log1p(torch.exp(x)), True),
    "softplus, naive": (F.softplus, lambda x: torch.log(1 + torch.exp(x)), False),
    "sigmoid": (torch.sigmoid, lambda x: 1 / (1 + torch.exp(-x)), True),
    "sigmoid, cut": (torch.sigmoid, lambda x: torch.sigmoid(x) * (x > -15), False),
    "exact gelu": (F.gelu, lambda x: 0.5 * x * torch.erfc(-x * 0.70710678), True),
    "cut by relu": (lambda x: torch.relu(x * 1.7 - 2.9),
                    lambda x: torch.relu(torch.addcmul(torch.tensor(-2.9), x, torch.tensor(1.7))),
                    True),
    "cut by relu, off": (lambda x: torch.relu(x * 1.7 - 2.9),
                         lambda x: torch.relu(x * 1.7 - 2.9) * 1.00001, False),
}  # fmt: skip


@pytest.mark.parametrize("name", POINTWISE)
def test_a_tail_is_compared_with_its_own_size(name):
    """Where a whole row lies in it, honest forms are right and those that lose it are not."""
    target, kernel, right = POINTWISE[name]
    x = torch.randn(64, 64)
    graph = target_of(target, x).graph
    for _ in range(20):
        case = make_case(
            graph, "one-sided rows", hard_set("one-sided rows", [x], secret_generator())
        )
        found = check_output(case.expected[0], kernel(*case.inputs), "o", case.name)
        assert (found.wrong is None) is right, found


def test_sets_are_made_for_targets_that_they_say_something_of():
    """Ties where places come out in a known order, rows of one sign where nothing is summed."""

    def names(function):
        target = target_of(function, torch.randn(8, 32))
        return {case.name for case in build_cases(target, secret_generator())}

    assert "ties" in names(lambda x: x.argmax(-1))
    assert "ties" not in names(lambda x: torch.topk(x, 3)[1])
    assert "one-sided rows" in names(torch.tanh)
    assert "one-sided rows" not in names(lambda x: torch.softmax(x, -1))


def test_of_the_sets_that_have_no_room_one_is_tried_and_nobody_knows_which():
    """The largest inputs get few sets; over some draws each of the others comes."""
    target = target_of(lambda x: torch.softmax(x, -1), torch.randn(8, 32))
    found = [
        tuple(case.name for case in build_cases(target, secret_generator(), memory=1))
        for _ in range(40)
    ]
    assert {names[:-1] for names in found} == {found[0][:-1]}
    assert "offset" in found[0]
    assert len({names[-1] for names in found}) > 3
