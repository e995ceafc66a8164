"""The trial of the prompts: which step comes next, what a transcript keeps, what the table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prompt_steps import attempts_of, best_of, next_step
from benchmarks.prompt_table import report_of
from benchmarks.prompt_targets import TRIAL, build_target
from kforge_nb.errors import DocumentError
from kforge_nb.judge.evaluation import Comparison, ErrorFigure, Evaluation, Verdict
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.proposers.transcript import Entry, Transcript, without_samples
from tests.proposers.talk import GOOD, TARGET, good


def entry(
    text: str = GOOD,
    verdict: Verdict = Verdict.ACCEPTED,
    ratio: float | None = 1.0,
    action: str = "draft",
    **more: Any,
) -> Entry:
    """An answer that was judged."""
    found = parse(text, TARGET, "cpp")
    digest = found.candidate.digest if isinstance(found, Answer) else None
    row = Comparison("eager", ratio or 1, ratio or 1, ratio or 1, 5, 1.0, 1.0, (1.0,), (1.0,))
    timings = (row,) if ratio is not None else ()
    evaluation = without_samples(Evaluation(verdict, "for a test", timings=timings))
    return Entry(
        "exp", TARGET.fingerprint, "cpp", action, "1", "d" * 64, 100, text,
        candidate=digest, evaluation=evaluation if digest else None, **more,
    )  # fmt: skip


BAD = good("out0[i] = in0[i];")
FAST = good("out0[i] = expf(in0[i]);")


def step(*entries: Entry) -> tuple[str, str | None, str | None]:
    """Action, a word of the parent's source, and strategy of what comes next."""
    request, strategy = next_step(TARGET, entries, {})
    parent = request.parent
    return request.action, parent.candidate.source if parent else None, strategy


def test_it_begins_with_a_draft_and_goes_on_from_the_best() -> None:
    """A right kernel is made faster, from the fastest there is."""
    assert step()[0] == "draft"
    action, source, strategy = step(entry(ratio=2.0), entry(FAST, ratio=1.5))
    assert action == "optimise"
    assert source is not None
    assert "std::exp" in source
    assert strategy


def test_a_failure_is_repaired_twice_and_then_left() -> None:
    """Two repairs of a failed line, then back to what is right, or to a new start."""
    wrong = entry(BAD, Verdict.WRONG, None)
    assert step(wrong)[:1] == ("repair",)
    assert step(entry(), wrong, wrong)[0] == "repair"
    assert step(wrong, wrong, wrong)[0] == "restart"
    assert step(entry(), wrong, wrong, wrong)[0] == "optimise"


def test_an_answer_without_a_kernel_is_no_attempt() -> None:
    """A broken answer is counted and not repaired: its form was asked for already."""
    assert step(entry("nothing"))[0] == "restart"
    assert best_of(attempts_of(TARGET, [entry("nothing")])) is None


def test_moves_that_were_tried_from_a_parent_come_last() -> None:
    """Children of the best are its siblings in the next request."""
    best = entry(ratio=2.0)
    first = step(best)[2]
    child = entry(FAST, ratio=1.1, action="optimise", parent=best.candidate, strategy=first)
    assert step(best, child)[2] != first


def test_a_transcript_is_kept_and_read_back(tmp_path: Path) -> None:
    """What is written is read back, without samples of timings and without infinities."""
    odd = Evaluation(Verdict.WRONG, "", errors=(ErrorFigure("out0", "x", float("inf"), 0, 0),))
    said = Transcript("paste", "a model", {"a": 1}, [entry(), entry(BAD, Verdict.WRONG, None)])
    said.save(tmp_path / "deep" / "t.json")
    assert Transcript.load(tmp_path / "deep" / "t.json") == said
    assert "Infinity" not in json.dumps(without_samples(odd))
    assert json.loads((tmp_path / "deep" / "t.json").read_text())["entries"][0]["estimated"]


@pytest.mark.parametrize(
    "change",
    [{"schema": "other"}, {"source": "dream"}, {"entries": 3}, {"entries": [3]},
     {"entries": [{"target": "x"}]}, {"entries": [{"unknown": 1}]}],
    ids=str,
)  # fmt: skip
def test_what_is_no_transcript_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    """Transcripts come from files: each field is checked."""
    document = {**Transcript("paste", entries=[entry()]).to_document(), **change}
    with pytest.raises(DocumentError):
        Transcript.from_document(document)
    (tmp_path / "x.json").write_text("[" * 5000)
    with pytest.raises(DocumentError):
        Transcript.load(tmp_path / "x.json")


@pytest.mark.parametrize(
    "field",
    [{"parent": ["x"]}, {"strategy": 3}, {"candidate": {}}, {"repaired": "no"}, {"tokens_in": "9"},
     {"characters": True}, {"estimated": 1}, {"answer": None}],
    ids=str,
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_named(field: dict[str, Any]) -> None:
    """What replaying could only trip over later is refused when the file is read."""
    document = Transcript("paste", entries=[entry()]).to_document()
    document["entries"][0] |= field
    with pytest.raises(DocumentError, match=f"entry 0 .*wrong type: {next(iter(field))}"):
        Transcript.from_document(document)


def test_the_table_counts_what_it_says() -> None:
    """Drafts, repairs and ends, by version; a mended form stands for its draft."""
    entries = [
        entry("nothing"),
        entry(GOOD, repaired=True),
        entry(BAD, Verdict.WRONG, None, "optimise"),
        entry(FAST, ratio=3.0, action="repair"),
    ]
    duels = {"exp": {"ratio": 0.97, "low": 0.96, "high": 0.99}}
    rows = report_of(Transcript("paste", entries=entries), duels, {})["rows"]
    values = {row["name"].split(" (")[0]: row["value"] for row in rows}
    assert values["prompts 1: drafts that compile"] == 1.0
    assert values["prompts 1: drafts right at first try"] == 1.0
    assert values["prompts 1: repairs of natural failures that are right"] == 1.0
    assert values["prompts 1: optimisations that are right"] == 0.0
    assert values["targets within 5% of the best recipe, or better"] == 1.0
    assert values["targets strictly faster than the best recipe"] == 0.0
    assert values["exp: best over eager"] == 3.0


def test_the_targets_of_the_trial_are_of_many_families() -> None:
    """At least eight families, CUDA among them, each a target that a recipe or model may take."""
    assert len({t.family for t in TRIAL}) >= 8
    assert len(TRIAL) == len({t.name for t in TRIAL})
    assert sum(t.kind == "cuda" for t in TRIAL) >= 2
    target = build_target(next(t for t in TRIAL if t.name == "cuda_softmax_upcast"))
    assert target.device == "cuda:0"
    assert target.captured is None
