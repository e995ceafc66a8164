"""What views derive from a document, and how they write figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kforge_nb.run.report import GuardSummary
from kforge_nb.view import claims, facts, profiled, words
from kforge_nb.view.entries import SCALED, change_us, scaled_times, whole_entries
from kforge_nb.view.static import to_html
from kforge_nb.view.text import summary

EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text())


def test_times_of_the_whole_model_never_contradict_the_ratios_beside_them(document):
    """A rest timed when the machine was twice as fast is shown by its paired ratio all the same."""
    for row in document["whole"]:
        if row["rest"] == "eager":
            row["ours_us"] /= 2
            row["against_us"] /= 2
    untouched, *others = whole_entries(document)
    assert untouched.us == 40980.0
    compared = [e for e in others if e.over_eager is not None]
    assert {e.label for e in compared} >= {"rest eager alone", "rest inductor with kernels"}
    for entry in compared:
        assert untouched.us / entry.us == pytest.approx(entry.over_eager["ratio"])
    for row in document["whole"]:
        against, ours = scaled_times(document, row)
        assert against / ours == pytest.approx(row["ratio"])
    told = str(GuardSummary(document))
    assert f"the whole model ({SCALED}):" in told
    assert "34.5 ms" in told
    assert "17.2 ms" not in told


@pytest.mark.parametrize("name", ["ratio", "time", "change", "money", "percent", "interval"])
def test_figures_are_written_as_the_browser_writes_them(name):
    """One table holds Python's and the browser's words to the same texts."""
    write = getattr(words, name)
    for *values, text in EXPECTED[name]:
        assert text == write(*values)


def test_claims_are_made_as_the_browser_makes_them(document):
    """Comparisons, counters and the launch-bound banner read alike in Python and in the browser."""
    for ratio, low, high, text in EXPECTED["versus"]:
        assert claims.versus({"ratio": ratio, "low": low, "high": high}, "eager") == text
    for case in EXPECTED["counted"]:
        assert claims.counted(case["counters"]) == case["text"]
    for case in EXPECTED["by_rest"]:
        assert claims.by_rest(case) == case["text"]
    for case in EXPECTED["nothing_won"]:
        assert claims.nothing_won(case["decisions"]) == case["text"]
    for counters, text in EXPECTED["at_run_time"]:
        assert claims.at_run_time(counters) == text
    for target, tried, text in EXPECTED["state"]:
        assert words.state(target, tried) == text
    document["workload"]["launch_bound"] = True
    document["device"] = {"kind": "cuda"}
    assert profiled.launch_bound(document) == EXPECTED["launch_bound"]


@pytest.mark.parametrize("case", EXPECTED["profiled"], ids=lambda case: case["what"])
def test_a_profile_of_another_moment_claims_nothing_as_sure(document, case):
    """What a busy or outdated profile may still say is said in text and HTML as in the browser."""
    document["workload"] |= case["workload"]
    document["device"] = {"kind": "cpu"}
    assert profiled.rough(document) == case["rough"]
    assert profiled.launch_bound(document) == case["launch_bound"]
    word = "share (rough)" if case["rough"] else "share"
    assert f">{word}</th>" in to_html(document)
    assert f" {word} " in summary(document)
    for told in filter(None, (case["rough"], case["launch_bound"])):
        assert told in summary(document)
        assert told in to_html(document)


@pytest.mark.parametrize(("ceiling", "text"), EXPECTED["beyond"])
def test_a_gain_above_the_ceiling_is_explained(document, ceiling, text):
    """Kernels that gain 6% beside ceilings of 1.001× would contradict each other without a word."""
    for target in document["targets"]:
        target["ceiling"] = ceiling or target["ceiling"]
    assert profiled.beyond(document) == text
    assert text in summary(document)
    assert text in to_html(document)


@pytest.mark.parametrize(
    ("note", "why"),
    [
        (
            "rest=inductor was not used: compiling it did not finish in 26 s",
            "not measured: compiling it did not finish in 26 s",
        ),
        (
            "there is no comparison with torch.compile: out of memory",
            "not measured: out of memory",
        ),
        ("the tokenizer is not part of the graph", ""),
    ],
)
def test_where_torch_compile_was_not_measured_the_reason_stands_in_its_place(document, note, why):
    """The figure over torch.compile leads; where there is none, the guard's note says why."""
    assert "1.06× (1.05 to 1.07) over torch.compile" in summary(document)
    document["whole"] = [row for row in document["whole"] if row["against"] != "compile"]
    document["workload"]["notes"] = [note]
    for told in (summary(document), to_html(document), str(GuardSummary(document))):
        assert (why or "not measured") in told if why else "not measured:" not in told


def test_after_its_search_a_run_is_not_called_searching(document):
    """Confirming and measuring in the model have words of their own, since no limit covers them."""
    document.update(state="searching", state_reason="")
    assert words.ended(document, ", ") == "searching"
    document["progress"]["phase"] = "confirming"
    assert words.ended(document, ", ") == "confirming its winners"
    document["state"] = "guarding"
    assert "measuring in the model" in summary(document)


def test_the_ways_to_run_the_model_are_the_browsers(document):
    """Labels, times and the recommended one come alike, each way once."""
    found = [[e.label, round(e.us, 1), e.recommended] for e in whole_entries(document)]
    assert EXPECTED["whole"] == found


def test_what_a_kernel_changes_in_a_run_is_told_only_where_it_was_shown(document):
    """Milliseconds in front of an interval that holds 1 would suggest a gain that nobody saw."""
    changes = [change_us(d) for d in document["decisions"]]
    assert changes[0] == pytest.approx(-4650.2)
    assert changes[2:] == [None, None]


@pytest.mark.parametrize("low", [0.2, 0.97, 1.0, 1.0004])
def test_a_gain_is_claimed_only_where_the_whole_interval_lies_above_1(low):
    """A middle of 9 with an end at 1 is no gain, and the text does not name the middle."""
    said = claims.versus({"ratio": 9.0, "low": low, "high": 80.0}, "eager")
    assert said.startswith("no difference shown")
    assert "9.0" not in said


def test_headline_takes_the_recommended_rest(document):
    """The figures to lead with are those of the rest that the guard recommends."""
    lead = facts.headline(document)

    assert EXPECTED["rest"] == lead.rest
    assert EXPECTED["over_empty"] == lead.over_empty["ratio"]
    assert EXPECTED["over_eager"] == lead.over_eager["ratio"]
    assert EXPECTED["estimate"] == pytest.approx(lead.estimate, abs=1e-4)
    assert EXPECTED["saved_ms"] == pytest.approx(facts.saved_ms(document), abs=1e-4)


def test_a_rest_without_kernels_leads_with_its_own_row(document):
    """Where the recommended rest kept no kernel, no other rest's gain stands in for it."""
    for decision in document["decisions"]:
        decision["installed"] = False
    rows = [row for row in document["whole"] if row["rest"] == "eager"]
    alone = next(r for r in document["whole"] if (r["rest"], r["against"]) == ("inductor", "eager"))
    document["whole"] = [*rows, {**alone, "name": "empty"}]
    lead = facts.headline(document)

    assert (lead.nothing_won, lead.rest, lead.over_empty) == (True, "inductor", None)
    assert lead.over_eager["name"] == "empty"
    assert "rest inductor alone gives 1.30×" in summary(document)
    assert "rest inductor alone gives 1.30×" in to_html(document)
    assert "without kernels" not in summary(document)


def test_where_nothing_won_no_row_is_a_gain_of_kernels(document):
    """Earlier documents have guarded rows without any kernel: a ratio near 1 that is noise."""
    for decision in document["decisions"]:
        decision["installed"] = False
    lead = facts.headline(document)

    assert lead.over_empty is None
    assert EXPECTED["over_eager"] == lead.over_eager["ratio"]


def test_headline_before_the_guard_is_an_estimate(document):
    """Nothing unmeasured is ever in the place of a measurement."""
    document.update(whole=[], recommendation=None)
    lead = facts.headline(document)

    assert (lead.rest, lead.over_empty, lead.over_eager) == (None, None, None)
    assert lead.estimate > 1


def test_headline_without_targets_has_no_estimate(document):
    """A run that is still profiling shows no figure at all."""
    document.update(whole=[], recommendation=None, targets=[], nodes=[])

    assert facts.headline(document).estimate is None


def test_progress_follows_time_not_row_order(document):
    """The gain never falls, whatever order the rows come in."""
    document["nodes"].reverse()
    gains = [p.gain for p in facts.progress(document)]

    assert sorted(gains) == gains
    assert gains[-1] == pytest.approx(EXPECTED["estimate"], abs=1e-4)


def test_money_counts_up_to_the_candidate_it_was_spent_on(document):
    """A call paid for after a candidate does not belong to it."""
    node, cost = document["nodes"][0], document["costs"][0]
    late = {**cost, "usd": 5.0, "created": "2099-01-01T00:00:00Z"}
    document.update(nodes=[node], costs=[late, {**cost, "usd": 2.0}])

    assert [p.usd for p in facts.progress(document)] == [2.0]


def test_what_was_paid_is_told_with_the_price_of_a_saved_millisecond(document):
    """Text and HTML say the money, the calls, and what a millisecond has cost; or that it is 0."""
    assert "no paid calls" in summary(document)
    for cost in document["costs"]:
        cost.update(usd=0.01, calls=1)
    each = words.money(0.26 / facts.saved_ms(document))
    wanted = f"$0.26 for 26 calls ({each} for each ms saved a run)"
    assert wanted in summary(document)
    assert wanted in to_html(document)


def test_prompts_that_wait_are_named_where_no_box_can_be_shown(document):
    """A static page cannot take an answer, so it says where the prompts are."""
    document["progress"]["prompts"] = 2
    assert "2 prompts to answer: see run.prompts" in to_html(document)
