"""Comparing and drawing a block at a time must not change what comes out of it."""

from __future__ import annotations

import math

import pytest
import torch

from kforge_nb.judge import blocks
from kforge_nb.judge.cases import secret_generator
from kforge_nb.judge.correctness import Terms, check_output, expect
from kforge_nb.judge.draws import redraw_flat

SHAPES = [(), (0,), (1,), (300,), (3, 0), (7, 13), (2, 3, 40), (2, 8, 1), (2, 3, 4, 50)]


def _values(shape: tuple[int, ...], special: bool) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(shape)
    exact, eager = torch.tanh(x.double() * 1.3), torch.tanh(x * 1.3)
    if special and x.numel() > 3:
        for tensor in (exact, eager):
            tensor.view(-1)[1], tensor.view(-1)[3] = math.nan, math.inf
    return exact, eager


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_verdict_does_not_depend_on_the_size_of_a_block(monkeypatch, shape, special):
    """Budget, figure, words, worst elements and excess are those of the whole tensor at once."""
    exact, eager = _values(shape, special)
    nearby = (exact * 1e-7).abs().nan_to_num(0.0, 0.0, 0.0)
    wrong = torch.where(torch.rand(shape) < 0.3, eager + 0.1, eager)
    for beside in (None, nearby):
        found = []
        for block in (1 << 20, 64, 7):
            monkeypatch.setattr(blocks, "_BLOCK", block)
            made = expect(exact, eager, Terms(30, size=4.0), beside)
            checks = [check_output(made, t, "o", "c") for t in (eager, wrong, eager * math.nan)]
            found.append((made, checks))
        (first, seen), *others = found
        assert (first.special is not None) == (special and exact.numel() > 3)
        for made, checks in others:
            torch.testing.assert_close(made.tolerance, first.tolerance, rtol=1e-6, atol=0.0)
            assert made.budget == pytest.approx(first.budget, rel=1e-12)
            assert [(c.wrong, c.worst) for c in checks] == [(c.wrong, c.worst) for c in seen]
            for one, other in zip(checks, seen, strict=True):
                assert one.excess == pytest.approx(other.excess, rel=1e-6)
                assert one.figure.candidate == pytest.approx(other.figure.candidate, rel=1e-12)


def test_every_element_is_in_one_block(monkeypatch):
    """Blocks neither overlap nor leave anything out, whatever the rows' length."""
    for block in (1, 5, 64, 1000):
        monkeypatch.setattr(blocks, "_BLOCK", block)
        for shape in [(1, 1), (3, 7), (1, 300), (300, 1), (64, 64)]:
            hits = torch.zeros(shape)
            for rows, columns in blocks.tiles(hits):
                hits[rows, columns] += 1
            for at in blocks.spans(hits):
                hits.view(-1)[at] += 1
            assert bool((hits == 2).all())


def test_the_largest_size_leaves_out_what_is_not_finite():
    """NaN and infinity say nothing of the size of the other values, wherever they stand."""
    x = torch.randn(200_000)
    x[77_777] = -9.0
    assert blocks.largest_size(x) == 9.0
    assert blocks.all_finite(x)
    for value in (math.nan, math.inf, -math.inf):
        x[150_000] = value
        assert blocks.largest_size(x) == 9.0
        assert not blocks.all_finite(x)
    assert blocks.largest_size(torch.full((4,), math.nan)) == 0.0
    assert blocks.largest_size(torch.empty(0)) == 0.0


def test_blocks_of_a_drawn_tensor_differ(monkeypatch):
    """Each block is drawn anew: a tensor of one block repeated would be easy to guess."""
    monkeypatch.setattr(blocks, "_BLOCK", 1000)
    for seen in (torch.randn(5000), torch.arange(5000), torch.ones(5000)):
        drawn = redraw_flat(seen, 4000, secret_generator()).view(4, 1000)
        assert drawn.dtype == seen.dtype
        for i in range(3):
            assert not torch.equal(drawn[i], drawn[i + 1])
