"""What tests of CUDA share: skipping with a reason where NVRTC or a GPU is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge_nb.compilers.nvrtc import find_nvrtc
from kforge_nb.errors import MissingTool


@pytest.fixture(scope="session")
def nvrtc_cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder for cubins that all workers share; skips where there is no NVRTC."""
    try:
        find_nvrtc()
    except MissingTool as missing:
        pytest.skip(str(missing))
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "cubins"


@pytest.fixture(scope="session")
def gpu() -> str:
    """The CUDA device; skips without one, or without CuPy."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    pytest.importorskip("cupy", reason="launching from Python needs CuPy")
    return "cuda:0"
