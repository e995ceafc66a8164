"""The gated delta rule in C++: as exact as eager, for all layouts, and what is left to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kforge_nb.candidates.recipes.families.delta_reader import read_delta_rule
from kforge_nb.candidates.recipes.families.delta_rule import CpuDeltaRule
from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.targets.target import Target
from tests.helpers import run_cpp
from tests.recipes.delta import by_chunks, by_tokens, delta_inputs, delta_target
from tests.recipes.test_numerics import check

Sizes = tuple[int, int, int, int, int, int]


def ran(target: Target, cache: Any, **params: Any) -> Callable[..., Any]:
    """Runs the family's kernel for the target."""
    family = CpuDeltaRule()
    match = family.match(target)
    assert match is not None
    candidate = family.emit(match, {**default_params(family, match), **params})
    return lambda *inputs: run_cpp(candidate, target, inputs, cache)


@pytest.mark.parametrize(
    ("sizes", "dtype", "options"),
    [
        ((1, 40, 2, 4, 32, 32), torch.float32, {}),
        ((2, 21, 3, 3, 24, 16), torch.bfloat16, {"turned": True}),
        ((1, 19, 1, 2, 16, 64), torch.float16, {"state": True}),
    ],
    ids=str,
)
def test_prefill(sizes: Sizes, dtype: torch.dtype, options: dict[str, bool], tmp_path: Any) -> None:
    """Shared heads, tokens side by side, ragged ends, states."""
    inputs = delta_inputs(*sizes, dtype=dtype, **options)
    target = delta_target(by_chunks, inputs)
    check(ran(target, tmp_path), target, inputs)


@pytest.mark.parametrize("params", [{}, {"columns": 32}, {"isa": "portable"}], ids=str)
def test_decode(params: dict[str, Any], tmp_path: Any) -> None:
    """One token on top of a state; the moves compute the same."""
    inputs = delta_inputs(2, 1, 2, 4, 32, 64, dtype=torch.bfloat16, state=True)
    target = delta_target(by_tokens, inputs)
    check(ran(target, tmp_path, **params), target, inputs)


@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_any_number_of_tokens_at_once(tokens: int, tmp_path: Any) -> None:
    """Groups of tokens change the order of sums and nothing else."""
    inputs = delta_inputs(1, 13, 1, 1, 16, 16, state=True)
    target = delta_target(by_tokens, inputs)
    check(ran(target, tmp_path, tokens=tokens), target, inputs)


def test_parts_are_told_apart_by_what_happens_to_them() -> None:
    """Queries, keys, values and both gates are found whatever the order in which they are given."""

    def swapped(v: Any, beta: Any, k: Any, g: Any, q: Any) -> Any:
        return by_tokens(q, k, v, g, beta)

    q, k, v, g, beta = delta_inputs(1, 3, 2, 2, 16, 16)
    target = delta_target(swapped, [v, beta, k, g, q])
    rule = read_delta_rule(target)
    assert rule is not None
    (captured,) = target.captured.sets()
    for part, tensor in (("q", q), ("k", k), ("v", v), ("decay", g), ("beta", beta)):
        assert torch.equal(captured[getattr(rule, part)], tensor)
    assert rule.scale == pytest.approx(0.25)
    assert rule.epsilon == pytest.approx(1e-6)


def test_odd_sizes_are_left_alone() -> None:
    """Where vectors do not fit the values, there is no recipe and no crash."""
    target = delta_target(by_tokens, delta_inputs(1, 3, 2, 2, 16, 20))
    assert CpuDeltaRule().match(target) is None
