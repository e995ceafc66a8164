"""Rows of different scales: each is held to its own size, and none to less than it is made of."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from kforge_nb.judge.cases import make_case
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.draws import HARD_SETS
from kforge_nb.judge.kin import kin

SHAPE = (8, 64, 28, 28)


class Block(torch.nn.Module):
    """Batch norm in inference, residual add, ReLU: rows cancel, or are cut down to one element."""

    def forward(self, x, r, m, v, w, b):
        return F.relu(F.batch_norm(x, m, v, w, b, False, 0.1, 1e-5) + r)


def case(seed):
    """The set of scaled rows, and scale and shift as a kernel would work them out."""
    generator = torch.Generator().manual_seed(seed)
    x, r = torch.zeros(SHAPE), torch.zeros(SHAPE)
    HARD_SETS["scaled rows"]([x, r], generator)
    m, b = (torch.randn(64, generator=generator) for _ in range(2))
    v, w = (torch.rand(64, generator=generator) + 0.5 for _ in range(2))
    made = make_case(fx.symbolic_trace(Block()), "scaled rows", [x, r, m, v, w, b])
    scale = (w / torch.sqrt(v + 1e-5)).view(1, -1, 1, 1)
    shift = b.view(1, -1, 1, 1) - m.view(1, -1, 1, 1) * scale
    return made, x, r, scale, shift


@pytest.mark.parametrize("seed", range(8))
def test_a_row_that_is_cut_to_little_is_made_of_its_inputs_size(seed):
    """Scale and shift worked out first is as right as eager's own order, in every row."""
    made, x, r, scale, shift = case(seed)
    got = F.relu(torch.addcmul(shift.expand(SHAPE), x, scale) + r)
    assert check_output(made.expected[0], got, "out0", "scaled rows").wrong is None


def test_a_small_row_does_not_hide_behind_a_large_one():
    """One row, made of the smallest inputs, that is off by a thousandth of itself is seen."""
    made, x, r, scale, shift = case(0)
    got = F.relu(torch.addcmul(shift.expand(SHAPE), x, scale) + r)
    sizes = torch.maximum(x.abs().amax(-1), r.abs().amax(-1)).view(-1)
    rows = got.view(-1, SHAPE[-1])
    smallest = min(range(len(rows)), key=lambda i: float(sizes[i]) if rows[i].any() else 9e9)
    rows[smallest] *= 1.001
    assert check_output(made.expected[0], got, "out0", "scaled rows").wrong is not None


def test_rows_are_of_a_kind_where_every_input_is_as_large():
    """Within a factor of two each; the sum or product of two inputs tells more than the larger."""
    a = torch.tensor([[1.1, 0.0], [1.9, 0.1], [1.5, 0.2], [3e3, 1.0], [0.0, 0.0]])
    b = torch.tensor([[5.0, 1.0], [4.1, 0.0], [9.0, 0.0], [5.0, 2.0], [5.0, 1.0]])
    kinds = kin([a, b, torch.ones(2)], a + b).tolist()
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 4


def test_a_factor_for_each_row_tells_rows_apart():
    """Rows that one input makes small are no kin of those that it leaves alone; nor are zeros."""
    x = torch.tensor([[1.1, 0.2], [1.2, 0.3], [1.3, 0.1], [0.0, 0.0], [0.7, 0.1]])
    g = torch.tensor([[1e-5], [1.0], [1.0], [1.0], [1.0]])
    kinds = kin([x, g, torch.ones(2)], x * g).tolist()
    assert kinds[1] == kinds[2]
    assert len({kinds[0], kinds[1], kinds[3], kinds[4]}) == 4


def test_without_an_input_of_its_shape_an_output_has_no_kinds():
    """Outputs of reductions are compared with nothing but themselves."""
    assert kin([torch.ones(3, 4), torch.ones(4)], torch.ones(3, 1)) is None
    assert kin([torch.ones(4)], torch.ones(4)) is None
