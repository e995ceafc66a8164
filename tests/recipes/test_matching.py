"""Which graphs the tuned families take, and which they leave to the generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kforge_nb.candidates.recipes.families import tuned_families
from kforge_nb.candidates.recipes.family import default_params
from tests.helpers import make_target
from tests.recipes.cases import CASES, channel_stats, inputs_of, randn, rms


def taker(fn: Any, *inputs: torch.Tensor) -> str | None:
    """Name of the first family that takes the graph."""
    target = make_target(fn, *inputs)
    return next((f.name for f in tuned_families() if f.match(target) is not None), None)


@pytest.mark.parametrize("name", CASES)
def test_takes(name: str) -> None:
    """Each family takes the targets it was written for."""
    family, fn, _ = CASES[name]
    assert taker(fn, *inputs_of(name, torch.float32)) == family


def relu_in_place_of_input(x: Any) -> Any:
    return F.relu(x, inplace=True)


def relu_in_place_of_shared(x: Any) -> Any:
    y = x + 1
    return F.relu(y, inplace=True), y * 2


def relu_in_place_of_own(x: Any) -> Any:
    return F.relu(x + 1, inplace=True)


def in_place_through_an_alias(x: Any) -> Any:
    y = x + 1
    z = y.contiguous()
    return z.relu_() * 1, y * 2


def type_as_writes_to_the_input(x: Any, y: Any) -> Any:
    return x.type_as(y).relu_()


def rms_of_another(x: Any, y: Any) -> Any:
    return x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)


def rms_with_used_scale(x: Any) -> Any:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return x * scale, scale


def rms_of_cubes(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + 1e-6)


def rms_without_keepdim(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1).unsqueeze(-1) + 1e-6)


def rotate_the_other_way(x: Any, c: Any, s: Any) -> Any:
    return x * c + torch.cat((x[..., 16:], -x[..., :16]), dim=-1) * s


def rotate_uneven(x: Any, c: Any, s: Any) -> Any:
    return x * c + torch.cat((-x[..., 8:], x[..., :8]), dim=-1) * s


def rotate_another(x: Any, c: Any, s: Any) -> Any:
    return x * c + torch.cat((-s[..., 16:], s[..., :16]), dim=-1) * s


def entropy(**options: Any) -> Any:
    return lambda x, y: F.cross_entropy(x, y, **options)


X, ROW, LABELS = randn(4, 6, 32), randn(32, seed=1), torch.arange(6)
IMAGE = randn(2, 6, 8, 8)
REFUSED: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "softmax over the first axis": (lambda x: x.softmax(0), (X,)),
    "softmax of float64": (lambda x: x.softmax(-1), (X.double(),)),
    "softmax and its sum": (lambda x: x.softmax(-1).sum(-1), (X,)),
    "two softmaxes": (lambda x: x.softmax(-1).softmax(-1), (X,)),
    "softmax of a strided row": (lambda x: x.softmax(-1), (X.transpose(1, 2),)),
    "softmax of a product of matrices": (lambda x, y: (x @ y).softmax(-1), (X, randn(32, 8))),
    "add with alpha": (lambda x: torch.add(x, x, alpha=2).softmax(-1), (X,)),
    "input written": (relu_in_place_of_input, (X,)),
    "value written that is read elsewhere": (relu_in_place_of_shared, (X,)),
    "value written through an alias": (in_place_through_an_alias, (X,)),
    "input written through type_as": (type_as_writes_to_the_input, (X, X.clone())),
    "rms of another tensor": (rms_of_another, (X, X.clone())),
    "rms whose scale is returned": (rms_with_used_scale, (X,)),
    "rms of cubes": (rms_of_cubes, (X,)),
    "rms without keepdim": (rms_without_keepdim, (X,)),
    "rms in 16 bits": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        (X.half(),),
    ),
    "layer norm of a transposed row": (lambda x: F.layer_norm(x, (6,)), (X.transpose(1, 2),)),
    "batch norm in training": (
        lambda x, m, v: F.batch_norm(x, m, v, training=True),
        (IMAGE, *channel_stats(6)[:2]),
    ),
    "rotation to the other side": (rotate_the_other_way, (X, X[:1], X[:1])),
    "rotation of uneven parts": (rotate_uneven, (X, X[:1], X[:1])),
    "rotation of another tensor": (rotate_another, (X, X[:1], X.clone())),
    "smoothed labels": (entropy(label_smoothing=0.1), (X[0], LABELS)),
    "weighted classes": (
        lambda x, y, w: F.cross_entropy(x, y, w),
        (X[0], LABELS, ROW),
    ),
    "probabilities as labels": (entropy(), (X[0], X[1])),
    "pooling in ceil mode": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (IMAGE,)),
    "dilated pooling": (lambda x: F.max_pool2d(x, 2, 2, dilation=2), (IMAGE,)),
    "pooling of turned planes": (lambda x: F.max_pool2d(x, 2), (IMAGE.transpose(2, 3),)),
    "adaptive pooling of uneven windows": (lambda x: F.adaptive_avg_pool2d(x, 3), (IMAGE,)),
    "dropout in training": (lambda x: F.silu(F.dropout(x, 0.5, True)), (X,)),
    "unknown operator": (lambda x: F.silu(torch.erfinv(x)), (X,)),
    "division with rounding": (lambda x: F.silu(torch.div(x, 2, rounding_mode="floor")), (X,)),
    "integers": (lambda x: F.relu(x), (torch.arange(12),)),
    "no activation": (lambda x, y: x * y + 1, (X, X.clone())),
}


@pytest.mark.parametrize("name", REFUSED)
def test_leaves(name: str) -> None:
    """A graph with anything unexpected is left alone."""
    fn, inputs = REFUSED[name]
    assert taker(fn, *inputs) is None


TAKEN: dict[str, tuple[Any, tuple[torch.Tensor, ...], str]] = {
    "in place on a value of its own": (relu_in_place_of_own, (X,), "activation"),
    "dropout in inference": (lambda x: F.silu(F.dropout(x, 0.5, False)), (X,), "activation"),
    "operator spelled as method": (lambda x: torch.add(x, 1).softmax(dim=2), (X,), "softmax"),
    "aten overload": (
        lambda x: torch.ops.aten.softmax.int(torch.ops.aten.mul.Tensor(x, 0.5), -1),
        (X,),
        "softmax",
    ),
    "chunked gate": (
        lambda x: F.silu(x.chunk(2, dim=-1)[0]) * x.chunk(2, dim=-1)[1],
        (X,),
        "activation",
    ),
    "two batch norms": (
        lambda x, m, v, y: F.relu(F.batch_norm(x, m, v) + F.batch_norm(y, m, v)),
        (IMAGE, *channel_stats(6)[:2], IMAGE.clone()),
        "batch_norm",
    ),
    "view of labels and logits": (
        lambda x, y: F.cross_entropy(x.view(-1, 32), y.view(-1)),
        (X, torch.zeros(4, 6, dtype=torch.int64)),
        "cross_entropy",
    ),
    "weight that starts inside a larger tensor": (
        lambda x, w: rms(x, w[32:64]),
        (X, randn(96)),
        "rms_norm",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_takes_other_spellings(name: str) -> None:
    """Spellings, harmless in-place writes and views do not hide a target."""
    fn, inputs, family = TAKEN[name]
    assert taker(fn, *inputs) == family


@pytest.mark.parametrize("name", CASES)
def test_first_values_are_defaults_and_plain(name: str) -> None:
    """Parameters are plain JSON, without repeats, and the candidate says which were chosen."""
    target = make_target(CASES[name][1], *inputs_of(name, torch.float32))
    family = next(f for f in tuned_families() if f.match(target) is not None)
    match = family.match(target)
    assert match is not None
    moves = family.parameters(match)
    assert all(len(values) == len(set(values)) and values for values in moves.values())
    assert all(type(v) in (int, float, str, bool) for values in moves.values() for v in values)
    chosen = default_params(family, match)
    candidate = family.emit(match, chosen)
    assert candidate.origin == {"proposer": "recipes", "recipe": family.name, "params": chosen}
    assert candidate.digest == family.emit(match, chosen).digest
    assert candidate.plan.kernels[0].args[-1] == "i32:nthreads"
