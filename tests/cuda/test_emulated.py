"""What CUDA recipes compute, without a GPU: their kernels run on the CPU, thread by thread."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from kforge_nb.candidates.recipes.cuda import emit
from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.targets.float64 import reference
from kforge_nb.targets.target import Target
from tests.cuda.emulate import run_emulated
from tests.cuda.targets import CASES, GENERATED, case, find, on_cuda
from tests.recipes.test_numerics import HARD, errors


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One folder of built emulations for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "emulated"


def check(
    target: Target, inputs: list[torch.Tensor], cache: Path, **params: Any
) -> list[torch.Tensor]:
    """NaN and infinity where eager has them, error at most twice eager's and a few roundings."""
    family, match = find(on_cuda(target))
    chosen = {**default_params(family, match), **params}
    candidate = family.emit(match, chosen)
    found = run_emulated(candidate, on_cuda(target), inputs, cache)
    eager = target.graph(*[t.clone() for t in inputs])
    exact = reference(target.graph, inputs)
    for got, want, true in zip(found, eager, exact, strict=True):
        assert torch.equal(got.isnan(), want.isnan()), "NaN stands elsewhere"
        assert torch.equal(got.isinf(), want.isinf()), "infinity stands elsewhere"
        ours, theirs = errors(got, want, true)
        assert ours <= 2.0 * theirs + 8.0 * torch.finfo(want.dtype).eps, (ours, theirs)
    return found


@pytest.mark.parametrize("name", [*CASES, *GENERATED])
def test_bfloat16(name: str, cache: Path) -> None:
    """Each family is as exact as eager in bfloat16, on odd shapes and strides."""
    target, inputs = case(name, torch.bfloat16)
    check(target, inputs, cache)


@pytest.mark.parametrize(
    "name", ["softmax-scale-mask", "gemma-rms-norm", "silu-up", "group-norm-last", "norm-rotary"]
)
def test_float16(name: str, cache: Path) -> None:
    """Rounding to float16 stands where eager rounds."""
    target, inputs = case(name, torch.float16)
    check(target, inputs, cache)


# torch's CPU gelu makes NaN of infinity, CUDA's does not: ours follows CUDA.
_FOLLOWS_CUDA = {("gelu", "one infinity"), ("gelu", "huge"), ("gelu-tanh", "one minus infinity")}


@pytest.mark.parametrize("name", CASES)
def test_hard_inputs(name: str, cache: Path) -> None:
    """In float32, infinities and NaN stand where eager's stand; extreme scales cost no digits."""
    target, inputs = case(name, torch.float32)
    check(target, inputs, cache)
    for hard, change in HARD.items():
        if (name, hard) in _FOLLOWS_CUDA:
            continue
        changed = [t.clone() for t in inputs]
        change(changed[0])
        try:
            check(target, changed, cache)
        except AssertionError as problem:
            raise AssertionError(f"{hard}: {problem}") from problem


MOVES: list[tuple[str, dict[str, Any]]] = [
    ("softmax-scale-mask", {"keep": "shared"}),
    ("softmax", {"keep": "again", "threads": 32}),
    ("log-softmax", {"keep": "again", "threads": 64, "waves": 1}),
    ("layer-norm", {"keep": "shared", "threads": 64}),
    ("modulated-layer-norm", {"keep": "again", "threads": 8, "rows": 8}),
    ("rms-norm", {"threads": 64, "vector": 2, "stores": "stream"}),
    ("group-norm-silu", {"way": "drawn", "task_kb": 1, "lag": 2, "unroll": 2}),
    ("group-norm-silu", {"way": "two", "task_kb": 1, "block": 128}),
    ("large-group-norm", {"way": "drawn", "task_kb": 1, "lag": 1, "block": 128}),
    ("large-group-norm", {"way": "chain", "task_kb": 1, "chunk_mb": 0}),
    ("group-norm-silu", {"way": "chain", "task_kb": 1, "block": 64}),
    ("large-group-norm", {"way": "two", "task_kb": 1, "vector": 8, "unroll": 2}),
    ("large-group-norm", {"way": "kept", "beside": 1, "block": 128}),
    ("large-group-norm", {"way": "kept", "beside": 6, "block": 64, "unroll": 2}),
    ("bias-group-norm", {"way": "chain", "task_kb": 1, "block": 64}),
    ("bias-group-norm", {"way": "two", "task_kb": 1, "block": 128}),
    ("bias-group-norm", {"way": "kept", "beside": 1, "block": 64}),
    ("group-norm-last", {"task_kb": 1, "vector": 2, "unroll": 2}),
    ("last-bias-group-norm", {"task_kb": 1, "unroll": 8, "vector": 2, "block": 64}),
    ("last-bias-group-norm", {"beside": 0, "block": 64, "unroll": 2, "stores": "stream"}),
    ("last-batch-norm-add-relu", {"unroll": 4, "block": 128, "waves": 1, "vector": 8}),
    ("max-pool-last", {"each": 4, "vector": 2}),
    ("silu-up", {"unroll": 4, "waves": 1, "stores": "stream", "block": 128}),
    ("max-pool", {"each": 4}),
    ("adaptive-pool", {"threads": 64}),
    ("cat-heads", {"bytes": 8, "unroll": 2, "stores": "stream"}),
    ("norm-rotary", {"threads": 64, "rounding": "casts"}),
]


@pytest.mark.parametrize(("name", "params"), MOVES, ids=str)
def test_every_move_computes_the_same(name: str, params: dict[str, Any], cache: Path) -> None:
    """The parameters that the search moves change speed only."""
    target, inputs = case(name, torch.float32)
    check(target, inputs, cache, **params)


@pytest.mark.parametrize("way", ["kept", "two", "chain", "drawn"])
@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 72, 8, 10)], ids=str)
def test_channels_last_in_and_planes_out(shape: tuple[int, ...], way: str, cache: Path) -> None:
    """CUDA's group norm answers in planes whatever comes in: the input is turned first."""
    from tests.helpers import make_target
    from tests.recipes.cases import randn

    def fn(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.silu(torch.nn.functional.group_norm(x, 4, w, b, 1e-6))

    inputs = [(randn(*shape) + 2).bfloat16().to(memory_format=torch.channels_last)]
    inputs += [randn(shape[1], seed=1).bfloat16(), randn(shape[1], seed=2).bfloat16()]
    target = make_target(fn, *inputs)
    planes = torch.empty(shape, device="meta").stride()
    target.outputs = (dataclasses.replace(target.outputs[0], stride=planes),)
    found = check(target, inputs, cache, way=way, task_kb=1)
    assert found[0].is_contiguous()


def test_pixels_in_a_row_are_turned_too(cache: Path) -> None:
    """Attention's group norm sees a channels-last image as (N, C, pixels): it is turned as well."""
    from tests.helpers import make_target
    from tests.recipes.cases import randn

    def fn(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.group_norm(x, 4, w, b, 1e-6).contiguous()

    inputs = [randn(2, 70, 72).bfloat16().transpose(1, 2)]
    inputs += [randn(72, seed=1).bfloat16(), randn(72, seed=2).bfloat16()]
    target = make_target(fn, *inputs)
    assert find(on_cuda(target))[0].name == "group_norm"
    assert check(target, inputs, cache, task_kb=1)[0].is_contiguous()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction: str, cache: Path) -> None:
    """Losses with ignored labels and rows of infinities, and with nothing but ignored labels."""
    from tests.helpers import make_target
    from tests.recipes.cases import randn

    logits = (randn(9, 1000) * 5).to(torch.bfloat16)
    labels = torch.tensor([0, 7, 9, -100, 999, 3, 8, 1, 2])

    def fn(x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(x.float(), y, reduction=reduction)

    target = make_target(fn, logits, labels)
    check(target, [logits, labels], cache)
    logits[1, 7], logits[2, 9] = float("inf"), float("-inf")
    check(target, [logits, labels], cache)
    check(target, [logits.clamp(-9, 9), torch.full_like(labels, -100)], cache)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("softmax", {"threads": 32, "rows": 1, "waves": 1}),
        ("residual-layer-norm", {"early": False, "threads": 32, "rows": 1, "waves": 2}),
        ("rms-norm", {"early": False, "threads": 32, "rows": 2, "waves": 1}),
        ("large-group-norm", {"way": "kept", "beside": 1, "block": 128}),
        ("silu-up", {"waves": 1}),
    ],
    ids=str,
)
def test_few_blocks_do_the_work_of_many(
    name: str, params: dict[str, Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device with one multiprocessor blocks go on to the next rows, parts and tasks."""
    monkeypatch.setattr(emit, "multiprocessors", lambda _: 1)
    target, inputs = case(name, torch.bfloat16)
    check(target, inputs, cache, **params)
