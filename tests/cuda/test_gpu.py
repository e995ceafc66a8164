"""Recipes on a real GPU, launched on torch tensors and compared with float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.compilers.cupy_raw import LoadedPlan, load_plan
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.targets.float64 import reference
from kforge_nb.targets.target import Target
from tests.cuda.targets import CASES, GENERATED, case, find, on_cuda
from tests.recipes.test_numerics import HARD, errors

pytestmark = pytest.mark.gpu
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load(target: Target, cache: Path, **params: Any) -> LoadedPlan:
    """The target's recipe, built for this device and loaded."""
    on_device = on_cuda(target)
    family, match = find(on_device)
    candidate = family.emit(match, {**default_params(family, match), **params})
    entries = tuple(kernel.name for kernel in candidate.plan.kernels)
    built = build_cuda(candidate.source, entries, cache=cache)
    assert isinstance(built, CudaBuilt), built.distilled
    return load_plan(candidate, built.cubin, on_device.inputs, on_device.outputs)


def to_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the GPU with the same strides."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return copy.copy_(tensor)


def check(target: Target, inputs: list[torch.Tensor], cache: Path, **params: Any) -> None:
    """NaN and infinity where eager has them, error at most twice eager's and a few roundings."""
    given = [to_gpu(t) for t in inputs]
    loaded = load(target, cache, **params)
    outputs = loaded.empty()
    for tensor in outputs:
        tensor.fill_(float("nan"))
    for name, buffer in loaded.scratch(outputs[0].device).items():
        if loaded.plan.scratch[name].init == "none":
            buffer.fill_(float("nan"))
    loaded.launch(given, outputs)
    torch.cuda.synchronize()
    eager = target.graph(*[t.clone() for t in given])
    exact = reference(target.graph, given)
    for got, want, true in zip(outputs, eager, exact, strict=True):
        assert torch.equal(got.isnan(), want.isnan()), "NaN stands elsewhere"
        assert torch.equal(got.isinf(), want.isinf()), "infinity stands elsewhere"
        ours, theirs = errors(got, want, true)
        assert ours <= 2.0 * theirs + 8.0 * torch.finfo(want.dtype).eps, (ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*CASES, *GENERATED])
def test_matches_the_exact_result(name: str, dtype: str, gpu: str, nvrtc_cache: Path) -> None:
    """Each family is as exact as eager in every dtype, on odd shapes and strides."""
    target, inputs = case(name, DTYPES[dtype])
    check(target, inputs, nvrtc_cache)


@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("name", CASES)
def test_hard_inputs(name: str, hard: str, gpu: str, nvrtc_cache: Path) -> None:
    """Infinities and NaN stand where eager's stand; extreme scales cost no digits."""
    target, inputs = case(name, torch.float32)
    changed = [t.clone() for t in inputs]
    HARD[hard](changed[0])
    check(target, changed, nvrtc_cache)


@pytest.mark.parametrize(
    "params",
    [
        {"way": "two", "task_kb": 8},
        {"way": "chain", "task_kb": 8, "chunk_mb": 1},
        {"way": "chain", "task_kb": 8, "chunk_mb": 8},
        {"way": "drawn", "task_kb": 8, "lag": 1},
        {"way": "drawn", "task_kb": 8, "lag": 4},
        *({"way": "kept", "beside": n, "block": 256} for n in (1, 3, 6)),
    ],
    ids=str,
)
def test_group_norm_of_many_blocks(params: dict[str, Any], gpu: str, nvrtc_cache: Path) -> None:
    """Blocks that wait for other blocks' statistics get them, in one launch and in two."""
    import torch.nn.functional as F

    from tests.helpers import make_target

    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.silu(F.group_norm(x, 32, w, b, 1e-6))

    x = torch.randn(1, 128, 256, 256, dtype=torch.bfloat16) + 3
    inputs = [x, torch.randn(128).bfloat16(), torch.randn(128).bfloat16()]
    target = make_target(fn, *inputs)
    for _ in range(3):
        check(target, inputs, nvrtc_cache, **params)


def test_a_captured_launch_replays(gpu: str, nvrtc_cache: Path) -> None:
    """A launch under CUDA-graph capture is part of the graph, on new data as well."""
    target, inputs = case("group-norm-silu", torch.bfloat16)
    given = [to_gpu(t) for t in inputs]
    loaded = load(target, nvrtc_cache, way="kept")
    outputs = loaded.empty()
    launch = loaded.bind(given, outputs)
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    given[0].mul_(-2.0)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(outputs[0], target.graph(*given)[0], rtol=0.02, atol=0.02)


def test_two_streams_do_not_disturb_each_other(gpu: str, nvrtc_cache: Path) -> None:
    """Two loaded plans on two streams give each its own result."""
    target, inputs = case("large-group-norm", torch.float32)
    streams = [torch.cuda.Stream() for _ in range(2)]
    plans = [load(target, nvrtc_cache, way="kept") for _ in streams]
    given = [[to_gpu(t * (k + 1)) for t in inputs] for k in range(2)]
    made = [plan.empty() for plan in plans]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, plan, ins, outs in zip(streams, plans, given, made, strict=True):
            with torch.cuda.stream(stream):
                plan.launch(ins, outs)
    torch.cuda.synchronize()
    for ins, outs in zip(given, made, strict=True):
        torch.testing.assert_close(outs[0], target.graph(*ins)[0], rtol=1e-4, atol=1e-4)
