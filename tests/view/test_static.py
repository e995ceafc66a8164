"""The saved view: readable anywhere, and safe with text from strangers."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from kforge_nb.run.report import GuardSummary
from kforge_nb.store.document import validate
from kforge_nb.view.payload import for_notebook, for_widget, size
from kforge_nb.view.static import MIME, bundle, to_html, to_svg
from kforge_nb.view.text import summary
from kforge_nb.view.verdicts import GOOD

VOID = {"br", "img", "circle", "rect", "path"}


class Checked(HTMLParser):
    """Collects tags and text, and sees to it that tags close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_answers_the_four_questions(document):
    """Gain against both baselines, every target, every decision and the tree are on the page."""
    page = Checked(to_html(document))

    assert "1.06× (1.05 to 1.07) over the same rest (inductor) without kernels" in page.text
    assert "1.30× (1.29 to 1.31) over the untouched eager model" in page.text
    assert all(t["name"] in page.text for t in document["targets"])
    assert page.text.count("● replaced") == 2
    assert page.text.count("○ kept original") == 2
    assert "svg" in page.tags


def test_html_has_no_script_and_escapes_everything(hostile):
    """Names and reasons from a stranger's document stay text."""
    page = Checked(to_html(hostile))

    assert not {"script", "img", "style", "iframe", "link"} & set(page.tags)
    assert '<script>alert("x")</script>' in page.text


def test_svg_is_well_formed_and_draws_each_candidate(document):
    """One mark a candidate of the chosen target, and an empty string where none was tried."""
    nodes = [n for n in document["nodes"] if n["target"] == 1]
    drawn = Checked(to_svg(document, target=1))

    assert drawn.tags.count("title") == len(nodes)
    assert to_svg(document, target=3) == ""
    assert to_svg(document, target=99) == ""


def test_the_tree_drawn_is_of_a_target_that_was_won(document):
    """A larger target whose best candidate is undecided stands back."""
    nodes = [{**n, "verdict": "undecided"} if n["target"] == 0 else n for n in document["nodes"]]

    assert f"Search tree of {document['targets'][0]['name']}:" in to_svg(document)
    second = document["targets"][1]["name"]
    assert f"Search tree of {second}:" in to_svg({**document, "nodes": nodes})


def test_svg_survives_a_chain_of_thousands(document):
    """Depth is bounded by nothing but memory, and a loop of parents ends."""
    node = document["nodes"][0]
    chain = [{**node, "id": f"c{i}", "parent": f"c{i - 1}" if i else None} for i in range(5000)]
    document["nodes"] = chain

    assert to_svg(document, target=0).count("<title>") == 5000


def test_bundle_has_exactly_the_three_types(document):
    """A saved notebook holds the document, HTML and text, and never a widget."""
    saved = bundle(document)

    assert list(saved) == [MIME, "text/html", "text/plain"]
    assert json.loads(json.dumps(saved))[MIME]["schema"] == "kforge.run/1.2"


def test_text_tells_the_same(document):
    """The terminal's view has headline, targets and decisions."""
    text = summary(document)

    assert text.startswith("run minilm: done, the budget of 26 candidates is used up")
    assert "1.06× (1.05 to 1.07) over the same rest (inductor) without kernels" in text
    assert text.count("● replaced") == 2
    assert "1 target without a confirmed kernel, left original" in text
    assert text.endswith("\n\nnote: The tokenizer is not part of the graph.")


def test_what_only_the_search_accepted_is_marked(document):
    """A best candidate without a winner's decision is no gain: every table says so beside it."""
    for form in (summary, to_html):
        assert "not confirmed" not in form(document)
    target = next(t for t in document["targets"] if t["best"] is not None)
    decision = next(d for d in document["decisions"] if d["target"] == target["index"])
    decision.update(node=None, installed=False, isolated=None, in_model=None)
    for form in (summary, to_html):
        assert form(document).count(", not confirmed") == 1


def test_every_cell_of_a_table_keeps_its_distance(document):
    """Outside a notebook nothing else pads cells, and numbers would touch the next column."""
    html = to_html(document)

    cells = re.findall(r"<t[dh]\b[^>]*>", html)
    assert cells
    assert [cell for cell in cells if "padding:2px 10px" not in cell] == []


def test_a_stopped_run_is_not_said_to_be_stopped_twice(document):
    """The reason says who stopped it, so the state before it would only repeat a word."""
    document.update(state="stopped", state_reason="stopped by the user; what was found is kept")

    assert summary(document).startswith("run minilm: stopped by the user; what")
    assert "Run minilm, stopped by the user; what" in Checked(to_html(document)).text


def test_a_run_that_ended_early_says_how_to_go_on(document):
    """Without a live view no button does it; a run that is done has nothing to go on with."""
    how = "%kforge resume minilm goes on from here"
    assert how not in summary(document)
    document.update(state="stopped", state_reason="stopped by the user")
    assert how in summary(document)
    assert how in Checked(to_html(document)).text


def test_only_an_accepted_best_has_a_green_way(document):
    """A best whose gain was not shown is followed by a line, not by success."""
    won = f'stroke="{GOOD}" stroke-width="3"'
    assert to_svg(document, target=0).count(won) == 3
    best = next(node for node in document["nodes"] if node["id"] == "0.5")
    best["verdict"] = "undecided"
    assert won not in to_svg(document, target=0)
    assert to_svg(document, target=0).count('stroke-width="3"') == 3


def test_where_nothing_won_the_headline_is_no_gain(document):
    """A measured 1.01 without a kernel is noise, and is not led with."""
    for decision in document["decisions"]:
        decision["installed"] = False

    assert "0 replaced nothing won inside the model" in Checked(to_html(document)).text
    assert "nothing won inside the model, so every target stays original" in summary(document)


@pytest.mark.parametrize(
    ("state", "words"), [("stopped", "faster"), ("searching", "faster so far")]
)
def test_a_run_that_found_nothing_estimates_nothing(document, state, words):
    """An estimate of 1.00× would look like a figure of something."""
    document |= {"state": state, "decisions": [], "whole": [], "recommendation": None}
    for node in document["nodes"]:
        node["verdict"] = "slower"
    told = summary(document)
    assert f"\n  no candidate is {words}\n" in told
    assert "estimated" not in told


def test_an_interval_that_holds_1_is_no_gain(document):
    """However large the middle is, a page that is read by others claims no more than was shown."""
    for row in document["whole"]:
        if row["against"] == "empty":
            row.update(ratio=1.04, low=0.99, high=1.09)
    for text in (Checked(to_html(document)).text, summary(document)):
        assert "no difference shown (0.99 to 1.09) against the same rest (inductor)" in text
        assert "1.04×" not in text


def test_what_the_layout_brings_stands_beside_what_kernels_bring(document):
    """A model laid out for its kernels gains by that alone, and readers see how much is left."""
    row = next(r for r in document["whole"] if (r["name"], r["against"]) == ("guarded", "empty"))
    document["whole"].append({**row, "against": "layout", "ratio": 1.28, "low": 1.16, "high": 1.55})
    for text in (Checked(to_html(document)).text, str(GuardSummary(document))):
        assert "; laid out, no kernels: 1.28× (1.16 to 1.55)" in text


def test_a_model_to_be_left_alone_is_told_so(document):
    """The guard's advice against its own kernels is on the page and in the text."""
    document["recommendation"] = {"rest": "none", "reason": "the untouched model is fastest"}
    said = "guard recommends to leave the model alone"
    assert f"{said}, the untouched model is fastest" in Checked(to_html(document)).text
    assert f"{said}: the untouched model is fastest" in summary(document)


def test_what_happened_at_run_time_stands_with_the_kernel(document):
    """Launches and fallbacks are a column once the kernels were applied, and none before."""
    assert "at run time" not in to_html(document)
    counted = {"launches": 12, "replayed": 0, "copies": 0, "shadowed": 3, "note": ""}
    document["decisions"][1]["counters"] = {**counted, "fallbacks": {"<b>another shape": 2}}
    page = to_html(document)
    assert "at run time" in page
    assert "12 launches, 2 fallbacks: &lt;b&gt;another shape 2" in page


def test_decisions_without_a_kernel_to_try_are_counted_not_listed(document):
    """Of hundreds of targets a page lists those that have something to say."""
    last = document["decisions"][3]
    document["decisions"] += [{**last, "fingerprint": f"{i:064d}"} for i in range(20)]
    page = Checked(to_html(document))
    assert "21 more kept original without a kernel to try." in page.text
    assert page.text.count("○ kept original") == 1


@pytest.mark.parametrize("schema", ["kforge.run/1", "kforge.run/1.1"])
def test_an_older_document_makes_the_same_page(document, schema):
    """What older versions could not say is left out and not missed."""
    old = json.loads(json.dumps({**document, "schema": schema}))
    for decision in old["decisions"]:
        decision.pop("counters", None)
    assert to_html(validate(old)) == to_html(document)


def test_nothing_measured_is_shown_as_nothing(document):
    """Figures that are all null become dashes and no claim."""
    for rows in (document["targets"], document["nodes"], document["whole"]):
        for row in rows:
            row.update({k: None for k, v in row.items() if isinstance(v, float)})
    document["fidelity"] = document["recommendation"] = None
    page = Checked(to_html(document)).text
    assert "not measured" in page
    assert "None" not in page + summary(document)
    assert "nan" not in page


def test_long_tables_end_with_a_count(document):
    """A model with hundreds of targets still makes a page that loads, and says what it left out."""
    target = document["targets"][3]
    document["targets"] = [{**target, "index": i, "share": 0.001} for i in range(3, 203)]
    document["targets"][:2] = [{**target, "index": i, "share": 0.4} for i in (3, 4)]
    page = Checked(to_html(document))

    assert "… and 198 more, 19.8% of the time" in page.text
    assert page.text.count("a library call does this; single") == 2


def test_an_empty_run_still_has_a_view(document):
    """Profiling has just begun: no target, no node, no figure, no error."""
    document.update(targets=[], nodes=[], details={}, costs=[], decisions=[], whole=[])
    document.update(fidelity=None, recommendation=None, state="profiling", state_reason="")

    assert "estimated" in Checked(to_html(document)).text
    lines = summary(document).splitlines()
    assert lines[:3] == ["run minilm: profiling", "  26 candidates judged, no paid calls", ""]


def test_the_widget_gets_no_details_and_bounded_code(document):
    """Sources travel on demand only, and a huge graph is cut with a word about it."""
    document["targets"][0]["code"] = "x" * 100_000
    sent = for_widget(document)

    assert sent["details"] == {}
    assert size(sent["targets"][0]) < 10_000
    assert "characters more" in sent["targets"][0]["code"]
    assert len(document["targets"][0]["code"]) == 100_000


def test_a_notebook_keeps_the_details_that_matter_when_all_are_too_much(document):
    """Above the limit the best candidates keep their sources, others as far as there is room."""
    for details in document["details"].values():
        details["log"] = "x" * 100_000
    best = {t["best"] for t in document["targets"] if t["best"]}

    kept = set(for_notebook(document, limit=1_000_000)["details"])
    assert best < kept
    assert len(kept) == 9
    assert for_notebook(document, limit=50_000)["details"] == {}
    assert set(for_notebook(document, limit=10**9)["details"]) == set(document["details"])


def test_notes_of_the_workload_are_on_the_page_and_in_the_text(document):
    """What could not be seen or kept is told in every saved form, launch-bound among it."""
    document["workload"]["notes"] = ["the weights lie on several devices"]
    document["workload"]["launch_bound"] = True
    page = Checked(to_html(document))

    assert "Notes" in page.text
    assert page.text.count("the weights lie on several devices") == 1
    assert "the weights lie on several devices" in summary(document)
    for text in (page.text, summary(document)):
        assert "One run takes 41.0 ms, and its operators work for 38.4 ms of it." in text


def test_gain_against_money_is_drawn_where_money_was_spent(document):
    """A saved notebook shows what the money brought; a run that cost nothing draws no chart."""
    assert "spent</text>" not in to_html(document)
    for cost in document["costs"]:
        cost["usd"] = 0.01
    page = to_html(document)
    assert 'aria-label="Estimated gain 1.10× after $0.26"' in page
    assert "$0.26 spent</text>" in page
