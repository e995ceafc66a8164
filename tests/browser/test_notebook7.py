"""A saved run in Notebook 7, which opens documents in pages of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

EXAMPLE = Path(__file__).parents[1] / "store" / "fixtures" / "example.kforge.json"


def test_a_run_opens_from_the_file_list_with_its_toolbar(page, lab):
    """A double click shows the run in the viewer; Open in notebook makes a cell that loads it."""
    folder = lab[1] / "files"
    folder.mkdir()
    shutil.copy(EXAMPLE, folder / "minilm.kforge.json")
    if page.goto(f"{lab[0]}tree/files?reset").status == 404:
        pytest.skip('no Notebook 7 in that environment: pip install "notebook>=7.2"')
    with page.context.expect_page() as opened:
        page.locator(".jp-DirListing-item", has_text="minilm").dblclick()
    viewer = opened.value.locator(".kforge-viewer")
    viewer.get_by_role("region", name="Run minilm").wait_for(timeout=60_000)
    for name in ("Copy source", "HTML", "JSON"):
        assert viewer.get_by_role("button", name=name, exact=True).first.is_enabled()

    with page.context.expect_page() as made:
        viewer.get_by_role("button", name="Open in notebook").click()
    cell = made.value.locator(".jp-CodeCell").first
    cell.get_by_text("load_run").wait_for(timeout=60_000)
    assert 'kforge_nb.load_run("minilm.kforge.json")' in cell.inner_text()
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
