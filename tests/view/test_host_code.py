"""Torch extensions run host code: each still view says so in words or by shape."""

from __future__ import annotations

import matplotlib as mpl
import pytest
from matplotlib import pyplot

from kforge_nb.run import tables
from kforge_nb.view.plot_guard import plot_guard
from kforge_nb.view.plots import plot_targets, plot_tree
from kforge_nb.view.static import to_html, to_svg
from kforge_nb.view.text import summary

mpl.use("Agg")


@pytest.fixture
def marked(document):
    """The example, where the best candidate of target 0, which is installed, is an extension."""
    (node,) = [n for n in document["nodes"] if n["id"] == "0.5"]
    node["language"] = "cuda_extension"
    return document


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def _rows(page: str, word: str) -> list[str]:
    return [row for row in page.split("<tr>") if word in row]


def test_html_marks_the_target_and_the_decision(marked):
    """The row of the target whose best it is, the row of its decision, and no other."""
    rows = _rows(to_html(marked).partition("<svg")[0], "(host code)")

    assert len(rows) == 2
    assert all("0 gelu" in row for row in rows)


def test_text_marks_the_target_and_the_decision(marked):
    """The same two lines in plain text."""
    lines = [line for line in summary(marked).splitlines() if "(host code)" in line]

    assert [line.split()[:2] for line in lines] == [["0", "gelu"], ["0", "gelu"]]


def test_the_drawn_tree_marks_it_by_letter_frame_and_title(marked):
    """Never by colour alone: one frame with broken lines, one H, and words in the title."""
    drawn = to_svg(marked, target=0)

    assert drawn.count("stroke-dasharray") == 1
    assert drawn.count(">H 2.31×<") == 1
    assert drawn.count("(host code)") == 1


def test_figures_mark_it(marked):
    """Tree, targets and decisions as figures name it too."""
    tree, targets, guard = plot_tree(marked, 0), plot_targets(marked), plot_guard(marked)
    legend = [text.get_text() for text in tree.get_legend().get_texts()]

    assert "H 2.31×" in [text.get_text() for text in tree.texts]
    assert "H: torch extension (host code)" in legend
    for ax in (targets, guard):
        named = [label.get_text() for label in ax.get_yticklabels()]
        (name,) = [name for name in named if "host code" in name]
        assert name.startswith("0 gelu (host code)")


def test_the_table_of_candidates_has_a_column(marked):
    """True for the extension, False for each other candidate, and a column of booleans."""
    table = tables.nodes(marked)

    assert table["host_code"].dtype == bool
    assert list(table["node"][table["host_code"]]) == ["0.5"]


def test_a_run_without_extensions_has_no_mark(document):
    """The words, the frame and the legend appear only where there is something to mark."""
    assert "host code" not in to_html(document) + summary(document) + to_svg(document)
    assert "stroke-dasharray" not in to_svg(document)
    assert not tables.nodes(document)["host_code"].any()
