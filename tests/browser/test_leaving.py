"""Where the keyboard is when a run ends and its live view gives way to the saved one."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"
LIVE = f"""
import json
from kforge_nb.view.live import open_view

document = json.load(open({str(EXAMPLE)!r}))
view = open_view(document["details"].get, lambda asked: None)
view.publish({{**document, "state": "searching"}})
view.display()
"""
KERNEL = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"


def test_at_the_end_of_a_run_its_cell_has_the_focus(page, lab, notebook_in):
    """Whoever had the keyboard in the view goes on from its cell, not from the top of the page."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LIVE)])
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(made, lab[1] / "leaving.ipynb")
    notebook_in("lab", page, "leaving.ipynb")
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
    page.get_by_role("button", name="Stop the run").wait_for(timeout=60_000)
    page.get_by_role("button", name="By module").focus()
    assert page.evaluate("document.activeElement.textContent") == "By module"

    page.evaluate(f"void {KERNEL}.requestExecute({{code: 'view.finish(document)'}})")
    page.get_by_text("done · the budget of 26 candidates is used up").wait_for(timeout=60_000)
    page.wait_for_function("document.activeElement.matches('.jp-Cell')", timeout=10_000)
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
