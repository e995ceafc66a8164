"""One judge for all tests of a worker process: its baseline worker takes seconds to start."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parent / "kernels.py"
_spec = importlib.util.spec_from_file_location("judge_kernels", _PATH)
_module = importlib.util.module_from_spec(_spec)
sys.modules["judge_kernels"] = _module
_spec.loader.exec_module(_module)


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    from kforge_nb.judge.judge import Judge
    from kforge_nb.settings import Settings

    with Judge(Settings(threads=1), tmp_path_factory.mktemp("judge")) as opened:
        yield opened


@pytest.fixture(scope="session")
def norm_bench(judge):
    """RMS norm over 256 rows of 768, fp32, on one thread (less at the mercy of other programs)."""
    import torch

    kernels = sys.modules["judge_kernels"]
    torch.manual_seed(0)
    bench = judge.open(
        kernels.target_of(kernels.rms_norm, torch.randn(256, 768), family="rms_norm")
    )
    yield bench
    bench.close()
