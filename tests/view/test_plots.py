"""The matplotlib figures."""

from __future__ import annotations

import matplotlib as mpl
import pytest
from matplotlib import pyplot

from kforge_nb.errors import BadInput
from kforge_nb.view.plots import plot_cost, plot_targets, plot_tree

mpl.use("agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")


def test_cost_is_in_candidates_until_money_was_spent(document):
    """The axis says what the search really cost."""
    assert plot_cost(document).get_xlabel() == "candidates judged"
    document["costs"][0]["usd"] = 0.25
    assert plot_cost(document).get_xlabel() == "US dollars spent"


def test_cost_draws_the_measured_gain_beside_the_estimate(document):
    """Each rest that the guard measured is a line of its own, named with its interval."""
    labels = [text.get_text() for text in plot_cost(document).get_legend().get_texts()]

    assert labels == [
        "measured, rest eager: 1.20× (1.19 to 1.21)",
        "measured, rest inductor: 1.06× (1.05 to 1.07)",
    ]


def test_targets_shrink_by_their_best_candidate(document):
    """Two bars a target: its share, and what is left of it."""
    ax = plot_targets(document)
    shares, left = ([bar.get_width() for bar in group] for group in ax.containers)

    assert shares[0] == pytest.approx(64.66)
    assert left[:2] == pytest.approx([64.66, 11.89 / 2.31])


def test_tree_has_one_label_a_candidate(document):
    """Every candidate of the target is on the picture, and the root."""
    nodes = [n for n in document["nodes"] if n["target"] == 1]

    assert len(plot_tree(document, target=1).texts) == len(nodes) + 1


def test_plots_draw_into_given_axes(document):
    """Figures for a paper are composed by whoever writes it."""
    _, axes = pyplot.subplots(1, 3)

    assert plot_cost(document, axes[0]) is axes[0]
    assert plot_targets(document, axes[1]) is axes[1]
    assert plot_tree(document, ax=axes[2]) is axes[2]


def test_a_tree_without_candidates_says_what_to_do(document):
    """An untried target is a clear error, not an empty picture."""
    with pytest.raises(BadInput, match="Target 3 has no candidates to draw; run optimize"):
        plot_tree(document, target=3)
    with pytest.raises(BadInput, match="has judged no candidate"):
        plot_tree({**document, "nodes": [], "targets": []})
