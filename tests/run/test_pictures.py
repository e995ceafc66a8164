"""Tables and figures of a handle, the same from a store and from a file."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib import pyplot

from kforge_nb import load_run
from kforge_nb.run.handle import Run
from kforge_nb.run.record import Record
from kforge_nb.run.report import GuardSummary
from kforge_nb.run.source import StoreSource
from kforge_nb.store import Store, document
from tests.store.filling import fill
from tests.store.make_example import FILE
from tests.store.make_example import example as make

mpl.use("agg")
TABLES = ("targets", "nodes", "decisions", "whole", "costs")
PLOTS = ("plot_targets", "plot_tree", "plot_cost", "plot_guard", "plot_whole")


@pytest.fixture
def both(tmp_path):
    """The example run from its store, and from a file saved there."""
    with Store(tmp_path / "store.db") as store:
        run = Run(StoreSource(Record(store, fill(store, make(), "r"))))
        path = document.save(tmp_path / "r.kforge.json", run.document)
        yield run, load_run(path)


@pytest.mark.parametrize("name", TABLES)
def test_a_file_gives_the_tables_of_its_store(both, name):
    """Whoever gets the file can work on with the very figures."""
    of_store, of_file = (getattr(handle, name) for handle in both)
    assert len(of_store) > 0
    pd.testing.assert_frame_equal(of_store, of_file)


@pytest.mark.parametrize("name", PLOTS)
def test_a_file_gives_the_figures_of_its_store(both, name):
    """Each figure draws from a store and from a file, on the axes that it is given."""
    _, axes = pyplot.subplots(1, 2)
    for handle, ax in zip(both, axes, strict=True):
        assert getattr(handle, name)(ax=ax) is ax
        assert ax.get_title().startswith(handle.name)
    pyplot.close("all")


def test_whole_says_what_each_interval_shows():
    """A filter on one column leaves the comparisons that show a gain."""
    whole = load_run(FILE).whole
    assert set(whole["shown"]) == {"faster", "same"}
    assert (whole[whole["shown"] == "faster"]["low"] > 1).all()


def test_targets_have_the_times_to_compare():
    """Eager, compile and best stand side by side, with the interval of the speed-up."""
    row = load_run(FILE).targets.set_index("target").loc[0]
    assert row["eager_us"] / row["ours_us"] == pytest.approx(row["speedup"], rel=1e-3)
    assert row["low"] < row["speedup"] < row["high"]
    assert row["compile_us"] == pytest.approx(812.4 / 1.18, rel=1e-3)


def test_the_guards_report_reads_like_the_view(both):
    """Installed kernels first, the same words for what was shown, and every stranger escaped."""
    run, _ = both
    text = repr(run.guard)
    assert text.startswith(f"run {run.name}: 2 of 4 targets are replaced")
    assert "no difference shown (0.981 to 1.001)" in text
    assert "rest inductor with kernels (recommended)" in text
    assert "fidelity: 1.00× eager's error. 1 call of the cell" in text

    data = run.document
    data["decisions"][3]["reason"] = "<script>alert(1)</script>"
    data["decisions"][0]["counters"] = {
        **dict.fromkeys(("replayed", "copies", "shadowed"), 0),
        "launches": 7,
        "fallbacks": {"<b>": 1},
        "note": "",
    }
    html = GuardSummary(data)._repr_html_()
    assert "<script>" not in html
    assert "7 launches, 1 fallback: &lt;b&gt; 1" in html


def test_a_report_before_any_decision_is_no_error(both):
    """While the search goes on there is nothing to tell, and that is told."""
    data = {**both[0].document, "decisions": [], "whole": [], "fidelity": None}
    data["recommendation"] = None
    assert ": 0 of 0 targets are replaced" in repr(GuardSummary(data))
