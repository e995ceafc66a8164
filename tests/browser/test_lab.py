"""The view in JupyterLab and Notebook 7: live, stopped by its button, saved, and opened again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"

FOCUS = "document.activeElement.matches('.jp-Cell') ? 'cell' : document.activeElement.outerHTML"
CELL = f"""
import json, threading
from kforge_nb.view.live import open_view

document = json.load(open({str(EXAMPLE)!r}))
stopped = threading.Event()

def work():
    shown = {{**document, "state": "searching", "whole": [], "decisions": []}}
    for judged in range(100_000):
        progress = {{**document["progress"], "judged": judged, "message": f"judging {{judged}}"}}
        view.publish({{**shown, "progress": progress}})
        if stopped.wait(0.1):
            break
    view.finish({{**document, "state": "stopped", "state_reason": "stopped by you"}})

view = open_view(document["details"].get, lambda asked: asked["name"] == "stop" and stopped.set())
view.display()
threading.Thread(target=work, daemon=True).start()
"""


@pytest.fixture
def notebook(lab):
    """A notebook with the cell above in the Lab's folder."""
    path = lab[1] / "live.ipynb"
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(made, path)
    return path


def outputs(path):
    """Outputs of the first cell in the file; none while it is being written."""
    try:
        return nbformat.read(path, as_version=4).cells[0].outputs
    except nbformat.reader.NotJSONError:
        return []


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.2)


@pytest.mark.parametrize("front_end", ["lab", "notebook7"])
def test_a_run_is_watched_stopped_saved_and_opened_again(
    page, lab, notebook_in, front_end, notebook
):
    """The whole life of one output: widget, Stop, static bundle, file, a page without kernel."""
    notebook_in(front_end, page, notebook.name)
    cell = page.locator(".jp-Notebook .jp-CodeCell").first
    cell.locator(".jp-InputArea-editor").click()
    page.keyboard.press("Shift+Enter")

    live = page.locator(".kforge")
    live.wait_for(timeout=60_000)
    page.get_by_text("judging").first.wait_for()
    first = live.locator(".kforge-state").inner_text()
    wait_until(lambda: live.locator(".kforge-state").inner_text() != first)

    live.locator('[data-id="0.0"]').click()
    live.get_by_label("source").wait_for()
    live.get_by_role("button", name="Stop").focus()
    page.keyboard.press("Enter")

    saved = page.locator('.kforge-run [aria-label="Run minilm"]')  # drawn by the extension
    saved.wait_for(timeout=30_000)
    assert "stopped by you" in saved.inner_text()
    assert page.locator(".jupyter-widgets").count() == 0
    assert page.evaluate(FOCUS) == "cell"  # which has the keys again

    page.keyboard.press("Control+s")
    wait_until(lambda: len(outputs(notebook)) == 1)
    data = outputs(notebook)[0]["data"]
    assert set(data) == {"application/vnd.kforge.run+json", "text/html", "text/plain"}
    assert json.loads(json.dumps(data["application/vnd.kforge.run+json"]))["state"] == "stopped"

    end_kernels(page, lab)
    notebook_in(front_end, page, notebook.name)
    saved.wait_for(timeout=60_000)
    assert "Error displaying widget" not in page.locator("body").inner_text()


def end_kernels(page, lab):
    """Shuts every session down, as if the server had been restarted."""
    sessions = page.request.get(f"{lab[0]}api/sessions").json()
    assert sessions
    for session in sessions:
        assert page.request.delete(f"{lab[0]}api/sessions/{session['id']}").status == 204
