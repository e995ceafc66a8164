"""The whole way in one process, with every real room and without IPython."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import kforge_nb
from kforge_nb.errors import BadInput
from kforge_nb.profile import calibration
from kforge_nb.profile.calibration import Calibration

PATIENCE_S = 240


class RMSNorm(nn.Module):
    """The norm as language models compose it."""

    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        """Rows divided by their root mean square."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


@pytest.fixture
def workload(tmp_path, monkeypatch):
    """A small model with its input, and a home of its own for caches and registry."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    torch.manual_seed(0)
    model = nn.Sequential(RMSNorm(128), nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
    model.eval().requires_grad_(False)
    x = torch.randn(64, 128)
    return model, x, lambda: model(x)


@pytest.fixture
def endless_roofline(monkeypatch):
    """A device that nothing comes near to: no target is left out or done because of its speed."""
    limits = Calibration("cpu", "fixed", 1e7, {1: 1e7}, {"float32": 1e7}, 0.0)
    monkeypatch.setattr(calibration, "_MEASURED", {})
    monkeypatch.setattr(
        calibration, "_measure", lambda device, identity: replace(limits, identity=identity)
    )


@pytest.mark.slow
def test_optimize_searches_judges_guards_and_decides(workload, tmp_path, endless_roofline):
    """A run ends with judged candidates, a decision with a reason for every target, and a file."""
    model, x, fn = workload
    store = str(tmp_path / "store")

    run = kforge_nb.optimize(
        fn, name="e2e", budget=3, baseline="eager", rest="eager", guard_time=5, store=store
    ).wait(PATIENCE_S)

    assert run.state == "done", run.status()
    assert len(run.nodes) == 3, run.status()
    assert "budget of 3" in run.status()
    assert set(run.decisions["target"]) == set(run.targets["target"])
    assert (run.decisions["reason"].str.len() > 10).all()
    again = kforge_nb.load_run(run.save(tmp_path / "e2e.kforge.json"))
    assert again.nodes["verdict"].tolist() == run.nodes["verdict"].tolist()
    if run.decisions["installed"].any():
        expected = model(x)
        applied = run.apply(rest="eager")
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
        assert applied.counters()["launches"] > 0
        run.undo()
    assert model._compiled_call_impl is None


def test_a_dry_run_searches_nothing(workload, tmp_path):
    """``dry_run`` names the targets and the most that could be spent, and leaves no store."""
    _, _, fn = workload

    plan = kforge_nb.optimize(fn, dry_run=True, budget=7, store=str(tmp_path / "store"))

    assert "at most 7 candidates" in repr(plan)
    assert "vendor" in repr(plan)
    assert not (tmp_path / "store").exists()


def test_a_name_that_is_taken_is_said_before_anything_is_measured(workload, tmp_path, stage):
    """A second run of the same name is refused at once, with what to do instead."""
    _, _, fn = workload
    stage.conductor(name="mine")

    with pytest.raises(BadInput) as caught:
        kforge_nb.optimize(fn, name="mine", store=str(stage.store_path))

    assert "resume mine" in str(caught.value)


def test_a_workload_that_is_no_function_is_bad_input(workload):
    """Passing the model's output instead of a function is explained."""
    model, x, _ = workload

    with pytest.raises(BadInput) as caught:
        kforge_nb.optimize(model(x))

    assert "lambda: model(x)" in str(caught.value)
