"""Equal means interchangeable: spelling and names do not count, everything else does."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from kforge_nb.targets.partition import cut

X = torch.randn(4, 8)


def mark(build, *inputs, name="h"):
    """Fingerprint of the single cut of a hand-made graph."""
    graph = fx.Graph()
    places = [graph.placeholder(f"{name}{i}") for i in range(len(inputs))]
    result = build(graph, *places)
    graph.output((result,))
    (found,) = cut(fx.GraphModule({}, graph), list(inputs), "op")
    return found.fingerprint


def function(target, *args, **kwargs):
    return lambda g, *p: g.call_function(target, (*p, *args), kwargs)


def method(target, *args, **kwargs):
    return lambda g, *p: g.call_method(target, (*p, *args), kwargs)


SAME = {
    "addition": [
        (function(torch.add), 2),
        (function(operator.add), 2),
        (method("add"), 2),
        (function(torch.ops.aten.add.Tensor), 2),
        (function(torch.add, alpha=1), 2),
    ],
    "softmax": [
        (function(F.softmax, dim=-1), 1),
        (function(torch.softmax, -1), 1),
        (method("softmax", -1), 1),
        (function(F.softmax, -1, 3, None), 1),
        (method("softmax", dim=-1), 1),
    ],
    "mean": [
        (method("mean", -1, keepdim=True), 1),
        (function(torch.mean, dim=-1, keepdim=True), 1),
        (method("mean", -1, True), 1),
    ],
    "cast": [
        (method("to", torch.float64), 1),
        (method("double"), 1),
        (method("to", dtype=torch.float64), 1),
    ],
    "relu": [
        (function(torch.relu), 1),
        (function(F.relu), 1),
        (method("relu"), 1),
        (function(F.relu, inplace=False), 1),
    ],
    "division": [
        (function(operator.truediv, 2), 1),
        (function(torch.div, 2), 1),
        (method("div", 2), 1),
    ],
}


@pytest.mark.parametrize("name", SAME)
def test_spellings_of_one_operation_are_equal(name):
    """Functions, methods, operators and aten overloads of the same call have one fingerprint."""
    marks = {mark(build, *[X] * count) for build, count in SAME[name]}
    assert len(marks) == 1


def test_names_do_not_count():
    """Placeholders named otherwise: the same target."""
    build = function(torch.tanh)
    assert mark(build, X, name="a") == mark(build, X, name="L_self_modules_3_")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((function(torch.add), X, X), (function(torch.sub), X, X)),
        ((function(torch.add), X, X), (function(torch.add, alpha=2), X, X)),
        ((function(torch.softmax, -1), X), (function(torch.softmax, 0), X)),
        ((function(torch.mul, 2.0), X), (function(torch.mul, 3.0), X)),
        ((function(torch.tanh), X), (function(torch.tanh), X[:2])),
        ((function(torch.tanh), X), (function(torch.tanh), X.t().contiguous().t())),
        ((function(torch.tanh), X), (function(torch.tanh), X.double())),
        ((function(F.gelu), X), (function(F.gelu, approximate="tanh"), X)),
        ((function(torch.sub), X, X), (lambda g, a, b: g.call_function(torch.sub, (a, a)), X, X)),
    ],
    ids=["operator", "alpha", "dim", "constant", "shape", "stride", "dtype", "option", "operand"],
)
def test_what_changes_the_kernel_changes_the_fingerprint(one, two):
    """Operators, constants and every part of the variant count."""
    assert mark(*one) != mark(*two)


def test_an_axis_of_size_one_has_no_stride():
    """Layouts that differ only in a meaningless stride are one variant."""
    odd = torch.randn(8).as_strided((1, 8), (99, 1))
    assert mark(function(torch.tanh), odd) == mark(function(torch.tanh), torch.randn(1, 8))


def test_in_place_and_out_of_place_are_kept_apart(captured):
    """``+=`` and ``+`` allocate differently; the fingerprint says which it was."""

    def plain(x):
        h = torch.exp(x)
        return h + 1

    def in_place(x):
        h = torch.exp(x)
        h += 1
        return h

    graphs = [captured(fn, torch.randn(4, 8)) for fn in (plain, in_place)]
    marks = [cut(g.gm, g.example_inputs)[0].fingerprint for g in graphs]
    assert marks[0] != marks[1]


def test_handing_back_does_not_count(captured):
    """A dropout in eval or a cast to the same dtype changes nothing, so it is left out."""
    plain = captured(lambda x: F.gelu(x), torch.randn(4, 8))
    noisy = captured(
        lambda x: F.dropout(F.gelu(x.to(torch.float32)), 0.1, training=False), torch.randn(4, 8)
    )
    marks = [cut(g.gm, g.example_inputs)[0].fingerprint for g in (plain, noisy)]
    assert marks[0] == marks[1]
