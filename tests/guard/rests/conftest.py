"""Where CUDA graphs are recorded: pretended on the CPU, and on a GPU with and without Inductor."""

from __future__ import annotations

import copy

import pytest
import torch

from kforge_nb.guard.apply import apply
from tests.guard.pretend import pretend
from tests.guard.rests.common import GPU

PLACES = [
    pytest.param(("pretended", "cudagraphs"), id="pretended"),
    pytest.param(("cuda", "cudagraphs"), id="cudagraphs", marks=GPU),
    pytest.param(("cuda", "inductor-cudagraphs"), id="inductor-cudagraphs", marks=GPU),
]


def pytest_generate_tests(metafunc):
    """Tests of an installed model meet each rest, the others plain CUDA graphs alone."""
    if "guarded" in metafunc.fixturenames:
        metafunc.parametrize("place", PLACES, indirect=True)
    elif "place" in metafunc.fixturenames:
        metafunc.parametrize("place", PLACES[:2], indirect=True)


@pytest.fixture
def place(request, monkeypatch):
    """(device, rest); CUDA graphs are pretended on the CPU, real ones need a GPU."""
    device, rest = request.param
    if device == "pretended":
        pretend(monkeypatch)
        return "cpu", rest
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return device, rest


@pytest.fixture
def device(place):
    """The device of the model."""
    return place[0]


@pytest.fixture
def gpu():
    """A test that asks for this needs a GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return "cuda"


@pytest.fixture
def x(device):
    """The input that the kernels were accepted for."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(3)).to(device)


@pytest.fixture
def guarded(place, block, accept, x):
    """(model, its Applied, an untouched twin) for each rest with CUDA graphs."""
    twin = copy.deepcopy(block)
    applied = apply([block], accept(block, x), place[1])
    yield block, applied, twin
    applied.undo()
