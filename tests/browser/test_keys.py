"""Whose keys are pressed in a view inside an output, in a real JupyterLab and Notebook 7."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.browser.accessible import violations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"
LIVE = f"""
import json
from kforge_nb.view.live import open_view

document = json.load(open({str(EXAMPLE)!r}))
view = open_view(document["details"].get, lambda asked: None)
targets = [{{**target, "state": "searching"}} for target in document["targets"]]
view.publish({{**document, "state": "searching", "whole": [], "targets": targets}})
view.display()
"""
SAVED = f"""
import json
from IPython.display import display

document = json.load(open({str(EXAMPLE)!r}))
display({{"application/vnd.kforge.run+json": document, "text/plain": "a run"}}, raw=True)
"""
FOCUSED = {
    "a row": 'tr[data-target][tabindex="0"]',
    "a sort header": ".kforge-sort",
    "a tree item": '[role="treeitem"][tabindex="0"]',
    "a button": ".kforge-tools button",
    "a tab": '[role="tab"][tabindex="0"]',
    "a text box": 'input[type="search"]',
}
CASES = [("lab", mount, place) for mount in ("live", "saved") for place in FOCUSED]
CASES += [("notebook7", "live", place) for place in ("a row", "a button", "a text box")]
NOTEBOOK = "jupyterapp.shell.currentWidget"


@pytest.fixture(scope="module")
def looking(browser, lab, notebook_in):
    """Pages by front end: a live view in the first cell, a saved one in the next, a third cell."""
    sources = [LIVE, SAVED, "1"]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    pages = {}

    def page_of(front_end):
        if front_end not in pages:
            nbformat.write(made, lab[1] / f"{front_end}-keys.ipynb")
            page = browser.new_context(viewport={"width": 1300, "height": 1000}).new_page()
            notebook_in(front_end, page, f"{front_end}-keys.ipynb")
            page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
            page.get_by_role("region", name="Run minilm").nth(1).wait_for(timeout=60_000)
            pages[front_end] = page
        return pages[front_end]

    yield page_of
    for page in pages.values():
        page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
        page.context.close()


def state(page):
    """Ids of the cells, which of them is active, and the notebook's mode."""
    return page.evaluate(
        f"""() => {{
          const {{ widgets, activeCellIndex, mode }} = {NOTEBOOK}.content;
          return [widgets.map((cell) => cell.model.id), activeCellIndex, mode];
        }}"""
    )


def focused_in_view(page, view):
    """Whether what has the focus is inside the view."""
    return view.evaluate("view => view.contains(document.activeElement)")


@pytest.mark.parametrize(("front_end", "mount", "place"), CASES)
def test_keys_in_a_view_do_nothing_to_cells_and_control_s_saves(
    looking, front_end, mount, place, eventually
):
    """Insert, delete, cut, run and walk are held off wherever the focus is; saving is not."""
    notebook = looking(front_end)
    view = notebook.get_by_role("region", name="Run minilm").nth(["live", "saved"].index(mount))
    stop = view.locator(FOCUSED[place]).first
    stop.focus()
    before = state(notebook)
    for key in ("b", "a", "d", "d", "x", "z", "ArrowDown", "ArrowUp", "Shift+Enter"):
        notebook.keyboard.press(key)
        assert focused_in_view(notebook, view), key
    stop.focus()
    for key in ("Control+Enter", "Alt+Enter", "Control+Shift+ArrowDown", "Enter"):
        notebook.keyboard.press(key)
    notebook.evaluate("() => new Promise(done => setTimeout(done, 300))")
    assert state(notebook) == before
    assert view.count() == 1

    stop.focus()
    notebook.evaluate(f"() => {{ {NOTEBOOK}.context.model.dirty = true; }}")
    notebook.keyboard.press("Control+s")
    eventually(lambda: not notebook.evaluate(f"{NOTEBOOK}.context.model.dirty"), seconds=20)


@pytest.mark.parametrize("front_end", ["lab", "notebook7"])
def test_views_in_a_notebook_are_accessible(looking, front_end):
    """axe-core finds nothing in a live view, with buttons and targets at work, or a saved one."""
    page = looking(front_end)
    page.locator(".kforge-atwork > summary").click()
    assert violations(page, ".jp-OutputArea .kforge") == []
