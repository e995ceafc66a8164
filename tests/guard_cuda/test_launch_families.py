"""Every family of CUDA recipes through the launch op: as exact as eager, on fresh memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.recipes.family import default_params
from kforge_nb.guard import launch
from kforge_nb.targets.float64 import reference
from tests.cuda.targets import CASES, GENERATED, case, find, on_cuda
from tests.guard_cuda.launching import build
from tests.recipes.test_numerics import errors

pytestmark = pytest.mark.gpu


def to_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the GPU with the same strides."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return copy.copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", [*CASES, *GENERATED])
def test_family(name: str, dtype: torch.dtype, gpu: str, nvrtc_cache: Path) -> None:
    """The op gives each family's result; a second call, over memory of the first, does too."""
    target, inputs = case(name, dtype)
    target = on_cuda(target)
    family, match = find(target)
    candidate = family.emit(match, default_params(family, match))
    cubin = build(candidate, nvrtc_cache)
    handle = launch.register(
        candidate, cubin, target.graph, target.inputs, target.outputs, shadow=0
    )  # fmt: skip
    given = [to_gpu(t) for t in inputs]
    with torch.no_grad():
        for _ in range(2):
            outputs = torch.ops.kforge.launch.default(given, handle)
            torch.cuda.synchronize()
    assert launch.counters(handle)["launches"] == 2
    assert launch.counters(handle)["fallbacks"] == {}
    eager = target.graph(*[t.clone() for t in given])
    for got, spec in zip(outputs, target.outputs, strict=True):
        assert (tuple(got.shape), got.stride()) == (spec.shape, spec.stride)
    for got, want, true in zip(outputs, eager, reference(target.graph, given), strict=True):
        ours, theirs = errors(got, want, true)
        assert ours <= 2.0 * theirs + 8.0 * torch.finfo(want.dtype).eps, (ours, theirs)
