"""Where matrices are multiplied, zeros spread what is not finite, and nobody must do the same."""

from __future__ import annotations

import torch

from kforge_nb.judge.cases import make_case
from kforge_nb.judge.correctness import check_output
from tests.helpers import make_target


def test_values_where_a_masked_product_has_nan_are_free() -> None:
    """A kernel that stops at the mask has numbers where eager has 0 times NaN, and is not wrong."""
    mask = torch.ones(4, 4).tril()

    def fn(x: torch.Tensor, m: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * m) @ y

    x, y = torch.randn(4, 4), torch.randn(4, 3)
    y[2, 1] = float("nan")
    target = make_target(fn, x, mask, y)
    (expected,) = make_case(target.graph, "specials", [x, mask, y]).expected
    assert expected.eager[:, 1].isnan().all()
    sums = torch.stack([(x[i, : i + 1, None] * y[: i + 1]).sum(0) for i in range(4)])
    assert sums[:2].isfinite().all()
    assert check_output(expected, sums, "out0", "specials").wrong is None
    spread = sums.clone()
    spread[3, 2] = float("nan")
    assert check_output(expected, spread, "out0", "specials").wrong is not None


def test_elsewhere_nan_stays_where_eager_has_it() -> None:
    """Without a product a NaN that a kernel swallows is a mistake."""
    x = torch.randn(4, 3)
    x[1, 1] = float("nan")
    target = make_target(lambda v: v * 2, x)
    (expected,) = make_case(target.graph, "specials", [x]).expected
    assert check_output(expected, torch.nan_to_num(x * 2), "out0", "specials").wrong is not None
