"""From what the stages left to rows, bars and tables; no model runs here."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu_models_bars import bar_rows
from benchmarks.gpu_models_profile import list_rows
from benchmarks.gpu_models_rows import best_rest, compared, decided_for, rows_of
from benchmarks.gpu_models_state import Places
from benchmarks.gpu_models_tables import tables


def _target(name, us, calls=1, *, vendor=False):
    return {
        "fingerprint": name * 4, "name": name, "family": "pointwise", "vendor": vendor,
        "calls": calls, "mean_us": us, "variant": "8 f32 → 8 f32", "headroom": 2.0,
    }  # fmt: skip


def _profile(*targets, device_us=1000.0):
    return {"model": "vae", "done": True, "wall_us": 1200.0, "device_us": device_us,
            "targets": list(targets), "seconds": {}}  # fmt: skip


def _samples(eager, **ours):
    times = {"eager": eager, **{side.replace("_", "-"): t for side, t in ours.items()}}
    return {side: [t * (1 + 0.001 * i) for i in range(9)] for side, t in times.items()}


@pytest.fixture
def places(tmp_path):
    """Empty folders."""
    found = Places(tmp_path / "state", tmp_path / "work")
    found.state.mkdir()
    found.work.mkdir()
    return found


def _leave(places, name, stage, **body):
    whole = {"model": name, "stage": stage, "done": True, "seconds": {}, **body}
    places.file(name, stage).write_text(json.dumps(whole))


def _timed(places, name, samples, kernels=3, **body):
    sides = dict.fromkeys((s for s in samples if s.startswith("guarded")), kernels)
    left = {"left_out": {}, "told": {}, **body}
    _leave(places, name, "time", samples=samples, kernels=sides, **left,
           differences=dict.fromkeys(samples, 0.0))  # fmt: skip


def test_the_list_ends_where_ninety_percent_are_reached():
    """Largest first, calls counted, vendor operators and untimed targets left out."""
    body = _profile(
        _target("small", 10.0), _target("matmul", 900.0, vendor=True), _target("often", 20.0, 30),
        _target("large", 300.0), _target("never", None),
    )  # fmt: skip
    listed = [r for r in list_rows(body) if r["unit"] == "share"]
    assert [r["name"] for r in listed] == ["vae: often", "vae: large"]
    assert [round(r["value"], 3) for r in listed] == [0.659, 0.33]
    assert listed[-1]["cumulative"] == pytest.approx(900 / 910)


def test_what_no_target_covers_is_a_row():
    """Time of operators that the product leaves to torch is told, not lost."""
    rows = list_rows(_profile(_target("one", 300.0), _target("mm", 200.0, vendor=True)))
    left = next(r for r in rows if r["name"] == "vae: in no target")
    assert left["value"] == pytest.approx(500.0)


def test_the_guards_own_rest_counts_where_it_measured_all():
    """The figure of the table is what run.apply() gives; only else the fastest one here."""
    samples = _samples(1.0, guarded_eager=0.9, guarded_inductor=0.5)
    auto = {"budget": [240, 150, "auto"], "recommendation": {"rest": "eager"}}
    assert best_rest(samples, auto) == ("eager", "guard")
    assert best_rest(samples, {**auto, "budget": [25, 35, "eager"]}) == ("inductor", "time")
    assert best_rest(_samples(1.0), auto) == ("", "")
    asked, decided = {"budget": [25, 35, "eager"]}, {"eager": "eager", "inductor": "eager"}
    assert best_rest(samples, asked, decided) == ("eager", "time")


def test_a_model_is_compared_with_eager_empty_and_compile(places):
    """Each guarded side has its three comparisons, with ratios of one call."""
    samples = _samples(1.0, guarded_eager=0.5, empty_eager=0.8, compile=0.6)
    _timed(places, "vae", samples)
    rows = rows_of(places, "vae")
    ratios = {r["against"]: round(r["ratio"], 2) for r in rows if r["side"] == "guarded-eager"}
    assert ratios == {"eager": 2.0, "empty-eager": 1.6, "compile": 1.2}


def test_kernels_of_another_rest_are_named_and_asked_no_bar(places):
    """A run that decided eager only says nothing of what it would decide for Inductor."""
    samples = _samples(
        1.0, guarded_eager=0.5, empty_eager=0.8, guarded_inductor=0.4, empty_inductor=0.3
    )
    decided = {"guarded-eager": "eager", "guarded-inductor": "eager"}
    _timed(places, "vae", samples, decided=decided)
    rows = rows_of(places, "vae")
    lost = compared(rows, "vae", "guarded-inductor", "empty-inductor")
    assert (lost["decided"], lost["note"]) == ("eager", "kernels decided for rest eager")
    assert lost["name"] == "vae: guarded-inductor (kernels decided for rest eager)"
    assert compared(rows, "vae", "guarded-eager", "eager")["note"] == ""
    assert compared(rows, "vae", "guarded-eager", "eager")["best"]
    over_empty = [r["name"] for r in bar_rows(rows, ["vae"]) if "over empty" in r["name"]]
    assert len(over_empty) == 2
    assert all("guarded-eager" in name for name in over_empty)
    assert "2.50] (kernels decided for rest eager)" in tables(rows, places, ["vae"])


def test_no_bar_over_empty_is_asked_of_a_rest_that_was_not_decided(places):
    """Not even where it is the only one that was timed."""
    samples = _samples(1.0, guarded_eager=0.5, empty_eager=0.8)
    _timed(places, "vae", samples, decided={"guarded-eager": "inductor"})
    bars = [row["name"] for row in bar_rows(rows_of(places, "vae"), ["vae"])]
    assert any("over eager" in name for name in bars)
    assert not [name for name in bars if "over empty" in name]


def test_older_files_hold_kernels_of_the_rest_that_was_asked_for():
    """Their sides do not say what their kernels were decided for; the run's budget does."""
    assert decided_for({}, {"budget": [30, 35, "eager", "eager"]}, "inductor") == "eager"
    assert decided_for({}, {"budget": [30, 35, "auto", "eager"]}, "inductor") == "inductor"
    told = {"decided": {"guarded-inductor": ""}}
    assert decided_for(told, {}, "inductor") == ""


def test_a_side_that_did_not_finish_is_a_row_and_a_cell(places):
    """A baseline that never compiled is told in both the report and the table."""
    samples = _samples(1.0, guarded_eager=0.5, empty_eager=0.8)
    _timed(places, "vae", samples, left_out={"compile": "did_not_finish (compile)"})
    _leave(places, "vae", "ahead.compile", seconds={"compile": 180.0}, done=False)
    rows = rows_of(places, "vae")
    told = next(r for r in rows if r.get("side") == "compile")
    assert (told["value"], "did_not_finish" in told["name"]) == (180.0, True)
    line = next(s for s in tables(rows, places, ["vae"]).splitlines() if s.startswith("| vae"))
    assert "| did_not_finish |" in line


def test_bars_are_reached_or_missed_by_the_figures(places):
    """Over eager 2.6 for the VAE; a lower bound over empty above 1; a kernel must be installed."""
    fast = _samples(1.0, guarded_eager=0.3, empty_eager=0.9)
    _timed(places, "vae", fast)
    bars = {r["name"]: r["reached"] for r in bar_rows(rows_of(places, "vae"), ["vae"])}
    assert set(bars.values()) == {True}
    _timed(places, "vae", fast, kernels=0)
    rows = bar_rows(rows_of(places, "vae"), ["vae"])
    assert [r["reached"] for r in rows if "over empty" in r["name"]] == [False, False]
    _timed(places, "vae", _samples(1.0, guarded_eager=0.5, empty_eager=0.9))
    rows = bar_rows(rows_of(places, "vae"), ["vae"])
    assert [r["reached"] for r in rows if "over eager" in r["name"]] == [False]


def test_bars_over_several_models_are_asked_of_enough_models(places):
    """Three winners against torch.compile cannot be asked of two models."""
    names = ["vae", "sd35", "gemma4-prefill"]
    for name, ours in zip(names, (0.5, 0.55, 0.9), strict=True):
        _timed(places, name, _samples(1.0, guarded_inductor=ours, compile=0.6))
    rows = {n: rows_of(places, n) for n in names}
    two = bar_rows([*rows["vae"], *rows["sd35"]], names[:2])
    assert not [r for r in two if "models above" in r["name"]]
    three = bar_rows([r for n in names for r in rows[n]], names)
    many = next(r for r in three if r["name"].startswith("bar: guarded-inductor over compile: m"))
    assert (many["value"], many["reached"]) == (2, False)
    floor = next(r for r in three if r["name"].startswith("bar: gemma4-prefill: guarded-inductor"))
    assert not floor["reached"]


def test_the_mean_over_compile_counts_every_listed_target(places):
    """A target that kept its original counts with eager's own time."""
    figures = {"low": 0.0, "high": 9.0, "n": 9, "ours_us": 1.0, "against_us": 1.0}
    kept = {"family": "", "variant": "", "calls": 1, "share": 0.5, "problem": ""}
    rows = [
        {"name": name, "fingerprint": name, "kernel": kernel, **kept, "compile": found}
        for name, kernel, found in (
            ("a", True, {"ratio": 4.0, **figures}),
            ("b", False, {"ratio": 0.25, **figures}),
        )
    ]
    _leave(places, "vae", "ops", rows=rows)
    found = next(r for r in bar_rows(rows_of(places, "vae"), ["vae"]) if "geometric" in r["name"])
    assert (found["value"], found["reached"]) == (pytest.approx(1.0), False)


def test_the_operator_table_has_decision_and_reason(places):
    """As in the paper: share, eager, compile, ours, and why an operator was left alone."""
    figures = {"ratio": 2.0, "low": 1.9, "high": 2.1, "n": 9, "ours_us": 5.0, "against_us": 10.0}
    _leave(places, "vae", "ops", rows=[
        {"name": "silu", "fingerprint": "f", "family": "", "variant": "8|8", "calls": 1,
         "share": 0.25, "kernel": True, "problem": "", "eager": figures},
    ])  # fmt: skip
    _leave(places, "vae", "search", decisions=[
        {"fingerprint": "f", "installed": False, "reason": "kept original: slower\nin the model"},
    ])  # fmt: skip
    line = tables([], places, ["vae"]).splitlines()[-1]
    assert line == (
        "| vae | silu | 8/8 | 0.250 | 10.0 | – | 5.0 | kept original: slower in the model |"
    )


def test_compared_finds_nothing_where_nothing_was_timed():
    """A bar about a side that was not timed is not asked."""
    assert compared([], "vae", "guarded-eager", "eager") is None
    assert bar_rows([], ["vae"]) == []
