"""What a document keeps when all details would be too much, and where the rest is."""

from __future__ import annotations

import json

from kforge_nb.store.document import load, save, validate
from kforge_nb.store.keeping import bounded, size
from kforge_nb.store.launching import launch_of
from tests.view.large import large


def test_a_small_document_stays_as_it_is(example):
    """Nothing is left out for the sake of it."""
    assert bounded(example, 10**7) == example
    assert "left_out" not in json.dumps(bounded(example, 10**7))


def test_half_a_character_does_not_stop_a_document_from_being_shown(example):
    """JSON may hold one, and so may a file that somebody sends; it has a size like any other."""
    example["details"]["0.0"]["source"] = "int a; // \ud800"
    assert size(example["details"]["0.0"]) > 10
    assert bounded(example, 10**7) == example
    assert size(bounded(example, 5000)) < size(example)


def test_2000_candidates_fit_a_budget_and_the_interesting_ones_stay():
    """The way to the best, the newest and the fastest keep their sources; rows all stay."""
    run = large(2000)
    assert size(run) > 6_000_000
    kept = validate(bounded(run, 2_000_000))

    assert size(kept) <= 2_000_000
    assert kept["nodes"] == run["nodes"]
    rows = {row["id"]: row for row in run["nodes"]}
    node = run["targets"][0]["best"]
    while node is not None:
        assert kept["details"][node] == run["details"][node]
        node = rows[node]["parent"]
    assert run["nodes"][-1]["id"] in kept["details"]
    right = [row for row in run["nodes"] if row["verdict"] == "accepted"]
    right.sort(key=lambda row: row["speedup"], reverse=True)
    assert all(row["id"] in kept["details"] for row in right[:50])
    assert 100 < len(kept["details"]) < 2000


def test_prompts_go_first_and_the_gap_is_named(example):
    """What a model was asked is long and much alike: only the winners keep theirs."""
    for details in example["details"].values():
        details |= {"prompt": "write " * 10_000, "answer": "here " * 1_000}
    kept = validate(bounded(example, 500_000))

    assert size(kept) <= 500_000
    assert set(kept["details"]) == set(example["details"])
    best = example["targets"][0]["best"]
    assert kept["details"][best] == example["details"][best]
    other = kept["details"]["0.1"]
    assert (other["prompt"], other["left_out"]) == ("", ["prompt", "answer"])
    assert other["source"] == example["details"]["0.1"]["source"]


def test_a_winner_too_large_for_the_budget_loses_its_prompt_before_its_source(example):
    """The source of the best candidate is the last thing to go."""
    best = example["targets"][0]["best"]
    example["details"][best]["prompt"] = "write " * 100_000
    kept = bounded(example, 200_000)
    assert kept["details"][best]["source"] == example["details"][best]["source"]
    assert kept["details"][best]["left_out"] == ["prompt"]


def test_no_budget_leaves_rows_only(example):
    """Even then the document is valid, and says what was tried."""
    kept = validate(bounded(example, 1))
    assert kept["details"] == {}
    assert kept["nodes"] == example["nodes"]


def test_a_saved_file_keeps_to_its_budget(tmp_path, example):
    """A file is bounded when it is written, whatever wrote it, and can be read again."""
    path = save(tmp_path / "run.kforge.json", example, limit=60_000)
    assert path.stat().st_size <= 60_001
    assert load(path)["nodes"] == example["nodes"]


def test_a_launch_is_told_in_numbers():
    """Symbols, grid and block are worked out for the shapes that the target was captured with."""
    spec = {"shape": [8, 1000], "stride": [1000, 1], "dtype": "float32", "device": "cuda:0"}
    plan = {
        "kernels": [
            {
                "name": "k",
                "grid": ["ceil_div(N, 256)", "2", "1"],
                "block": ["256", "1", "1"],
                "args": ["in0"],
            }
        ],
        "symbols": {"N": "numel(in0)"},
        "scratch": {"partial": {"dtype": "float32", "shape": ["N"]}},
    }
    found = launch_of(plan, {"inputs": [spec], "outputs": [spec]})
    assert found == {
        "calls": [{"name": "k", "grid": [32, 2, 1], "block": [256, 1, 1], "shared": 0}],
        "symbols": {"N": 8000},
        "scratch_bytes": 32_000,
    }


def test_a_plan_that_cannot_be_worked_out_is_left_unsaid():
    """Old, broken or hostile plans of a store never stop a document from being made."""
    assert launch_of({}, {}) is None
    assert launch_of({"kernels": [{"name": "k", "args": ["in9"]}]}, {"inputs": []}) is None
    assert launch_of({"kernels": "all"}, {"inputs": [{}]}) is None
