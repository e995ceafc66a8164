"""Recipes against the exact result: every family, dtype, odd shapes, strides and hard inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kforge_nb.targets.float64 import reference
from tests.helpers import make_target
from tests.recipes.cases import CASES, inputs_of, randn, with_first

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def errors(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Largest error of ours and of eager, in units of the exact result's own scale."""
    fine = torch.isfinite(exact) & torch.isfinite(eager)
    if not bool(fine.any()):
        return 0.0, 0.0
    scale = exact[fine].abs().max().clamp_min(1e-30)
    ours = ((got.double() - exact)[fine].abs().max() / scale).item()
    return ours, ((eager.double() - exact)[fine].abs().max() / scale).item()


def check(run: Any, target: Any, inputs: list[torch.Tensor]) -> None:
    """Same NaN and infinity places as eager, error at most twice eager's and a few roundings."""
    eager = target.graph(*[t.clone() for t in inputs])
    exact = reference(target.graph, inputs)
    for got, want, true in zip(run(*inputs), eager, exact, strict=True):
        assert torch.equal(got.isnan(), want.isnan()), "NaN stands elsewhere"
        assert torch.equal(got.isinf(), want.isinf()), "infinity stands elsewhere"
        assert torch.equal(got[got.isinf()], want[got.isinf()])
        ours, theirs = errors(got, want, true)
        assert ours <= 2.0 * theirs + 4.0 * torch.finfo(want.dtype).eps, (ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_matches_the_exact_result(
    name: str, dtype: torch.dtype, recipe: Callable[..., Any]
) -> None:
    """Each family is as exact as eager in every dtype, on odd shapes and strides."""
    inputs = inputs_of(name, dtype)
    target = make_target(CASES[name][1], *inputs)
    check(recipe(target), target, inputs)


HARD: dict[str, Callable[[torch.Tensor], Any]] = {
    "zeros": lambda x: x.zero_(),
    "constant": lambda x: x.fill_(3.0),
    "tiny": lambda x: x.mul_(1e-30),
    "large": lambda x: x.mul_(1e4),
    "huge": lambda x: x.mul_(1e18),
    "mean far above spread": lambda x: x.mul_(0.01).add_(100.0),
    "one infinity": lambda x: x.view_as(x)[(0,) * x.dim()].fill_(float("inf")),
    "one minus infinity": lambda x: x[(0,) * x.dim()].fill_(float("-inf")),
    "one NaN": lambda x: x[(-1,) * x.dim()].fill_(float("nan")),
    "all minus infinity": lambda x: x[0].fill_(float("-inf")),
    "one outlier": lambda x: x[(0,) * x.dim()].fill_(1e4),
}


@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("name", CASES)
def test_hard_inputs(name: str, hard: str, recipe: Callable[..., Any]) -> None:
    """Infinities and NaN stand where eager's stand; extreme scales cost no digits."""
    inputs = with_first(name, torch.float32, HARD[hard])
    target = make_target(CASES[name][1], *inputs)
    check(recipe(target), target, inputs)


@pytest.mark.parametrize("isa", ["avx2", "portable"])
@pytest.mark.parametrize("name", CASES)
def test_narrower_instruction_sets(name: str, isa: str, recipe: Callable[..., Any]) -> None:
    """The kernels for AVX2 and for any CPU compute the same as the widest ones."""
    from kforge_nb.candidates.recipes.families.isa import available_isas

    if isa not in available_isas():
        pytest.skip(f"this CPU has no {isa}")
    inputs = inputs_of(name, torch.float16 if name == "silu-up" else torch.float32)
    target = make_target(CASES[name][1], *inputs)
    check(recipe(target, isa=isa), target, inputs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cross_entropy(reduction: str, dtype: torch.dtype, recipe: Callable[..., Any]) -> None:
    """Losses with ignored labels, over several blocks, with rows of infinities."""
    logits = (randn(9, 5001) * 5).to(dtype)
    logits[1, 7] = float("inf")
    logits[2, 9] = float("-inf")
    labels = torch.tensor([0, 7, 9, -100, 5000, 3, 8, 1, 2])

    def fn(x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(x.float(), y, reduction=reduction)

    target = make_target(fn, logits, labels)
    run = recipe(target)
    check(run, target, [logits, labels])
    check(run, target, [logits.clamp(-20, 20), labels])
    check(run, target, [logits.clamp(-20, 20), torch.full_like(labels, -100)])


@pytest.mark.parametrize(
    "params", [{"stores": "stream"}, {"overlap": False}, {"overlap": True}, {"ahead": 0}], ids=str
)
def test_every_move_computes_the_same(params: dict[str, Any], recipe: Callable[..., Any]) -> None:
    """The parameters that the search moves change speed only."""
    for name, fn in (("softmax", lambda x: x.softmax(-1)), ("layer_norm", _norm)):
        inputs = [randn(70, 512)]
        target = make_target(fn, *inputs, name=name)
        plain, moved = recipe(target)(*inputs)[0], recipe(target, **params)(*inputs)[0]
        torch.testing.assert_close(moved, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_few_rows_fill_and_drain_the_stages(rows: int, recipe: Callable[..., Any]) -> None:
    """Layer norm has up to three rows under way: fewer than that, and a ragged end, are right."""
    x = randn(rows, 531) + 3.0
    target = make_target(lambda v: torch.nn.functional.layer_norm(v, (531,)), x)
    staged, plain = recipe(target, overlap=2)(x)[0], recipe(target, overlap=False)(x)[0]
    torch.testing.assert_close(staged, plain, rtol=1e-6, atol=1e-6)
    want = torch.nn.functional.layer_norm(x, (531,))
    torch.testing.assert_close(staged, want, rtol=1e-5, atol=1e-5)


def _norm(x: Any) -> Any:
    return torch.nn.functional.layer_norm(x, (512,))


@pytest.mark.parametrize("name", ["softmax", "layer", "group", "last", "silu", "entropy", "pool"])
def test_two_threads_compute_what_one_does(name: str, recipe: Callable[..., Any]) -> None:
    """Sharing rows between threads leaves no row out and changes no bit."""
    functional = torch.nn.functional
    wide, image = randn(301, 512), randn(1, 32, 40, 41)
    cases: dict[str, tuple[Any, list[torch.Tensor]]] = {
        "softmax": (lambda x: x.softmax(-1), [wide]),
        "layer": (_norm, [wide]),
        "group": (lambda x: functional.group_norm(x, 8), [image]),
        "last": (
            lambda x: functional.group_norm(x, 8),
            [image.to(memory_format=torch.channels_last)],
        ),
        "silu": (lambda x: functional.silu(x), [wide]),
        "entropy": (functional.cross_entropy, [wide, torch.arange(301)]),
        "pool": (lambda x: functional.max_pool2d(x, 2), [image]),
    }
    fn, inputs = cases[name]
    target = make_target(fn, *inputs)
    one, two = recipe(target)(*inputs)[0], recipe(target, 2)(*inputs)[0]
    assert torch.equal(one, two)


def test_gelu_far_to_the_left_is_what_double_precision_gives(recipe: Callable[..., Any]) -> None:
    """Where 1 + tanh is 0 in float64 the result is 0 too, for huge numbers as well."""
    for how in ("tanh", "none"):
        x = -torch.cat([torch.linspace(8.4, 40.0, 500), torch.tensor([1e4, 1e30, 3e38])])
        target = make_target(lambda t, how=how: torch.nn.functional.gelu(t, approximate=how), x)
        assert torch.equal(recipe(target)(x)[0], torch.zeros_like(x))


def test_gelu_of_infinity_follows_the_layout(recipe: Callable[..., Any]) -> None:
    """Contiguous tensors and halves of a wider one go to different libraries in eager."""
    for value in (float("inf"), float("-inf")):
        wide = torch.full((40, 128), value)
        for x in (wide, wide[:, :64]):
            target = make_target(lambda t: torch.nn.functional.gelu(t), x)
            got, want = recipe(target)(x)[0], torch.nn.functional.gelu(x)
            assert torch.equal(got.isnan(), want.isnan())
