"""The whole way on a GPU through the Python API: optimise, decide, apply, undo."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import kforge_nb
from kforge_nb.errors import BadInput

pytestmark = pytest.mark.gpu
PATIENCE_S = 240


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """As close as two ways of computing a bf16 block are."""
    torch.testing.assert_close(got.float(), want.float(), rtol=0.05, atol=0.05)


@pytest.mark.slow
def test_optimize_of_a_block_on_the_gpu_end_to_end(gpu, home, block, tmp_path):
    """A run ends done, with an accepted kernel, decisions with reasons, and apply and undo work."""
    model, x = block
    with torch.inference_mode():
        before = model(x)
        run = kforge_nb.optimize(
            lambda: model(x), name="gpu", budget=12, time_limit=45, baseline="eager",
            rest="eager", guard_time=15, store=str(tmp_path / "store"),
        ).wait(PATIENCE_S)  # fmt: skip

    assert run.state == "done", run.status()
    verdicts = run.nodes["verdict"].tolist()
    print(run.nodes[["target", "verdict", "speedup", "ours_us", "eager_us", "reason"]].to_string())
    print(run.guard)
    assert 0 < len(verdicts) <= 12
    reasons = run.nodes[["verdict", "reason"]].drop_duplicates().values.tolist()
    assert "accepted" in verdicts, f"where others use the GPU, undecided is honest: {reasons}"
    assert set(run.nodes["language"]) == {"cuda"}
    assert set(run.decisions["target"]) == set(run.targets["target"])
    assert (run.decisions["reason"].str.len() > 10).all()
    assert run.document["device"]["device"] == gpu
    assert run.document["device"]["kind"] == "cuda"
    assert run.decisions["installed"].any(), run.decisions["reason"].tolist()

    applied = run.apply(rest="eager")
    with torch.inference_mode():
        close(model(x), before)
        close(model(x), before)
    assert applied.counters()["launches"] > 0
    run.undo()
    assert model._compiled_call_impl is None
    launches = applied.counters()["launches"]
    with torch.inference_mode():
        close(model(x), before)
    assert applied.counters()["launches"] == launches
    saved = run.save(tmp_path / "gpu.kforge.json")
    assert kforge_nb.load_run(saved).nodes["verdict"].tolist() == verdicts


@pytest.mark.slow
def test_a_run_stopped_and_gone_on_with_loses_nothing(gpu, home, block, tmp_path):
    """Inputs read back from the store are on the GPU, and what was judged stays judged."""
    model, x = block
    store = str(tmp_path / "store")

    def fn():
        with torch.inference_mode():
            return model(x)

    run = kforge_nb.optimize(
        fn, name="twice", budget=2, baseline="eager", rest="cudagraphs", guard_time=5, store=store
    )
    run.stop()
    run.wait(PATIENCE_S)
    judged = run.nodes["node"].tolist()
    again = kforge_nb.resume(run.name, fn, store=store).wait(PATIENCE_S)
    assert again.state == "done", again.status()
    assert again.nodes["node"].tolist()[: len(judged)] == judged
    assert len(again.nodes) == 2
    assert (again.decisions["reason"].str.len() > 10).all()


class Split(nn.Module):
    """A norm with gelu on the CPU, and another one on the GPU."""

    def __init__(self, gpu: str) -> None:
        super().__init__()
        self.one = nn.LayerNorm(1024)
        self.two = nn.LayerNorm(1024, device=gpu)
        self.gpu = gpu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Begins on the CPU and ends on the GPU."""
        return F.gelu(self.two(F.gelu(self.one(x)).to(self.gpu)))


@pytest.mark.slow
def test_a_model_half_on_the_cpu_gets_kernels_for_the_gpu_only(gpu, home, tmp_path):
    """Targets on the CPU are left alone with the reason, and the run ends as any other."""
    model, x = Split(gpu).eval(), torch.randn(4096, 1024)
    with torch.inference_mode():
        run = kforge_nb.optimize(
            lambda: model(x), budget=1, baseline="eager", rest="eager", guard_time=5,
            store=str(tmp_path / "store"),
        ).wait(PATIENCE_S)  # fmt: skip
    assert run.state == "done", run.status()
    reasons = " ".join(run.decisions["reason"])
    assert "it lives on cpu, and this run works on cuda:0" in reasons
    assert any("several devices" in n for n in run.document["workload"]["notes"])
    assert set(run.nodes["language"]) == {"cuda"}


def test_a_dry_run_says_what_would_be_searched(gpu, home, block, tmp_path):
    """``dry_run`` on a GPU names group norms to search and convolutions to leave alone."""
    model, x = block
    with torch.inference_mode():
        plan = kforge_nb.optimize(lambda: model(x), dry_run=True, store=str(tmp_path / "store"))
    words = repr(plan)
    assert "search" in words
    assert "vendor" in words
    assert not (tmp_path / "store").exists()


def test_the_wrong_backend_for_a_gpu_is_said_before_anything_is_measured(gpu, home, block):
    """``--backend cpp`` for a model on the GPU is one sentence that names what to do."""
    model, x = block
    with torch.inference_mode(), pytest.raises(BadInput, match="cupy_raw"):
        kforge_nb.optimize(lambda: model(x), backend="cpp", dry_run=True)


def test_the_doctor_knows_this_gpu(gpu, home, tmp_path):
    """NVRTC, driver, launch op and tools are named, and nothing that is needed is missing."""
    found = kforge_nb.doctor(store=str(tmp_path))
    checks = {check.name: check for check in found.checks}
    print(found)
    assert checks["CUDA device"].level == "ok", checks["CUDA device"]
    assert checks["NVRTC"].level == "ok", checks["NVRTC"]
    assert "c++" in checks["launch op"].found or "cupy" in checks["launch op"].found
