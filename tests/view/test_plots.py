"""The matplotlib figures."""

from __future__ import annotations

import matplotlib as mpl
import pytest
from matplotlib import pyplot

from kforge_nb.errors import BadInput
from kforge_nb.view.plot_guard import plot_guard, plot_whole
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
        "best so far",
        "equal budgets, estimated",
        "measured, rest eager: 1.20× (1.19 to 1.21)",
        "measured, rest inductor: 1.06× (1.05 to 1.07)",
    ]


def test_targets_shrink_by_their_best_candidate(document):
    """Two bars a target: its share, and what its best candidate leaves of it, if there is one."""
    ax = plot_targets(document)
    shares, left = ([bar.get_width() for bar in group] for group in ax.containers)

    assert shares[0] == pytest.approx(64.66)
    assert left[:2] == pytest.approx([0, 11.89 / 2.31])


def test_guard_draws_both_intervals_of_each_kernel_on_one_axis(document):
    """Alone and in the model, with the ends of the 95% intervals, around a line at 1."""
    ax = plot_guard(document)
    bars = [b.get_segments()[0][:, 0] for c in ax.containers for b in c.lines[2]]

    assert len(bars) == 6
    assert any(list(b) == pytest.approx([2.2638, 2.3585]) for b in bars)
    assert any(list(b) == pytest.approx([0.993, 1.004]) for b in bars)
    assert ax.get_xscale() == "log"
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[0] == "0 gelu\nreplaced"
    assert labels[2].endswith("kept original")


def test_whole_draws_each_way_and_says_what_each_shows(document):
    """One bar a measured way in ms, with words that claim no more than the interval."""
    ax = plot_whole(document)
    texts = "\n".join(text.get_text() for text in ax.texts)

    assert [round(p.get_width(), 1) for p in ax.patches] == [41.0, 33.3, 41.4, 34.5, 33.4, 31.5]
    assert "1.30× (1.29 to 1.31) over eager" in texts
    assert "no difference shown (0.981 to 1.001) against eager" in texts
    assert "(ms)" in ax.get_xlabel()


@pytest.mark.parametrize("draw", [plot_guard, plot_whole])
def test_before_the_guard_there_is_nothing_to_draw(document, draw):
    """A figure of nothing is an error that says when there will be one."""
    document.update(decisions=[], whole=[])
    with pytest.raises(BadInput, match=r"guard.*(nothing yet|at the end)"):
        draw(document)


@pytest.mark.parametrize(
    ("by", "label"), [("calls", "calls of a language model"), ("seconds", "seconds of search")]
)
def test_cost_is_drawn_in_any_unit_also_for_one_target(document, by, label):
    """What a target cost, and where it ended, is told in the unit that was asked for."""
    assert plot_cost(document, by=by).get_xlabel() == label
    ax = plot_cost(document, by="judged", target=0)
    assert ax.get_ylabel() == "speed-up over eager (×)"
    assert ax.texts[0].get_text().startswith("no gain in the last 8")
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(2.31)


def test_cost_marks_where_a_rule_ended_a_target(document):
    """The stop rule's point lies on the curve; the end of the whole run is not taken for one."""
    ended = {"at": "", "reason": "", "calls": 0, "usd": 0.0, "seconds": 0.0}
    document["targets"][0]["stopped"] = {**ended, "by": "rule", "judged": 14}
    document["targets"][2]["stopped"] = {**ended, "by": "run", "judged": 26}
    ax = plot_cost(document)
    (marks,) = [line for line in ax.lines if line.get_label() == "a target ended"]

    assert list(marks.get_xdata()) == [14]
    assert marks.get_ydata()[0] == ax.lines[0].get_ydata()[14]


def test_cost_in_an_unknown_unit_or_of_no_target_says_what_there_is(document):
    """A mistyped argument is named with the choices."""
    with pytest.raises(BadInput, match="usd, calls, seconds, judged, not by 'euros'"):
        plot_cost(document, by="euros")
    with pytest.raises(BadInput, match="no target 99"):
        plot_cost(document, target=99)


@pytest.mark.parametrize("draw", [plot_cost, plot_targets, plot_tree, plot_guard, plot_whole])
def test_figures_are_fit_for_print(document, draw, tmp_path, caplog):
    """They go into EPS, which knows no transparency, without a warning."""
    draw(document).figure.savefig(tmp_path / "figure.eps")
    assert "transparency" not in caplog.text


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
