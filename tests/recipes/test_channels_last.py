"""Regions of a graph laid out channels-last: which family takes them, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kforge_nb.candidates.recipes.families import tuned_families
from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.candidates.recipes.generator import GENERATOR
from kforge_nb.judge import bench as benches
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.timing import Plan
from kforge_nb.settings import Settings
from tests.helpers import make_target
from tests.recipes.cases import channel_stats, randn
from tests.recipes.test_numerics import check


def last(x: Any) -> Any:
    """The same values with the channels last in memory."""
    return x.contiguous(memory_format=torch.channels_last)


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    return last(randn(*shape, seed=seed))


def norm(x: Any, w: Any, b: Any) -> Any:
    return F.group_norm(x, 4, w, b, 1e-6)


def batch(x: Any, m: Any, v: Any, w: Any, b: Any) -> Any:
    return F.batch_norm(x, m, v, w, b, False, 0.1, 1e-5)


WEIGHTS = [randn(36, seed=1), randn(36, seed=2)]
CHANNEL = randn(1, 36, 1, 1, seed=5)
CASES: dict[str, tuple[str, Callable[..., Any], list[torch.Tensor]]] = {
    "norm, silu, turn": (
        "group_norm",
        lambda x, w, b: last(F.silu(norm(x, w, b))),
        [image(2, 36, 13, 11) + 2, *WEIGHTS],
    ),
    "bias, norm, turn, silu": (
        "group_norm",
        lambda x, c, w, b: F.silu(last(norm(x + c, w, b))),
        [image(1, 36, 13, 11), CHANNEL, *WEIGHTS],
    ),
    "norm of a turned sum": (
        "group_norm",
        lambda x, y, w, b: norm(last(x + y), w, b),
        [image(2, 36, 5, 6), image(2, 36, 5, 6, seed=1), *WEIGHTS],
    ),
    "batch norm, add, relu, turn": (
        "batch_norm",
        lambda x, m, v, w, b, y: last(F.relu(batch(x, m, v, w, b) + y)),
        [image(2, 36, 7, 9), *channel_stats(36), image(2, 36, 7, 9, seed=6)],
    ),
    "max pool": ("pooling", lambda x: F.max_pool2d(x, 3, 2, 1), [image(2, 37, 21, 14)]),
    "average pool": (
        "pooling",
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        [image(2, 20, 9, 8)],
    ),
    "padded average": ("pooling", lambda x: F.avg_pool2d(x, 2, 2, 1), [image(1, 9, 8, 6)]),
    "mean of a plane": ("pooling", lambda x: F.adaptive_avg_pool2d(x, 1), [image(3, 70, 7, 7)]),
}


FULL = ("bias, norm, turn, silu", "max pool", "padded average")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in CASES), *((name, torch.float32) for name in FULL)],
    ids=str,
)
def test_matches_the_exact_result(
    name: str, dtype: torch.dtype, recipe: Callable[..., Any]
) -> None:
    """A tuned family takes each region, turns included, and is as exact as eager."""
    wanted, fn, inputs = CASES[name]
    inputs = [t.to(dtype) for t in inputs]
    target = make_target(fn, *inputs, name=name)
    assert next(f.name for f in tuned_families() if f.match(target)) == wanted
    check(recipe(target), target, inputs)


def test_hard_values_of_a_pool(recipe: Callable[..., Any]) -> None:
    """NaN wins a maximum, infinities stay, a window of minus infinities gives minus infinity."""
    x = image(2, 37, 9, 8)
    x[0, 3, 4, 4], x[1, 36, 0, 0] = float("nan"), float("inf")
    x[0, 20] = float("-inf")
    target = make_target(lambda v: F.max_pool2d(v, 3, 2, 1), x)
    check(recipe(target), target, [x])


def test_two_threads_pool_what_one_does(recipe: Callable[..., Any]) -> None:
    """Lines of results are shared between threads, none is left out."""
    x = image(2, 64, 40, 41)
    target = make_target(lambda v: F.max_pool2d(v, 3, 2, 1), x)
    assert torch.equal(recipe(target, threads=2)(x)[0], F.max_pool2d(x, 3, 2, 1))


def test_gelu_sees_the_layout_that_it_is_given() -> None:
    """The CPU's gelu depends on its input's layout: behind a turn the generator writes it."""
    x = image(2, 8, 5, 6)
    target = make_target(lambda v: last(F.gelu((v * 2).contiguous())), x)
    assert not any(family.match(target) for family in tuned_families())
    assert GENERATOR.match(target) is not None


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    folder: Path = tmp_path_factory.mktemp("last")
    with Judge(Settings(threads=1), folder) as opened:
        yield opened


@pytest.mark.parametrize("name", ["bias, norm, turn, silu", "max pool"])
def test_the_judge_takes_them(name: str, judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn anew, spoilt and timed, inputs and outputs keep their strides: each recipe is right."""
    monkeypatch.setattr(benches, "EVALUATE", Plan(seconds=0.3, narrow=0.5, pairs=10))
    wanted, fn, inputs = CASES[name]
    target = make_target(fn, *inputs, name=name, family=wanted)
    family = next(f for f in tuned_families() if f.match(target))
    match = family.match(target)
    assert match is not None
    found = judge.open(target).evaluate(family.emit(match, default_params(family, match)))
    assert found.correct, f"{found.verdict}: {found.reason} {found.log[:400]}"
