"""notebooks/cheating.ipynb runs through, and what it teaches is so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")  # a bare GPU server has no Jupyter

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "cheating.ipynb"
WANTED = {
    "half of the rows": "wrong",
    "keeps its result": "refused",
    "lower precision": "wrong",
    "stops the clock": "suspicious",
    "its first result again": "wrong",
    "torch's own work": "wrapper",
    "zeros for zeros": "weak_task",
}


def test_it_is_committed_without_outputs():
    """Figures in git go stale; running it makes fresh ones."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.slow
def test_every_cheat_gets_the_verdict_that_the_text_tells(tmp_path):
    """Executed as a reader would; the last cell shows each kernel with its verdict."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    specs = KernelSpecManager(kernel_dirs=[str(Path(sys.prefix) / "share" / "jupyter" / "kernels")])
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=specs,
        transport="ipc",
        connection_file=str(tmp_path / "kernel.json"),
    )
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(
        notebook, km=manager, timeout=280, startup_timeout=120, resources=resources
    )
    client.execute(cleanup_kc=True)
    shown = notebook.cells[-1].outputs[-1]["data"]["text/plain"]
    rows = [line for line in shown.splitlines() if any(title in line for title in WANTED)]

    assert len(rows) == len(WANTED)
    assert all(row.endswith(WANTED[title]) for row in rows for title in WANTED if title in row)
