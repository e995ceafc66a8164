"""What tests of whole runs on a GPU share: the device, a home of their own, a real block."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.fixture(scope="session")
def gpu() -> str:
    """The CUDA device; skips without one."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return "cuda:0"


@pytest.fixture
def home(tmp_path_factory, worker_id, monkeypatch):
    """Caches of these tests, shared by all workers: what one has compiled the others need not."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "kforge-home"
    monkeypatch.setenv("KFORGE_HOME", str(shared))
    return shared


class ResBlock(nn.Module):
    """A residual block of a VAE decoder: norm, silu, convolution, twice, and the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(32, channels, eps=1e-6) for _ in range(2))
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape out as in."""
        y = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(y)))


@pytest.fixture
def block(gpu: str):
    """A bf16 decoder block on the GPU and its input, 512×128²."""
    torch.manual_seed(0)
    model = ResBlock(512).to(gpu, torch.bfloat16).eval().requires_grad_(False)
    return model, torch.randn(1, 512, 128, 128, device=gpu, dtype=torch.bfloat16)
