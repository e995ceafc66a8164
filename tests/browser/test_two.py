"""Two notebooks on two runs, and two views of one run, in a real JupyterLab."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


@pytest.fixture
def two(page, lab):
    """Two notebooks side by side in one folder, run; ``left`` shows its run in two cells."""
    folder = Path(tempfile.mkdtemp(dir=lab[1]))
    for name, further in (("left", ["run.show()"]), ("right", [])):
        begun = (
            f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"from tests.kernel.light_run import begin\nrun = begin({name!r}, seconds=0.1)"
        )
        cells = [nbformat.v4.new_code_cell(source) for source in (begun, *further)]
        made = nbformat.v4.new_notebook(cells=cells)
        made.metadata["kernelspec"] = KERNEL
        nbformat.write(made, folder / f"{name}.ipynb")
    page.set_viewport_size({"width": 1800, "height": 1600})
    page.goto(f"{lab[0]}lab/tree/{folder.name}/left.ipynb?reset")
    run_all(page)
    views(page, "left").nth(1).wait_for(timeout=60_000)
    page.evaluate(
        "path => jupyterapp.commands.execute("
        "'docmanager:open', {path, options: {mode: 'split-right'}}).then(() => null)",
        f"{folder.name}/right.ipynb",
    )
    run_all(page)
    views(page, "right").first.wait_for(timeout=60_000)
    yield page
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")


def run_all(page):
    """Runs every cell of the notebook in front, once its kernel is there."""
    kernel = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
    page.wait_for_function(f"{kernel}?.status === 'idle'", timeout=60_000)
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")


def views(page, name):
    """The views of a run."""
    return page.get_by_role("region", name=f"Run {name}", exact=True)


def button(view, name):
    """A button by its whole name."""
    return view.get_by_role("button", name=name, exact=True)


def counted(view):
    """How many candidates a view counts."""
    bar = view.get_by_role("progressbar", name="Candidates judged")
    return int(bar.get_attribute("aria-valuenow"))


def test_each_notebook_has_its_own_run_and_each_view_the_same_one(two, eventually):
    """A button of one view acts on its run alone, and every view of that run shows it."""
    first, second = views(two, "left").nth(0), views(two, "left").nth(1)
    other = views(two, "right").first

    button(first, "Pause the run").click()
    button(second, "Resume the run").wait_for()
    button(first, "Resume the run").wait_for()
    held, going = counted(second), counted(other)
    eventually(lambda: counted(other) > going + 3)
    assert counted(second) - held <= 2  # those that were under way
    assert button(other, "Pause the run").count() == 1

    button(second, "Resume the run").click()
    eventually(lambda: counted(first) > held + 2)
    button(other, "Stop the run").click()
    two.get_by_text("stopped by the button").first.wait_for()
    now = counted(first)
    eventually(lambda: counted(second) > now)


def test_one_target_is_held_and_ended_by_its_own_buttons(two, eventually):
    """The other target goes on getting candidates; a target that was ended gets none."""
    view = views(two, "right").first
    view.get_by_text("2 targets at work").click()

    button(view, "Pause target 0").click()
    view.get_by_text("2 targets at work, 1 paused").wait_for()
    eventually(lambda: "judging" not in row_of(view, 0).inner_text())
    held, going = judged_of(view, 0), judged_of(view, 1)
    eventually(lambda: judged_of(view, 1) > going + 3)
    assert judged_of(view, 0) == held

    button(view, "Resume target 0").click()
    eventually(lambda: judged_of(view, 0) > held)
    button(view, "Stop target 0").click()
    view.get_by_text("1 target at work").wait_for()
    assert button(view, "Stop the run").count() == 1
    going = judged_of(view, 1)
    eventually(lambda: judged_of(view, 1) > going)


def row_of(view, target):
    """The row of a target that is at work."""
    return view.locator(".kforge-atwork tbody tr").filter(has_text=f"{target} softmax {target}")


def judged_of(view, target):
    """Candidates of one target, as its row counts them."""
    return int(row_of(view, target).locator("td").nth(1).inner_text())
