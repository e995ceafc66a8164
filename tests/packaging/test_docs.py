"""The documentation points at things that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    """No page sends a reader to a file that is not there."""
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_picture_is_shown():
    """A picture that no page shows is kept up to date for nobody."""
    links = {page.parent / link for page in PAGES for link in LINK.findall(page.read_text())}
    shown = {link.resolve() for link in links}
    pictures = set((ROOT / "docs" / "images").iterdir())

    assert pictures
    assert pictures - shown == set()


def test_every_decision_is_in_the_index():
    """A page under docs/decisions that the index does not list is found by nobody."""
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()

    assert [p.name for p in folder.glob("*.md") if f"]({p.name})" not in index] == ["README.md"]


def test_paths_of_the_code_map_exist():
    """CONTRIBUTING's map follows the code."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows
    named = [name for row in rows for name in re.findall(r"`([\w/.-]+\.(?:py|tsx?))`", row)]
    homes = [ROOT, ROOT / "kforge_nb", ROOT / "labextension"]

    assert [n for n in named if not any((home / n).is_file() for home in homes)] == []


def test_make_targets_of_the_readme_exist():
    """Each `make NAME` of README and CONTRIBUTING is a target of the Makefile."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()

    named = {a or b for a, b in re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", text, re.MULTILINE)}

    assert {"demo", "test", "check"} <= named <= targets


def test_the_notebook_is_committed_without_outputs():
    """Figures in git go stale; the demo makes fresh ones."""
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_nothing_is_said_to_be_on_a_package_index():
    """kforge_nb is installed from a clone; pip finds nothing by its name, or worse."""
    folders = ("kforge_nb", "docs", "labextension/src", "notebooks", "binder")
    kinds = {".py", ".md", ".ts", ".tsx", ".ipynb"}
    files = [f for folder in folders for f in (ROOT / folder).rglob("*") if f.suffix in kinds]
    told = re.compile(r"pip install (?:-U )?['\"]?kforge[-_]nb")

    assert len(files) > 300
    assert [str(f) for f in files if told.search(f.read_text())] == []
    assert told.search("pip install 'kforge-nb[openai]'")
