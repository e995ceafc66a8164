"""Every CUDA recipe compiles for three generations of GPUs, in every dtype, with a valid plan."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_op_cases import make_target
from kforge_nb.candidates.plan import plan_from_document, plan_to_document, resolve, validate
from kforge_nb.candidates.recipes.cuda import cuda_families
from kforge_nb.candidates.recipes.family import Params, default_params
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.judge.cuda.cubin import inspect_cubin
from kforge_nb.judge.cuda.policy import scan_cuda
from tests.cuda.targets import CASES, GENERATED, case, find, on_cuda

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# One case of each family, for the architectures on which the others are not compiled as well.
ONE_EACH = (
    "softmax-upcast", "log-softmax", "residual-layer-norm", "gemma-rms-norm", "group-norm-silu",
    "last-bias-group-norm", "batch-norm-add-relu", "gelu-tanh", "rotary", "max-pool",
    "gated-residual", "norm-rotary", "embedding-scale", "causal-conv1d", "causal-conv1d-turned",
    "max-pool-last", "large-group-norm", "last-batch-norm-add-relu",
)  # fmt: skip
FAMILIES = {
    "softmax": "softmax", "log-softmax": "log_softmax", "layer-norm": "layer_norm",
    "gemma-rms-norm": "rms_norm", "residual-layer-norm": "layer_norm", "rotary": "rotary",
    "modulated-layer-norm": "layer_norm", "group-norm-silu": "group_norm", "silu-up": "activation",
    "group-norm-last": "group_norm", "batch-norm-add-relu": "batch_norm", "max-pool": "pooling",
    "adaptive-pool": "pooling", "gated-residual": "pointwise", "embedding": "embedding",
    "embedding-scale": "embedding", "conv1d": "conv1d", "conv1d-dilated": "conv1d",
    "causal-conv1d": "conv1d", "causal-conv1d-turned": "conv1d", "max-pool-last": "pooling",
    "bias-group-norm": "group_norm", "last-bias-group-norm": "group_norm",
    "last-batch-norm-add-relu": "batch_norm", "last-bias-residual": "pointwise",
    "cat-heads": "generated", "pad": "generated", "decay": "generated",
}  # fmt: skip


def compiled(
    name: str, dtype: torch.dtype, arch: str, cache: Path, params: Params | None = None
) -> None:
    target = on_cuda(case(name, dtype)[0])
    family, match = find(target)
    candidate = family.emit(match, params or default_params(family, match))
    assert candidate.language == "cuda"
    validate(candidate.plan, "cuda", target.inputs, target.outputs)
    entries = tuple(kernel.name for kernel in candidate.plan.kernels)
    built = build_cuda(candidate.source, entries, cache=cache, arch=arch)
    assert isinstance(built, CudaBuilt), f"{built.distilled}\n{candidate.source}"
    assert all(r.registers * _threads(candidate) <= 65536 for r in built.resources.values())


def _threads(candidate: object) -> int:
    return max(int(kernel.block[0]) for kernel in candidate.plan.kernels)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*CASES, *GENERATED])
def test_for_hopper(name: str, dtype: str, nvrtc_cache: Path) -> None:
    """Each case's best guess compiles for sm_90 and fits a multiprocessor's registers."""
    compiled(name, DTYPES[dtype], "sm_90", nvrtc_cache)


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE_EACH)
def test_for_other_gpus(name: str, dtype: str, arch: str, nvrtc_cache: Path) -> None:
    """Each family compiles for an older and a newer generation as well."""
    compiled(name, DTYPES[dtype], arch, nvrtc_cache)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("name", ONE_EACH)
def test_mixtures_of_parameters(name: str, arch: str, nvrtc_cache: Path) -> None:
    """Sets of parameters drawn as the proposer draws its drafts compile for each generation."""
    family, match = find(on_cuda(case(name, torch.bfloat16)[0]))
    values = family.parameters(match)
    chance = random.Random(f"{name} {arch}")
    for _ in range(2):
        drawn = {key: chance.choice(options) for key, options in values.items()}
        compiled(name, torch.bfloat16, arch, nvrtc_cache, drawn)


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_the_family_that_is_meant_takes_it(name: str, family: str) -> None:
    """What has a recipe of its own is not left to a more general one."""
    assert find(on_cuda(case(name, torch.bfloat16)[0]))[0].name == family


@pytest.mark.parametrize("name", [*CASES, *GENERATED])
def test_every_single_move_has_a_valid_plan(name: str) -> None:
    """Each value of each parameter gives a plan that the contract allows and a file can hold."""
    target = on_cuda(case(name, torch.bfloat16)[0])
    family, match = find(target)
    start = default_params(family, match)
    for parameter, values in family.parameters(match).items():
        for value in values:
            candidate = family.emit(match, {**start, parameter: value})
            validate(candidate.plan, "cuda", target.inputs, target.outputs)
            assert plan_from_document(plan_to_document(candidate.plan)) == candidate.plan
            assert candidate.origin["params"][parameter] == value


def test_recipes_are_deterministic() -> None:
    """The same target and parameters give the same source: the cache and the search rest on it."""
    target = on_cuda(case("group-norm-silu", torch.bfloat16)[0])
    family, match = find(target)
    params = default_params(family, match)
    assert family.emit(match, params).digest == family.emit(match, params).digest


def test_targets_elsewhere_are_left_alone() -> None:
    """A target on the CPU, or on two devices, has no CUDA recipe."""
    target, _ = case("softmax", torch.float32)
    assert not any(family.match(target) for family in cuda_families())
    mixed = on_cuda(target)
    mixed.outputs = target.outputs
    assert not any(family.match(mixed) for family in cuda_families())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(1, 32, 2048, 4096), (1, 128, 1024, 1024), (2, 64, 3, 5)], ids=str
)
def test_groups_of_any_size_have_a_plan(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """What does not fit in shared memory is not kept there, whatever the parameters ask for."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.group_norm(x, 4, w, b, 1e-6)

    inputs = [torch.empty(s, dtype=dtype, device="meta") for s in (shape, shape[1:2], shape[1:2])]
    target = on_cuda(make_target(fn, inputs, "large"))
    family, match = find(target)
    start = default_params(family, match)
    values = family.parameters(match)
    for way in values["way"]:
        for beside in values["beside"]:
            for copies in values["copies"]:
                params = {**start, "way": way, "beside": beside, "copies": copies}
                plan = family.emit(match, params).plan
                validate(plan, "cuda", target.inputs, target.outputs)
                resolve(plan, target.inputs, target.outputs)


@pytest.mark.parametrize(
    ("name", "params"),
    [*((n, {}) for n in ONE_EACH), *(("group-norm-silu", {"way": w}) for w in ("kept", "chain"))],
    ids=str,
)
def test_the_judge_finds_nothing_in_a_recipe(name: str, params: Params, nvrtc_cache: Path) -> None:
    """Each family keeps the rules for candidates, in its source and compiled."""
    target = on_cuda(case(name, torch.bfloat16)[0])
    family, match = find(target)
    candidate = family.emit(match, {**default_params(family, match), **params})
    entries = tuple(dict.fromkeys(kernel.name for kernel in candidate.plan.kernels))
    built = build_cuda(candidate.source, entries, cache=nvrtc_cache, arch="sm_90")
    assert isinstance(built, CudaBuilt), built.distilled
    assert [*scan_cuda(candidate.source), *inspect_cubin(built.cubin)] == []
