"""Planted faults in the trial of the prompts: from a recorded kernel to the table of repairs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import prompt_lines, prompt_trial
from benchmarks.prompt_faults import Fault, plant, sound_answer
from benchmarks.prompt_judging import Bench
from benchmarks.prompt_lines import Line
from benchmarks.prompt_table import report_of
from benchmarks.prompt_targets import TrialTarget
from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import BadInput
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.proposers.prompting import PROMPT_VERSION
from kforge_nb.proposers.transcript import Entry, Transcript, without_samples
from tests.proposers.talk import GOOD, TARGET

FAULT = Fault("wrong function", "exp", (("std::exp(in0[i])", "std::log(in0[i])"),))
ENTRY = TrialTarget("exp", "pointwise", "cpu", lambda x: x.exp(), (((4, 8), "float32", "normal"),))
MENDED = GOOD.replace("one pass", "mended")


def judged(candidate: Candidate) -> Evaluation:
    """Right with an exp in it, else wrong."""
    if "exp(" in candidate.source:
        row = Comparison("eager", 1.5, 1.4, 1.6, 9, 1.0, 1.5)
        return Evaluation(Verdict.ACCEPTED, "faster", timings=(row,))
    seen = ({"output": "out0", "index": [0, 1], "got": 0.5, "eager": 1.5, "float64": 1.5,
             "input_set": "feedback: ordinary values"},)  # fmt: skip
    return Evaluation(Verdict.WRONG, "out0 is off", mismatches=seen)


class ToldBench(Bench):
    """A bench that looks for a word in the source."""

    def evaluate(self, candidate: Candidate) -> Evaluation:
        return judged(candidate)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A transcript with one accepted draft, in a trial of one target and one fault."""

    @contextmanager
    def told(_: Any, _threads: int) -> Iterator[Bench]:
        yield ToldBench(TARGET, object(), tmp_path)

    monkeypatch.setattr(prompt_lines, "TRIAL", (ENTRY,))
    monkeypatch.setattr(prompt_lines, "FAULTS", (FAULT,))
    monkeypatch.setattr(prompt_trial, "opened", told)
    monkeypatch.setattr(prompt_trial, "build_target", lambda _: TARGET)
    monkeypatch.setattr(prompt_trial, "facts_of", lambda _: {"name": "a CPU"})
    found = parse(GOOD, TARGET, "cpp")
    assert isinstance(found, Answer)
    draft = Entry(
        "exp", TARGET.fingerprint, "cpp", "draft", "1", "d" * 64, 100, GOOD,
        candidate=found.candidate.digest, evaluation=without_samples(judged(found.candidate)),
    )  # fmt: skip
    Transcript("paste", entries=[draft]).save(tmp_path / "out" / "transcript.json")
    return tmp_path / "out"


def trial(monkeypatch: pytest.MonkeyPatch, command: str, out: Path, *more: str) -> None:
    """One sub-command, as it is typed."""
    monkeypatch.setattr(sys, "argv", ["prompt_trial", command, "--out", str(out), *more])
    assert prompt_trial.main() == 0


def test_a_fault_is_planted_judged_repaired_and_told_apart(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plant, judge, table: the repair prompt is the product's own and tells nothing of it."""
    transcript = recorded / "transcript.json"
    trial(monkeypatch, "plant", recorded, "--transcript", str(transcript))
    folder = recorded / "planted-wrong-function"
    prompt = (folder / "02-repair.prompt.txt").read_text()
    assert "Your task: repair" in prompt
    assert "std::log(in0[i])" in prompt
    assert "out0[0, 1]: got 0.5" in prompt
    assert "plant" not in prompt
    assert "wrong function" not in prompt

    (folder / "02-repair.answer.txt").write_text(MENDED)
    trial(monkeypatch, "judge", recorded)
    assert not (folder / "03-optimise.prompt.txt").exists()  # it was mended: the line ends
    draft, planted, repair = Transcript.load(transcript).entries
    assert planted.parent == draft.candidate
    assert (repair.action, repair.parent) == ("repair", planted.candidate)

    rows = report_of(Transcript.load(transcript), {}, {})["rows"]
    values = {row["name"].split(" (")[0]: row["value"] for row in rows}
    assert values[f"prompts {PROMPT_VERSION}: repairs of planted faults that are right"] == 1.0
    assert values["planted in exp: wrong function"] == 1.0
    assert not any("natural failures" in name for name in values)
    (row,) = [row for row in rows if row["name"].startswith("exp: best")]
    assert row["verdicts"] == ["accepted"]


def test_a_line_that_stays_broken_is_repaired_twice_and_left(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run would: two repairs, and then nothing more is asked."""
    trial(monkeypatch, "plant", recorded, "--transcript", str(recorded / "transcript.json"))
    folder = recorded / "planted-wrong-function"
    for number in ("02", "03"):
        answer = GOOD.replace("std::exp(in0[i])", f"{number}.0f")
        (folder / f"{number}-repair.answer.txt").write_text(answer)
        trial(monkeypatch, "judge", recorded)
    assert {f.name for f in folder.glob("*.prompt.txt")} == {
        "02-repair.prompt.txt", "03-repair.prompt.txt",
    }  # fmt: skip


def test_the_targets_own_line_goes_on_as_if_nothing_was_planted(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was planted is no sibling, no parent and no step of the target's own line."""
    trial(monkeypatch, "plant", recorded, "--transcript", str(recorded / "transcript.json"))
    trial(monkeypatch, "prompts", recorded)
    prompt = (recorded / "exp" / "02-optimise.prompt.txt").read_text()
    assert "std::log" not in prompt
    entries = Transcript.load(recorded / "transcript.json").entries
    assert [e.action for e in Line(ENTRY).of(entries)] == ["draft"]
    assert [e.action for e in Line(ENTRY, FAULT).of(entries)] == ["planted"]


def test_a_fault_that_does_not_fit_is_an_error(recorded: Path) -> None:
    """A text that is there twice, or not at all, plants nothing by chance."""
    for text in ("", "std::exp(in0[i]) std::exp(in0[i])"):
        with pytest.raises(BadInput, match=r"stands \d times"):
            plant(FAULT, text)
    with pytest.raises(BadInput, match="no accepted draft of exp"):
        sound_answer(FAULT, [])
