"""The notebook of language models, executed as a person would, against its scripted endpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")  # a bare GPU server has no Jupyter
NotebookClient = pytest.importorskip("nbclient").NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def outputs(cell):
    """All text and MIME types of a cell's outputs."""
    found = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    kinds = {kind for o in cell.outputs for kind in o.get("data", {})}
    return "\n".join(found), kinds


@pytest.mark.slow
def test_the_agent_notebook_runs_and_shows_cost_against_speed_up(tmp_path, monkeypatch):
    """No cell fails; failures of the script are told; money and gain are in tables and a plot."""
    for name in ("agent.ipynb", "scripted_endpoint.py"):
        shutil.copy(NOTEBOOKS / name, tmp_path / name)
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    notebook = nbformat.read(tmp_path / "agent.ipynb", as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()

    shown = {cell.source: outputs(cell) for cell in notebook.cells if cell.cell_type == "code"}

    def text_of(part):
        return next(text for source, (text, _) in shown.items() if part in source)

    assert "for at most $0.50" in text_of("--dry-run")
    assert "extern" in text_of("--dry-run")
    assert "run run: done" in text_of("%kforge wait run") or "replaced" in text_of("wait run")
    nodes = text_of("run.nodes[")
    assert all(word in nodes for word in ("wrong", "compile_failed"))
    assert "image/png" in next(kinds for s, (_, kinds) in shown.items() if "plot_cost" in s)
    costs = text_of("run.costs[")
    assert "format" in costs
    assert "propose" in costs
    assert text_of("again.nodes") == "True"
    saved = tmp_path / ".kforge" / "agent.kforge.json"
    assert '"openai"' in saved.read_text()
    assert "not-needed-here" not in saved.read_text()


def test_the_agent_notebook_is_committed_without_outputs():
    """Figures in git go stale; whoever opens the notebook makes fresh ones."""
    notebook = nbformat.read(NOTEBOOKS / "agent.ipynb", as_version=4)
    nbformat.validate(notebook)

    assert all(c.outputs == [] for c in notebook.cells if c.cell_type == "code")
