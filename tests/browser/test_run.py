"""A real search in a real JupyterLab, from the first cell to the saved file, as its user lives it.

One server, one page, one run; each test goes on where the one before ended.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

CONTRAST = (Path(__file__).parent / "contrast.js").read_text()

SETUP = """
%load_ext kforge_nb
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))
model = model.eval().requires_grad_(False)
x = torch.randn(256, 64)

# No device is that fast: without it a search could be over before anyone has looked at it.
from kforge_nb.profile import calibration
calibration._MEASURED.clear()
calibration._read = calibration.recall = lambda path, identity: None
calibration._write = calibration.remember = lambda path, measured: measured
calibration._measure = lambda device, identity: calibration.Calibration(
    device, identity, 1e7, {1: 1e7}, {"float32": 1e7}, 0.0
)
"""
OPTIMIZE = """%%kforge optimize --budget 500 --patience 500 --baseline eager --rest eager \
--guard-time 2 --as watched
with torch.inference_mode():
    model(x)"""
SAVED = {"application/vnd.kforge.run+json", "text/html", "text/plain"}
FILE = "watched.kforge.json"


@pytest.fixture(scope="module")
def watched(browser, lab, tmp_path_factory):
    """A page with a notebook whose two cells have been run: the search is on its way."""
    folder = lab[1] / "watched"
    folder.mkdir()
    home = f"import os\nos.environ['KFORGE_HOME'] = {str(tmp_path_factory.mktemp('home'))!r}\n"
    sources = [home + SETUP, OPTIMIZE]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(made, folder / "real.ipynb")
    context = browser.new_context(viewport={"width": 1300, "height": 1000})
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
    opened(page, lab)
    command(page, "notebook:run-all-cells")
    page.get_by_role("region", name="Run watched").wait_for(timeout=120_000)
    yield page
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    context.close()
    assert [text for text in errors if "kforge" in text] == []


def opened(page, lab):
    """The notebook, with its kernel ready."""
    page.goto(f"{lab[0]}lab/tree/watched/real.ipynb?reset")
    idle(page)


def idle(page):
    """Waits until the kernel of the notebook has nothing to do."""
    page.locator(".jp-NotebookPanel").first.wait_for(timeout=60_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").first.wait_for(timeout=120_000)


def command(page, name, **arguments):
    """Executes a command of JupyterLab, without waiting for its end."""
    page.evaluate(
        "([name, args]) => void jupyterapp.commands.execute(name, args)", [name, arguments]
    )


def region(page):
    """The view of the run."""
    return page.get_by_role("region", name="Run watched")


def judged(page):
    """How many candidates the progress bar counts."""
    bar = region(page).get_by_role("progressbar", name="Candidates judged")
    return int(bar.get_attribute("aria-valuenow"))


def until(condition, what, seconds=60):
    """Polls what no browser event tells."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def test_candidates_appear_while_they_are_judged(watched):
    """The counter and the tree of a real search grow on the page, and the kernel stays free."""
    items = region(watched).get_by_role("treeitem")
    items.nth(1).wait_for(timeout=120_000)
    before = judged(watched)
    until(lambda: judged(watched) > before, "no further candidate was counted")
    idle(watched)


def test_the_source_of_a_candidate_comes_on_a_click(watched):
    """While the search goes on a click asks the kernel for the C++ of this very candidate."""
    view = region(watched)
    item = view.locator('[role="treeitem"][data-id*="."]').first
    node = item.get_attribute("data-id")
    item.click()
    view.get_by_role("heading", name=f"Node {node}:").wait_for()
    code = view.get_by_label("source", exact=True)
    code.wait_for()
    assert 'extern "C"' in code.inner_text()


def test_tree_and_table_are_walked_while_the_run_goes_on(watched):
    """New candidates take neither the focus nor the selection away from the keys."""
    view = region(watched)
    item = view.locator('[role="treeitem"][data-id*="."]').first
    item.focus()
    before = judged(watched)
    node = item.get_attribute("data-id")
    until(lambda: judged(watched) > before, "no further candidate was counted")
    focused = watched.evaluate("document.activeElement.dataset.id")
    assert focused == node
    watched.keyboard.press("ArrowLeft")
    parent = watched.evaluate("document.activeElement.getAttribute('aria-level')")
    assert parent == "1"

    rows = view.get_by_role("grid", name="Targets").locator("tr[data-target]")
    first = rows.first.get_attribute("data-target")
    view.locator('.kforge-targets tr[tabindex="0"]').focus()
    watched.keyboard.press("Home")
    watched.keyboard.press("Enter")
    view.locator(f'tr[data-target="{first}"][aria-selected="true"]').wait_for()


def test_a_reloaded_page_shows_the_run_that_goes_on(watched, lab):
    """Saved in the middle and loaded again: the same run, live, with a Stop that works."""
    command(watched, "docmanager:save")
    outputs = lab[1] / "watched" / "real.ipynb"
    until(lambda: "kforge" in last_output(outputs), "the notebook was not saved")
    before = judged(watched)
    opened(watched, lab)
    region(watched).wait_for(timeout=60_000)
    until(lambda: judged(watched) > before, "the page did not catch up")
    region(watched).locator('[role="treeitem"][data-id*="."]').first.click()
    region(watched).get_by_label("source", exact=True).wait_for()  # questions are answered again
    assert "Error displaying widget" not in watched.locator("body").inner_text()


def last_output(path):
    """The output of the second cell in the file, as text; nothing while it is written."""
    try:
        return json.dumps(nbformat.read(path, as_version=4).cells[1].outputs)
    except nbformat.reader.NotJSONError:
        return ""


def test_stop_leaves_the_saved_view(watched, lab):
    """The button ends the search, the guard measures, and what stays needs no kernel."""
    region(watched).get_by_role("button", name="Stop the run", exact=True).click()
    region(watched).get_by_text("stopped by the button").first.wait_for(timeout=120_000)
    saved = watched.locator(".kforge-run").get_by_role("region", name="Run watched")
    saved.wait_for()
    assert watched.locator(".jupyter-widgets").count() == 0
    command(watched, "docmanager:save")
    path = lab[1] / "watched" / "real.ipynb"
    until(lambda: "stopped by the button" in last_output(path), "the notebook was not saved")
    (output,) = nbformat.read(path, as_version=4).cells[1].outputs
    assert set(output["data"]) == SAVED


def test_a_restarted_kernel_takes_nothing_away(watched, lab):
    """Restart, then reload: the saved view both times, never a widget's error."""
    command(watched, "notebook:restart-kernel")
    watched.get_by_role("dialog").get_by_role("button", name="Confirm").click()
    saved = watched.locator(".kforge-run").get_by_role("region", name="Run watched")
    idle(watched)
    assert saved.count() == 1
    opened(watched, lab)
    saved.wait_for(timeout=60_000)
    assert "Error displaying widget" not in watched.locator("body").inner_text()


def test_the_run_is_exported_by_a_later_kernel(watched, lab):
    """The restarted kernel knows the run by its name, from the store beside the notebook."""
    command(watched, "notebook:move-cursor-down")
    watched.evaluate(
        """(source) => {
          const notebook = jupyterapp.shell.currentWidget.content;
          notebook.activeCellIndex = 1;
          return jupyterapp.commands.execute("notebook:insert-cell-below").then(() => {
            notebook.activeCell.model.sharedModel.setSource(source);
          });
        }""",
        f"%load_ext kforge_nb\n%kforge export watched {FILE}",
    )
    command(watched, "notebook:run-cell")
    watched.get_by_text(f"wrote run watched to {FILE}").wait_for(timeout=60_000)
    document = json.loads((lab[1] / "watched" / FILE).read_text())
    assert document["state"] == "stopped"
    assert len(document["nodes"]) == len(document["details"]) > 2


@pytest.fixture(scope="module")
def viewer(watched):
    """The exported file in the viewer, in JupyterLab's dark theme."""
    command(watched, "apputils:change-theme", theme="JupyterLab Dark")
    watched.wait_for_function("document.body.dataset.jpThemeLight === 'false'")
    command(watched, "docmanager:open", path=f"watched/{FILE}")
    shown = watched.locator(".kforge-viewer")
    shown.get_by_role("region", name="Run watched").wait_for()
    command(watched, "application:close-right-tabs")
    yield shown
    command(watched, "apputils:change-theme", theme="JupyterLab Light")


def test_the_viewer_shows_the_same_run_in_the_dark(watched, viewer):
    """Every text of a real run, not of an example, stands out from what is behind it."""
    assert "stopped by the button" in viewer.inner_text()
    background = viewer.locator(".kforge").evaluate("e => getComputedStyle(e).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 64, background
    worst = watched.evaluate(CONTRAST.replace('".kforge"', '".kforge-viewer .kforge"'))
    assert worst["ratio"] >= 4.5, worst


def test_the_viewer_is_worked_by_tab_and_arrows_alone(watched, viewer):
    """Tab goes through the view in reading order, and each composite is one stop."""
    viewer.locator(".kforge").evaluate("e => { e.tabIndex = -1; e.focus(); }")
    stops = []
    for _ in range(80):
        watched.keyboard.press("Tab")
        where = watched.evaluate(
            """() => {
              const e = document.activeElement;
              if (!e.closest(".kforge-viewer .kforge")) return null;
              if (e.getAttribute("role") === "treeitem") return "tree";
              if (e.matches("tr[data-target]")) return "targets";
              if (e.getAttribute("role") === "tab") return "tab";
              return e.tagName.toLowerCase();
            }"""
        )
        if where is None:
            break
        stops.append(where)
    assert stops.count("tree") == 1
    assert stops.count("targets") == 1
    assert stops.count("tab") == 1
    assert stops.index("targets") < stops.index("tree") < stops.index("tab")
