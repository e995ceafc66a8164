"""The extension in a real JupyterLab: viewer, list of runs, notebooks, keyboard, themes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.browser.accessible import violations
from tests.browser.servers import LAB_PYTHON

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "store" / "fixtures" / "example.kforge.json"


@pytest.fixture(scope="module")
def run():
    """The run in the files."""
    return json.loads(EXAMPLE.read_text())


@pytest.fixture(scope="module")
def desk(browser, lab):
    """One JupyterLab page for all tests here, with runs in a folder; an error of ours fails."""
    folder = lab[1] / "runs"
    (folder / "none").mkdir(parents=True)
    shutil.copy(EXAMPLE, folder / "minilm.kforge.json")
    (folder / "broken.kforge.json").write_text("{broken")
    (folder / "newer.kforge.json").write_text('{"schema": "kforge.run/9"}')
    context = browser.new_context(viewport={"width": 1300, "height": 1000}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
    quiet = {"raw": '{"refreshSeconds": 0}'}  # what is seen to change is not just the next look
    settings = f"{lab[0]}lab/api/settings/kforge-nb:runs"
    assert page.request.put(settings, data=quiet).status == 204
    page.goto(f"{lab[0]}lab/tree/runs?reset")
    page.locator(".jp-Launcher").first.wait_for(timeout=60_000)
    yield page
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    context.close()
    assert [text for text in errors if "extensions/kforge-nb" in text] == []


@pytest.fixture(autouse=True)
def tidy(desk):
    """Each test begins with no document open and the file browser at the runs."""
    command(desk, "docmanager:save-all")
    command(desk, "application:close-all")
    command(desk, "filebrowser:go-to-path", path="runs")


def command(page, name, **arguments):
    """Executes a command of JupyterLab."""
    page.evaluate(
        "([name, args]) => jupyterapp.commands.execute(name, args).then(() => null)",
        [name, arguments],
    )


def opened(page, name="minilm"):
    """The viewer of a run of the folder."""
    command(page, "docmanager:open", path=f"runs/{name}.kforge.json")
    viewer = page.locator(".kforge-viewer").last
    viewer.locator(".kforge, .kforge-problem").first.wait_for()
    return viewer


def listed(page):
    """The panel with the list, read."""
    command(page, "kforge:show-runs")
    panel = page.locator("#kforge-runs")
    panel.locator(".kforge-runs-row", has_text="● done").wait_for()
    return panel


def copied_is(page, text):
    """Waits until the clipboard holds the text; says what it holds otherwise."""
    for _ in range(100):
        held = page.evaluate("navigator.clipboard.readText()")
        if held == text:
            return
        page.wait_for_timeout(50)
    assert held == text


# -- is it there ---------------------------------------------------------------------------


def test_the_extension_is_listed_and_its_plugins_are_active(desk):
    """`jupyter labextension list` says OK, and JupyterLab has started every plugin."""
    done = subprocess.run(
        [LAB_PYTHON, "-m", "jupyter", "labextension", "list"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    line = next(line for line in (done.stdout + done.stderr).splitlines() if "kforge-nb" in line)
    assert "enabled" in line
    assert "OK" in line
    for plugin in ("viewer", "runs", "start", "kernels"):
        assert desk.evaluate(f"jupyterapp.isPluginActivated('kforge-nb:{plugin}')"), plugin


def test_every_command_stands_in_the_palette_under_one_name(desk):
    """All commands are `kforge:…` and have words; who types `kernel forge` finds them."""
    found = desk.evaluate(
        "jupyterapp.commands.listCommands().filter((id) => id.startsWith('kforge'))"
        ".map((id) => [id, jupyterapp.commands.label(id)])"
    )
    assert len(found) == 8
    assert all(id.startswith("kforge:") and label for id, label in found)
    command(desk, "apputils:activate-command-palette")
    desk.keyboard.type("kernel forge")
    items = desk.locator(".lm-CommandPalette-item:visible", has_text="Run")
    items.first.wait_for()
    assert any("Show Runs of This Folder" in text for text in items.all_inner_texts())
    desk.keyboard.press("Escape")


# -- the viewer ----------------------------------------------------------------------------


def test_a_double_click_opens_a_run_in_the_viewer(desk):
    """The file type is known and the viewer is what opens it, without any kernel."""
    kernels = "[...jupyterapp.serviceManager.kernels.running()].length"
    before = desk.evaluate(kernels)
    desk.locator(".jp-DirListing-item", has_text="minilm").dblclick()
    region = desk.locator(".kforge-viewer").get_by_role("region", name="Run minilm")
    region.wait_for()

    assert "over the untouched eager model" in region.inner_text()
    assert desk.evaluate(kernels) == before


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("broken", "The file is no JSON"),
        ("newer", "written by a newer kforge_nb (schema kforge.run/9"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(desk, name, says):
    """Broken JSON and a newer schema: a message, no blank pane, and buttons that are off."""
    viewer = opened(desk, name)

    assert says in viewer.get_by_role("alert").inner_text()
    assert viewer.locator(".kforge").count() == 0
    assert viewer.locator(".jp-ToolbarButtonComponent[aria-disabled='true']").count() == 4


def test_the_source_of_the_selected_kernel_is_copied(desk, run):
    """First that of the best candidate, after a click that of the clicked one."""
    viewer = opened(desk)
    best = next(target["best"] for target in run["targets"] if target["best"])
    sources = {name: details["source"] for name, details in run["details"].items()}
    other = next(n for n in sources if n.startswith("0.") and sources[n] != sources[best])
    for wanted in (best, other):
        viewer.locator(f'[data-id="{wanted}"]').click()
        viewer.locator(f'[data-id="{wanted}"][aria-selected="true"]').wait_for()
        viewer.locator(".jp-Toolbar").get_by_role("button", name="Copy source").click()
        copied_is(desk, sources[wanted])


def test_exports_are_the_file_and_a_page_that_needs_nothing_else(desk, run, tmp_path, page):
    """JSON is the very file; the HTML page opens from a folder, and asks no network."""
    viewer = opened(desk)
    for label, name in (("JSON", "minilm.kforge.json"), ("HTML", "minilm.html")):
        with desk.expect_download() as caught:
            viewer.get_by_role("button", name=label, exact=True).click()
        assert caught.value.suggested_filename == name
        caught.value.save_as(tmp_path / name)
    assert (tmp_path / "minilm.kforge.json").read_text() == EXAMPLE.read_text()
    look_at(page, tmp_path / "minilm.html", run)


def look_at(page, file, run):
    """Opens a stand-alone page from its file: the whole view, no request, no complaint."""
    asked, told = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: told.append(message.text))
    page.goto(file.as_uri())
    page.get_by_role("region", name="Run minilm").wait_for()
    node = run["targets"][0]["best"]
    page.locator(f'[data-id="{node}"]').click()
    page.get_by_text(run["details"][node]["source"].splitlines()[0]).first.wait_for()

    assert asked == [file.as_uri()]
    assert told == []


def test_the_page_that_python_writes_is_the_same(run, tmp_path, page):
    """`run.to_html(path)` from a saved run, with its policy in force."""
    import kforge_nb

    look_at(page, kforge_nb.load_run(EXAMPLE).to_html(tmp_path / "page.html"), run)
    assert page.evaluate("fetch('https://example.invalid/').then(() => 1, () => 0)") == 0


# -- the list of runs ----------------------------------------------------------------------


def test_the_list_tells_state_result_and_device_of_each_run(desk):
    """One row a file of the folder; what cannot be read says why."""
    rows = listed(desk).locator(".kforge-runs-row").all_inner_texts()

    assert len(rows) == 3
    shown = next(text for text in rows if text.startswith("minilm"))
    assert "BertModel on Intel Xeon" in shown
    assert "1.30×" in shown
    assert re.search(r"\n20\d\d-\d\d-\d\d \d\d:\d\d$", shown)  # as `%kforge runs` writes it
    assert any("newer kforge_nb" in text for text in rows)


def test_the_list_follows_the_folder(desk, lab):
    """A file that is written through JupyterLab appears, and goes again when it is deleted."""
    panel = listed(desk)
    desk.evaluate(
        "jupyterapp.serviceManager.contents.copy('runs/minilm.kforge.json', 'runs').then(() => 0)"
    )
    copied = panel.locator(".kforge-runs-row", has_text="minilm-Copy1")
    copied.wait_for()
    desk.evaluate(
        "jupyterapp.serviceManager.contents.delete('runs/minilm-Copy1.kforge.json').then(() => 0)"
    )
    copied.wait_for(state="detached")


def test_the_list_is_read_again_on_demand(desk, lab):
    """A file that a kernel wrote is not announced to JupyterLab; Refresh finds it."""
    panel = listed(desk)
    written = lab[1] / "runs" / "fresh.kforge.json"
    shutil.copy(EXAMPLE, written)
    panel.get_by_role("button", name="Refresh").click()
    panel.locator(".kforge-runs-row", has_text="fresh").get_by_text("done").wait_for()
    written.unlink()
    command(desk, "kforge:refresh-runs")
    panel.locator(".kforge-runs-row", has_text="fresh").wait_for(state="detached")


def test_an_empty_folder_says_how_to_save_a_run(desk):
    """What to type, not just that there is nothing."""
    listed(desk)
    command(desk, "filebrowser:go-to-path", path="runs/none")
    command(desk, "kforge:show-runs")
    panel = desk.locator("#kforge-runs")
    panel.get_by_text("%kforge export run").wait_for()

    assert "0 runs" in panel.inner_text()


def test_a_run_is_found_opened_and_copied_by_keyboard_alone(desk, run):
    """Palette, arrow keys, Enter, Tab: no mouse anywhere."""
    listed(desk)
    desk.keyboard.press("Control+Shift+C")
    desk.keyboard.type("Show Runs of This")
    desk.locator(".lm-CommandPalette-item.lm-mod-active", has_text="Show Runs").wait_for()
    desk.keyboard.press("Enter")
    desk.wait_for_function("document.activeElement?.classList.contains('kforge-runs-row')")
    desk.keyboard.press("Home")
    while not desk.evaluate("document.activeElement.textContent.startsWith('minilm')"):
        desk.keyboard.press("ArrowDown")
    desk.keyboard.press("Enter")
    desk.locator(".kforge-viewer .kforge").wait_for()
    desk.wait_for_function("document.activeElement?.closest('.kforge-viewer') !== null")
    desk.keyboard.press("Shift+Tab")
    assert desk.evaluate("document.activeElement.textContent") == "Copy source"
    desk.evaluate("navigator.clipboard.writeText('nothing yet')")
    desk.keyboard.press("Enter")
    best = next(target["best"] for target in run["targets"] if target["best"])
    copied_is(desk, run["details"][best]["source"])


# -- notebooks -----------------------------------------------------------------------------


def test_a_run_goes_on_in_a_notebook_where_the_output_is_the_view(desk):
    """The button makes a notebook whose cell loads the run; the extension draws its output."""
    opened(desk).get_by_role("button", name="Open in notebook").click()
    cell = desk.locator(".jp-Notebook .jp-CodeCell").first
    cell.get_by_text("load_run").wait_for()
    assert 'kforge_nb.load_run("minilm.kforge.json")' in cell.inner_text()
    cell.locator(".cm-content").click()
    desk.get_by_text("Python 3 (ipykernel) | Idle").first.wait_for(timeout=60_000)
    desk.keyboard.press("Control+Enter")
    output = cell.locator(".jp-OutputArea .kforge-run")
    output.get_by_role("region", name="Run minilm").wait_for(timeout=60_000)
    assert cell.locator(".jp-RenderedHTMLCommon").count() == 0

    type_cell(desk, "%load_ext kforge_nb")
    desk.keyboard.press("Shift+Enter")
    desk.get_by_text("Python 3 (ipykernel) | Idle").first.wait_for(timeout=60_000)
    desk.keyboard.type("%kforge st")
    desk.keyboard.press("Tab")
    offered = desk.locator(".jp-Completer-match")
    offered.first.wait_for()
    assert offered.all_inner_texts() == ["status", "stop"]
    desk.keyboard.press("Escape")


def test_a_notebook_that_is_open_gets_the_cell(desk):
    """It stands below the active cell, with the path from the notebook's own folder."""
    command(desk, "filebrowser:go-to-path", path="runs/none")
    command(desk, "notebook:create-new", kernelName="python3", cwd="runs/none")
    desk.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    desk.evaluate("jupyterapp.shell.currentWidget.context.ready")
    opened(desk).get_by_role("button", name="Open in notebook").click()
    added = desk.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").nth(1)
    added.wait_for()

    assert 'kforge_nb.load_run("../minilm.kforge.json")' in added.inner_text()
    desk.get_by_text("Python 3 (ipykernel) | Idle").first.wait_for(timeout=60_000)


def type_cell(page, text):
    """A new cell below with this text, and the cursor at its end."""
    page.evaluate("jupyterapp.shell.currentWidget.context.ready")
    command(page, "notebook:insert-cell-below")
    page.evaluate(
        "text => jupyterapp.shell.currentWidget.content.activeCell.model"
        ".sharedModel.setSource(text)",
        text,
    )
    page.locator(".jp-CodeCell.jp-mod-active .cm-content").click()
    page.keyboard.press("Control+End")


def test_kernel_cells_are_cuda_only_as_long_as_they_are(desk, lab):
    """The body is highlighted while the first line is the magic, and Python again without it."""
    command(desk, "notebook:create-new", kernelName="python3")
    desk.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    type_cell(
        desk,
        "%%kforge kernel --target 0\n// a kernel\n__global__ void f() { int i = threadIdx.x; }",
    )
    cell = desk.locator(".jp-CodeCell.jp-mod-active")
    words = cell.locator(".kforge-cuda")
    words.first.wait_for()
    assert words.all_inner_texts() == ["__global__", "void", "int", "threadIdx"]
    comment = cell.locator(".cm-line", has_text="// a kernel").locator("span").first
    styled = comment.get_attribute("class")

    desk.keyboard.press("Control+Home")
    desk.keyboard.press("Delete")
    words.first.wait_for(state="detached")
    python = cell.locator(".cm-line", has_text="// a kernel").locator("span").first
    assert python.get_attribute("class") != styled

    desk.keyboard.type("%")
    words.first.wait_for()


def test_the_launcher_makes_a_notebook_that_can_be_run(desk):
    """One card, and cells that begin with the extension's own magics."""
    command(desk, "launcher:create", cwd="runs")
    desk.locator(".jp-LauncherCard:visible", has_text="Speed up a model").first.click()
    cells = desk.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell")
    cells.nth(7).wait_for()
    text = "\n".join(cells.all_inner_texts())
    steps = ["%load_ext kforge_nb", "%%kforge optimize", "%kforge wait", "%kforge guard"]
    found = [text.index(step) for step in (*steps, "run.apply()", "run.counters()")]
    assert found == sorted(found)
    desk.get_by_text("Python 3 (ipykernel) | Idle").first.wait_for(timeout=60_000)


# -- themes and accessibility --------------------------------------------------------------


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_viewer_and_list_are_accessible_in_both_themes(desk, theme):
    """axe-core finds nothing of WCAG 2 A and AA, contrast included."""
    command(desk, "apputils:change-theme", theme=theme)
    desk.wait_for_function(
        "dark => document.body.dataset.jpThemeLight === String(!dark)", arg="Dark" in theme
    )
    opened(desk)
    listed(desk)
    found = violations(desk, ".kforge-viewer", "#kforge-runs")
    command(desk, "apputils:change-theme", theme="JupyterLab Light")
    assert found == []
