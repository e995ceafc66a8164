"""The Python API runs whole where neither notebooks, plots nor paid endpoints are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = (
    "IPython", "ipywidgets", "matplotlib", "openai", "anywidget", "ipykernel", "traitlets",
    "jupyterlab", "jinja2", "jsonschema",
)  # fmt: skip

PROGRAM = """
import contextlib
import io
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())

import torch
from torch import nn
import kforge_nb
from kforge_nb.errors import MissingTool

torch.set_num_threads(2)
model = nn.Sequential(nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 64)).to({device!r}).eval()
x = torch.randn(1024, 512, device={device!r})

def fn():
    with torch.inference_mode():
        return model(x)

before = fn()
found = kforge_nb.profile(fn)
assert len(found.table) and repr(found) and found._repr_html_()
plan = kforge_nb.optimize(fn, dry_run=True, store={store!r})
assert "search" in repr(plan), plan
run = kforge_nb.optimize(
    fn, name="bare", budget=2, baseline="eager", rest="eager", guard_time=5, store={store!r}
).wait(200)
assert run.state == "done", run.status()
assert len(run.nodes) and len(run.targets) and len(run.decisions)
assert repr(run) and repr(run.guard)
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    run.show()
assert "run bare" in shown.getvalue(), shown.getvalue()
again = kforge_nb.load_run(run.save({store!r} + "/bare.kforge.json"))
run.save({store!r} + "/bare.html")
assert again.name == "bare" and list(kforge_nb.runs(store={store!r})["state"]) == ["done"]
if run.decisions["installed"].any():
    run.apply(rest="eager")
    torch.testing.assert_close(fn(), before, rtol=1e-3, atol=1e-3)
    run.undo()
torch.testing.assert_close(fn(), before)
for plot in (found.plot, run.plot_tree, run.plot_cost):
    try:
        plot()
    except MissingTool as problem:
        assert "matplotlib" in str(problem)
    else:
        raise AssertionError("there is no matplotlib here")
found = kforge_nb.doctor(store={store!r})
assert found.ok, found
loaded = sorted(set(sys.modules) & {blocked!r})
assert not loaded, loaded
print("whole")
"""


def run_program(device: str, tmp_path: Path, home: Path) -> None:
    """The program in a process of its own."""
    program = PROGRAM.format(blocked=set(BLOCKED), device=device, store=str(tmp_path / "store"))
    environment = {**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("whole")


@pytest.mark.slow
def test_the_api_needs_no_notebook_no_plots_and_no_endpoint(tmp_path):
    """Profile, dry run, run, tables, save, load, apply, undo and doctor without those packages."""
    run_program("cpu", tmp_path, tmp_path / "home")


@pytest.mark.gpu
@pytest.mark.slow
def test_the_same_on_a_gpu(tmp_path, tmp_path_factory, worker_id):
    """A bare GPU server with torch, numpy, pandas and cupy serves all of it."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    run_program("cuda:0", tmp_path, shared / "kforge-home")
