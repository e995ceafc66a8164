"""The gated delta rule's kernel: what it computes, emulated and on a GPU, and that it compiles."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from kforge_nb.candidates.plan import validate
from kforge_nb.candidates.recipes.cuda.delta_rule import CudaDeltaRule
from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.judge.cases import build_cases
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.cuda.cubin import inspect_cubin
from kforge_nb.judge.cuda.policy import scan_cuda
from kforge_nb.targets.target import Target
from tests.cuda.emulate import run_emulated
from tests.cuda.targets import find, on_cuda
from tests.cuda.test_emulated import cache, check
from tests.recipes.delta import by_chunks, by_tokens, delta_inputs, delta_target

__all__ = ["cache"]

Sizes = tuple[int, int, int, int, int, int]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
REAL: Sizes = (1, 130, 16, 32, 128, 128)
DECODE: Sizes = (1, 1, 16, 32, 128, 128)


@pytest.mark.parametrize(
    ("sizes", "options", "dtype"),
    [
        ((1, 40, 2, 4, 32, 32), {}, "fp32"),
        ((1, 40, 2, 4, 32, 32), {"turned": True}, "bf16"),
        ((2, 21, 4, 4, 16, 32), {"state": True}, "fp16"),
        ((1, 19, 3, 3, 96, 8), {"turned": True, "state": True}, "fp32"),
    ],
    ids=str,
)
def test_prefill(sizes: Sizes, options: dict[str, bool], dtype: str, cache: Path) -> None:
    """Shared heads, tokens side by side, ragged ends and states: as exact as eager."""
    inputs = delta_inputs(*sizes, dtype=DTYPES[dtype], **options)
    check(delta_target(by_chunks, inputs), inputs, cache)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decode(dtype: str, cache: Path) -> None:
    """One token on top of a state, which comes out renewed."""
    inputs = delta_inputs(2, 1, 2, 4, 32, 64, dtype=DTYPES[dtype], state=True)
    check(delta_target(by_tokens, inputs), inputs, cache)


@pytest.fixture(scope="module")
def small() -> tuple[Target, list[torch.Tensor]]:
    """A rule with a state, and its inputs."""
    inputs = delta_inputs(1, 21, 1, 2, 32, 32, state=True)
    return delta_target(by_chunks, inputs), inputs


@pytest.mark.parametrize(
    "params",
    [
        {"lanes": 4, "columns": 2, "warps": 2, "tokens": 2, "tile": 8},
        {"lanes": 8, "columns": 4, "tokens": 1},
        {"lanes": 8, "columns": 2, "tokens": 4, "helpers": 0},
        {"lanes": 8, "columns": 2, "tokens": 4, "helpers": 2},
        {"lanes": 4, "columns": 1, "tokens": 4, "tile": 8},
        {"lanes": 8, "columns": 2, "warps": 1, "tokens": 8, "tile": 32},
        {"lanes": 4, "columns": 4, "warps": 8, "tokens": 8, "tile": 8},
    ],
    ids=str,
)
def test_every_move_computes_the_same(
    params: dict[str, Any], small: tuple[Target, list[torch.Tensor]], cache: Path
) -> None:
    """How the state is dealt out and how many tokens are taken at once change speed only."""
    target, inputs = small
    check(target, inputs, cache, **params)


def test_the_judge_s_input_sets(cache: Path) -> None:
    """Redrawn and hard values are within the judge's budget; one NaN stays with its head."""
    inputs = delta_inputs(1, 37, 2, 2, 32, 32, dtype=torch.bfloat16, state=True)
    target = delta_target(by_chunks, inputs)
    family, match = find(on_cuda(target))
    candidate = family.emit(match, default_params(family, match))
    cases = build_cases(target, torch.Generator().manual_seed(3))
    assert {"redrawn 0", "offset", "specials", "huge", "zeros"} <= {case.name for case in cases}
    for case in cases:
        found = run_emulated(candidate, on_cuda(target), case.inputs, cache)
        for i, (expected, got) in enumerate(zip(case.expected, found, strict=True)):
            assert check_output(expected, got, f"out{i}", case.name).wrong is None
    inputs[0][0, 5, 1, 3] = float("nan")
    candidate = family.emit(match, {**default_params(family, match), "lanes": 8, "columns": 2})
    found = run_emulated(candidate, on_cuda(target), inputs, cache)
    places = found[match.facts["answer"]].isnan().nonzero()[:, 1:3].unique(dim=0).tolist()
    assert places == [[5, 1]]


def at(sizes: Sizes, dtype: torch.dtype, **options: bool) -> Target:
    fn = by_tokens if sizes[1] == 1 else by_chunks
    return on_cuda(delta_target(fn, delta_inputs(*sizes, dtype=dtype, **options)))


@pytest.fixture(scope="module")
def prefill() -> Target:
    """A rule with the heads of a real model."""
    return at(REAL, torch.bfloat16, turned=True)


@pytest.fixture(scope="module")
def decode() -> Target:
    """One token of the same."""
    return at(DECODE, torch.bfloat16, state=True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("which", ["prefill", "decode"])
def test_compiles(which: str, arch: str, request: pytest.FixtureRequest, nvrtc_cache: Path) -> None:
    """The best guess and drawn parameters fit a multiprocessor, and keep all rules."""
    target = request.getfixturevalue(which)
    family, match = find(target)
    assert isinstance(family, CudaDeltaRule)
    values, chance = family.parameters(match), random.Random(arch)
    sets = [default_params(family, match)]
    sets.append({name: chance.choice(options) for name, options in values.items()})
    for params in sets:
        candidate = family.emit(match, params)
        validate(candidate.plan, "cuda", target.inputs, target.outputs)
        built = build_cuda(candidate.source, ("kf_delta_rule",), cache=nvrtc_cache, arch=arch)
        assert isinstance(built, CudaBuilt), f"{built.distilled}\n{candidate.source}"
        (used,) = built.resources.values()
        assert used.registers * int(candidate.plan.kernels[0].block[0]) <= 65536
        assert [*scan_cuda(candidate.source), *inspect_cubin(built.cubin)] == []
        if params is sets[0]:
            assert used.spill_stores <= 64


def test_every_single_move_has_a_valid_plan(prefill: Target, decode: Target) -> None:
    """Each value of each parameter gives a plan that the contract allows."""
    for target in (prefill, decode):
        family, match = find(target)
        start = default_params(family, match)
        for name, values in family.parameters(match).items():
            for value in values:
                candidate = family.emit(match, {**start, name: value})
                validate(candidate.plan, "cuda", target.inputs, target.outputs)
                assert candidate.origin["params"][name] == value


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [REAL, DECODE, (2, 77, 3, 6, 64, 32)], ids=str)
def test_matches_the_exact_result(sizes: Sizes, dtype: str, gpu: str, nvrtc_cache: Path) -> None:
    """On a GPU, at a real model's heads: as exact as eager, with states."""
    from tests.cuda.test_gpu import check as check_on_gpu
    from tests.cuda.test_gpu import to_gpu

    inputs = delta_inputs(*sizes, dtype=DTYPES[dtype], turned=sizes[1] > 1, state=True)
    fn = by_tokens if sizes[1] == 1 else by_chunks
    given = [to_gpu(t) for t in inputs]  # captured there: masks of the graph name their device
    check_on_gpu(delta_target(fn, given), given, nvrtc_cache)
