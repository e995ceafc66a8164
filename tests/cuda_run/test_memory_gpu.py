"""A GPU that is really full: what was captured goes to files, and what does not fit is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kforge_nb.targets.build import find_targets
from kforge_nb.targets.float64 import reference
from kforge_nb.workload.capture import Workload, capture_graphs, watch

pytestmark = pytest.mark.gpu
SIZE = 64 << 20
OPS = (F.gelu, F.silu, torch.tanh, torch.sigmoid, torch.exp, F.softplus, F.mish, torch.sin)


class Chain(nn.Module):
    """Element-wise operators one after the other, each a target of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape out as in."""
        for op in OPS:
            x = op(x)
        return x


@pytest.fixture
def workload(gpu: str) -> Workload:
    """The chain on 64 MB, captured."""
    model, x = Chain(), torch.rand(SIZE // 4, device=gpu)
    with torch.inference_mode():
        found = capture_graphs(watch(lambda: model(x)))
    found.result = None
    return found


@pytest.fixture
def room(gpu: str) -> Iterator[object]:
    """Leaves this process so many bytes beyond what it holds; afterwards all of the GPU again."""
    total = torch.cuda.get_device_properties(gpu).total_memory

    def leave(size: int) -> None:
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved(gpu)  # what the limit counts
        torch.cuda.set_per_process_memory_fraction((held + size) / total, gpu)

    yield leave
    torch.cuda.set_per_process_memory_fraction(1.0, gpu)


def test_inputs_that_do_not_fit_beside_the_model_go_to_files(workload, room):
    """With room for the model but not for copies every target still gets its inputs."""
    room(5 * SIZE)
    targets = find_targets(workload, "op", memory_limit=1 << 40)
    assert len(targets) == len(OPS)
    for target in targets:
        assert target.captured is not None
        assert target.captured.nbytes == 0
        (first, *_) = target.captured.sets()[0]
        assert first.is_cuda
        assert first.numel() * 4 == SIZE
    assert not any("did not suffice" in note for note in workload.notes)


def test_a_gpu_without_room_for_the_model_is_told(workload, room):
    """Nothing can be captured: the targets are there without inputs, and one note says why."""
    room(SIZE // 2)
    targets = find_targets(workload, "op")
    assert len(targets) == len(OPS)
    assert not any(target.captured for target in targets)
    (note,) = [n for n in workload.notes if "did not suffice" in n]
    assert f"{len(OPS)} targets" in note


def test_float64_without_room_runs_on_the_cpu(workload, room):
    """The exact result of a target does not fit the GPU, so it is computed beside it."""
    (target, *_) = find_targets(workload, "op", memory_limit=0)
    inputs = target.captured.sets()[0]
    expected = F.gelu(inputs[0].cpu().double())
    room(SIZE // 2)
    (exact, *_) = reference(target.graph, inputs)
    assert not exact.is_cuda
    torch.testing.assert_close(exact, expected)
