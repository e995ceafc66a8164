"""Error budgets against float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from judge_kernels import target_of

from kforge_nb.judge import correctness
from kforge_nb.judge.cases import make_case, secret_generator
from kforge_nb.judge.correctness import Terms, check_output, expect
from kforge_nb.judge.draws import hard_set


def _expected(x: torch.Tensor, function):
    return expect(function(x.double()), function(x))


def test_eager_itself_is_right():
    """The budget always admits what eager computes."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(64, 128).to(dtype)
        e = _expected(x, lambda t: torch.softmax(t, -1))
        assert check_output(e, torch.softmax(x, -1), "out0", "x").wrong is None


def test_lower_precision_is_wrong():
    """An fp32 op computed in fp16 is outside the budget, although it looks close."""
    x = torch.randn(64, 128)
    e = _expected(x, torch.tanh)
    assert check_output(e, torch.tanh(x.half()).float(), "out0", "x").wrong


@pytest.mark.parametrize("row", [0, 31, 63])
def test_one_wrong_element_is_found_anywhere(row):
    """Every element counts, in rows of any scale: no row hides behind a larger one."""
    x = torch.randn(64, 128)
    x[row, 77] = 1.0  # a thousandth of next to nothing is within the row's budget
    x *= torch.logspace(-6, 6, 64)[:, None]
    e = _expected(x, lambda t: t * 1.5)
    got = x * 1.5
    got[row, 77] *= 1.001
    found = check_output(e, got, "out0", "x")
    assert found.wrong
    assert found.worst[0]["index"] == [row, 77]


def test_rows_cut_down_by_an_activation_keep_their_plane_s_budget():
    """After relu a row may hold one small number; it still came from cancelling larger ones."""
    x = torch.randn(2, 8, 40, 40)

    def function(t):
        return torch.relu(t * 1.7 - 2.9)

    e = _expected(x, function)
    fused = torch.relu((x.double() * 1.7).float().double() - 2.9).float()
    other = torch.relu(torch.addcmul(torch.tensor(-2.9), x, torch.tensor(1.7)))
    for got in (fused, other):
        assert check_output(e, got, "out0", "x").wrong is None
    assert check_output(e, got + (got > 0) * 1e-4, "out0", "x").wrong


def test_small_rows_of_a_plane_count_by_themselves():
    """Where rows are scaled from small to large, five percent off in the smallest are wrong."""
    x = torch.randn(2, 64, 256)
    target = target_of(lambda t: torch.nn.functional.silu(t) * 1.7, x)
    inputs = hard_set("scaled rows", [x], secret_generator())
    case = make_case(target.graph, "scaled rows", inputs)
    (x,) = case.inputs
    honest = x * torch.sigmoid(x) * 1.7
    assert check_output(case.expected[0], honest, "out0", case.name).wrong is None
    got = honest.clone()
    got.view(128, 256)[x.view(128, 256).square().mean(-1).argmin()] *= 1.05
    assert check_output(case.expected[0], got, "out0", case.name).wrong


def test_how_far_outside_is_known():
    """Barely outside and never computed are told apart."""
    x = torch.ones(4, 4)
    e = _expected(x, lambda t: t)
    assert 1 < check_output(e, x * (1 + 4e-6), "out0", "x").excess < 10
    assert check_output(e, x * 0, "out0", "x").excess > 1000


def test_unwritten_memory_is_said_to_be():
    """Poison that was never overwritten is named in the reason."""
    x = torch.randn(8, 8)
    e = _expected(x, torch.exp)
    got = torch.exp(x)
    got[-1] = float("nan")
    assert "NaN in 8 of 64" in check_output(e, got, "out0", "x").wrong


def test_infinities_must_stand_where_eager_has_them():
    """A kernel that repairs a NaN, or loses the sign of an infinity, is not the same function."""
    x = torch.tensor([[1.0, float("inf"), float("nan"), float("-inf")]])
    e = _expected(x, lambda t: t * 2)
    assert check_output(e, x * 2, "out0", "x").wrong is None
    for place, value in ((1, float("-inf")), (2, 0.0), (3, 3.0e38), (0, float("inf"))):
        got = x * 2
        got[0, place] = value
        assert check_output(e, got, "out0", "x").wrong, (place, value)


def test_integers_must_be_equal():
    """Off by one is wrong for indices and masks."""
    x = torch.arange(10)
    e = expect(x, x)
    assert check_output(e, x.clone(), "out0", "x").wrong is None
    assert "1 of 10" in check_output(e, x + (x == 3), "out0", "x").wrong


def test_an_index_is_that_of_eager_or_of_the_exact_values():
    """Where rounding ties two numbers, eager's first is no more right than the true largest."""
    x = torch.tensor([[9.0, 300.0, 320.0], [1.0, 3.0, 2.0]])  # tanh is 1 for both in float32
    capped = [torch.tanh(t / 30.0) for t in (x, x.double())]
    eager, exact = (c.argmax(-1) for c in capped)
    assert [eager.tolist(), exact.tolist()] == [[1, 1], [2, 1]]
    e = expect(exact, eager)
    for right in (eager, exact):
        assert check_output(e, right.clone(), "out0", "x").wrong is None
    assert "1 of 2" in check_output(e, torch.tensor([0, 1]), "out0", "x").wrong
    assert "1 of 2" in check_output(e, torch.tensor([2, 2]), "out0", "x").wrong


def test_a_sum_taken_one_by_one_is_honest():
    """Sequential fp32 summation of 4096 numbers is inside, dropping one term is not."""
    x = torch.rand(4, 4096) + 0.5
    exact = x.double().sum(-1)
    e = expect(exact, x.sum(-1), Terms(4096))
    one_by_one = torch.zeros(4)
    for i in range(4096):
        one_by_one += x[:, i]
    assert check_output(e, one_by_one, "out0", "x").wrong is None
    assert check_output(e, x[:, :-1].sum(-1), "out0", "x").wrong


@given(st.floats(1e-5, 1.0), st.integers(0, 99))
def test_more_error_is_never_better(size, place):
    """The figure that is reported grows with the error."""
    x = torch.linspace(0.5, 1.5, 100).reshape(10, 10)
    e = _expected(x, lambda t: t)
    small, large = x.clone(), x.clone()
    small.view(-1)[place] += size
    large.view(-1)[place] += 2 * size
    a, b = (check_output(e, got, "out0", "x").figure.candidate for got in (small, large))
    assert b > a > 0


def test_empty_outputs_are_right():
    """A target may return a tensor without elements."""
    empty = torch.empty(0, 4)
    assert check_output(expect(empty.double(), empty), empty, "out0", "x").wrong is None


def test_a_full_device_compares_on_the_cpu(monkeypatch):
    """Running out of device memory while comparing changes where it is done, not the answer."""
    tried = []

    def compare(expected, got, output, case):
        tried.append(got)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("full")
        return compare_really(expected, got, output, case)

    compare_really = correctness._compare
    monkeypatch.setattr(correctness, "_compare", compare)
    value = torch.randn(4, 8)
    found = check_output(expect(value.double(), value), value, "out0", "case")
    assert found.wrong is None
    assert len(tried) == 2


GELUS = {
    "erfc": (lambda x: 0.5 * x * torch.erfc(-x * 0.70710678), True),
    "erf": (lambda x: 0.5 * x * (1 + torch.erf(x * 0.70710678)), True),
    "tanh": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), False),
    "cut at -3": (lambda x: torch.where(x < -3.0, 0.0, torch.nn.functional.gelu(x)), False),
    "off by 1e-5": (lambda x: torch.nn.functional.gelu(x) * 1.00001, False),
    "half": (lambda x: torch.nn.functional.gelu(x).half().float(), False),
}


@pytest.mark.parametrize("name", GELUS)
def test_a_lone_value_among_zeros_is_judged_by_what_its_arithmetic_can_do(name):
    """Far left GELU cancels: exact forms are right in every draw, approximations in none."""
    function, right = GELUS[name]
    target = target_of(torch.nn.functional.gelu, torch.randn(64, 256))
    for _ in range(20):
        inputs = hard_set("impulses", [torch.randn(64, 256)], secret_generator())
        case = make_case(target.graph, "impulses", inputs)
        found = check_output(case.expected[0], function(case.inputs[0]), "out0", case.name)
        assert (found.wrong is None) is right, found


@pytest.mark.parametrize(
    ("eager", "exact", "got", "right"),
    [
        (math.nan, math.inf, math.inf, True),
        (math.inf, math.nan, math.nan, True),
        (math.nan, math.inf, -math.inf, False),
        (math.nan, math.inf, 0.0, False),
        (math.inf, 1e6, 1e6, False),
    ],
    ids=["float64's infinity", "float64's NaN", "the other one", "a number", "an overflow"],
)
def test_what_is_not_finite_may_be_what_float64_has(eager, exact, got, right):
    """A vendor's GELU makes NaN of an infinity, and who computes the formula does not."""
    rows = [torch.ones(4, 4, dtype=torch.float64 if i else torch.float32) for i in range(3)]
    for row, value in zip(rows, (eager, exact, got), strict=True):
        row[1, 2] = value
    found = check_output(expect(rows[1], rows[0]), rows[2].float(), "o", "specials")
    assert (found.wrong is None) is right
