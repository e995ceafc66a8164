"""A live run in JupyterLab and Notebook 7: reloaded while it goes on, opened without its kernel."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
import pytest

from tests.browser.test_lab import end_kernels, outputs, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
WIDGET = "application/vnd.jupyter.widget-view+json"
SAVED = {"application/vnd.kforge.run+json", "text/html", "text/plain"}
# MIME types of the first output, as the open notebook holds it.
HELD = """() => {
    const [cell] = jupyterapp.shell.currentWidget.content.model.cells;
    return Object.keys(cell.outputs.get(0).data);
}"""
CELL = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.kernel.light_run import begin
run = begin("lost", seconds=0.2)
"""


@pytest.fixture
def notebook(lab):
    """A notebook that begins a run, in a folder of its own."""
    path = Path(tempfile.mkdtemp(dir=lab[1])) / "lost.ipynb"
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(made, path)
    return path


@pytest.mark.parametrize("front_end", ["lab", "notebook7"])
def test_a_live_view_comes_back_and_without_its_kernel_the_saved_one_does(
    page, lab, notebook_in, front_end, notebook
):
    """Reload: live again, with its buttons. Kernel gone: the saved run, and never an error.

    Looking at it does not change the notebook; saving takes the dead widget out.
    """
    where = f"{notebook.parent.name}/{notebook.name}"
    notebook_in(front_end, page, where)
    page.locator(".jp-CodeCell .jp-InputArea-editor").first.click()
    page.keyboard.press("Shift+Enter")
    page.get_by_role("button", name="Stop the run").wait_for(timeout=60_000)
    page.keyboard.press("Control+s")
    wait_until(lambda: outputs(notebook))
    assert set(outputs(notebook)[0]["data"]) == {WIDGET, *SAVED}

    notebook_in(front_end, page, where)
    stop = page.get_by_role("button", name="Stop the run")
    stop.wait_for(timeout=60_000)
    state = page.locator(".kforge-state").first
    first = state.inner_text()
    wait_until(lambda: state.inner_text() != first)
    page.get_by_role("button", name="Pause the run").click()
    page.get_by_role("button", name="Resume the run").wait_for(timeout=60_000)

    end_kernels(page, lab)
    notebook_in(front_end, page, where)
    page.locator(".kforge-run .kforge").wait_for(timeout=60_000)
    shown = page.locator(".jp-OutputArea").first.inner_text()
    assert "%kforge show lost shows it now" in shown
    assert "Error displaying widget" not in page.locator("body").inner_text()
    assert page.get_by_role("button", name="Stop the run").count() == 0
    assert WIDGET in page.evaluate(HELD)
    assert set(outputs(notebook)[0]["data"]) == {WIDGET, *SAVED}
    page.keyboard.press("Control+s")
    wait_until(lambda: outputs(notebook) and set(outputs(notebook)[0]["data"]) == SAVED)
