"""The paper's models as notebooks: executed on a CPU with their tiny copies, as a person would."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")  # a bare GPU server has no Jupyter
NotebookClient = pytest.importorskip("nbclient").NotebookClient
KernelSpecManager = pytest.importorskip("jupyter_client.kernelspec").KernelSpecManager
AsyncKernelManager = pytest.importorskip("jupyter_client.manager").AsyncKernelManager

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ("resnet50", "sd35", "gemma4", "qwen35")


def _read(name: str) -> Any:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def _texts(cell: Any) -> str:
    """What a terminal shows of a cell's outputs."""
    found = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "\n".join(found)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel of this environment in a folder of its own."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    specs = KernelSpecManager(kernel_dirs=[str(Path(sys.prefix) / "share" / "jupyter" / "kernels")])
    return AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=specs,
        transport="ipc",
        connection_file=str(tmp_path / "kernel.json"),
    )


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_runs_through_and_shows_every_step(name, kernel, tmp_path):
    """Profile, search, decisions, whole model, fidelity, apply: each cell has its result."""
    notebook = _read(name)
    client = NotebookClient(
        notebook, km=kernel, timeout=250, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(cleanup_kc=True)
    shown = {cell.source: _texts(cell) for cell in notebook.cells if cell.cell_type == "code"}

    def output(start: str) -> str:
        return next(text for source, text in shown.items() if source.startswith(start))

    assert "tiny size on cpu" in output("import sys")
    assert "ceiling" in output("%%kforge profile")
    assert "done" in output("%kforge wait run")
    assert "reason" in output("run.decisions")
    assert "recommended:" in output("import pandas")
    assert "float64" in output("fidelity") or "no kernel is installed" in output("fidelity")
    assert "untouched" in output("from statistics")
    assert output("run.undo()").strip().endswith("True")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_is_committed_without_outputs(name):
    """Figures in git go stale; whoever runs it gets fresh ones."""
    notebook = _read(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_no_notebook_picks_targets_by_hand():
    """What is searched is the run's own choice, in every notebook."""
    sources = [cell.source for name in NOTEBOOKS for cell in _read(name).cells]
    asked = [s for s in sources if s.startswith("%%kforge optimize")]
    assert len(asked) == len(NOTEBOOKS)
    assert not [s for s in sources for word in ("--target", "--ops", "KForge.ops") if word in s]
