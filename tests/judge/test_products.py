"""Where masked matrices are multiplied, zeros spread NaN, and nobody must do the same."""

from __future__ import annotations

import torch

from kforge_nb.judge.cases import make_case
from kforge_nb.judge.correctness import check_output
from tests.helpers import make_target


def test_values_where_a_masked_product_has_nan_are_free() -> None:
    """A kernel that stops at the mask has numbers where eager has 0 times NaN, and is not wrong."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.tril() @ y

    x, y = torch.randn(4, 4), torch.randn(4, 3)
    y[2, 1] = float("nan")
    target = make_target(fn, x, y)
    (expected,) = make_case(target.graph, "specials", [x, y]).expected
    assert expected.eager[:, 1].isnan().all()
    sums = torch.stack([(x[i, : i + 1, None] * y[: i + 1]).sum(0) for i in range(4)])
    assert sums[:2].isfinite().all()
    assert check_output(expected, sums, "out0", "specials").wrong is None
    spread = sums.clone()
    spread[3, 2] = float("nan")
    assert check_output(expected, spread, "out0", "specials").wrong is not None


def test_a_product_without_a_mask_keeps_its_nan_and_infinities() -> None:
    """A linear layer and a softmax carry NaN and infinities to known places in any order."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w).softmax(-1)

    x, w = torch.randn(4, 8), torch.randn(6, 8)
    x[1, 1], x[2, 3] = float("nan"), float("inf")
    target = make_target(fn, x, w)
    (expected,) = make_case(target.graph, "specials", [x, w]).expected
    assert expected.eager[1:3].isnan().any(-1).all()
    assert check_output(expected, fn(x, w), "out0", "specials").wrong is None
    swallowed = torch.nan_to_num(fn(x, w), 0.25)
    assert check_output(expected, swallowed, "out0", "specials").wrong is not None


def test_elsewhere_nan_stays_where_eager_has_it() -> None:
    """Without a product a NaN that a kernel swallows is a mistake."""
    x = torch.randn(4, 3)
    x[1, 1] = float("nan")
    target = make_target(lambda v: v * 2, x)
    (expected,) = make_case(target.graph, "specials", [x]).expected
    assert check_output(expected, torch.nan_to_num(x * 2), "out0", "specials").wrong is not None
