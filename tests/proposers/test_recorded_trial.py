"""The recorded trial of the prompts: today's rules still read every answer that was given then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.prompt_faults import FAULTS, label_of, plant, sound_answer
from benchmarks.prompt_targets import TRIAL, TrialTarget, build_target, captured_fingerprint
from kforge_nb.candidates.candidate import Candidate
from kforge_nb.proposers.protocol import Attempt, Failure, Refusal, Request
from kforge_nb.proposers.replay import ReplayProposer
from kforge_nb.proposers.transcript import Transcript

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "docs" / "results" / "2026-11-30-prompt_trial-transcript.json"
RECORDED = Transcript.load(RECORDING)
ANSWERED = [t for t in TRIAL if any(e.target == t.name for e in RECORDED.entries)]


def test_the_recording_is_of_many_targets() -> None:
    """The trial's first targets, and harder ones, all have answers; few would prove little."""
    assert len(ANSWERED) >= 17
    assert len(RECORDED.entries) >= 58


@pytest.mark.parametrize("entry", ANSWERED, ids=lambda entry: entry.name)
def test_every_recorded_answer_is_read_and_keeps_its_place(entry: TrialTarget) -> None:
    """Each answer gives the kernel that it gave when it was judged, under the same parent."""
    target = build_target(entry, "cpu")  # only its tensors count here
    mine = [replace(e, fingerprint=target.fingerprint) for e in RECORDED.entries
            if e.target == entry.name]  # fmt: skip
    steps = ReplayProposer(Transcript("paste", entries=mine)).steps(target)

    assert [s.digest for s in steps] == [e.candidate for e in mine if e.candidate]
    assert [s.parent for s in steps] == [e.parent for e in mine]
    known = {s.digest for s in steps}
    assert all(s.parent is None or s.parent in known for s in steps)


@pytest.mark.parametrize(
    "name", ["rms_norm_bf16", "batch_norm_add_relu", "group_norm_last", "max_pool"]
)
def test_a_model_of_the_same_shapes_gets_the_recorded_answers(name: str) -> None:
    """The recording goes by the fingerprints of a run, so that a user's ``replay`` finds it."""
    entry = next(e for e in TRIAL if e.name == name)
    target = build_target(entry)
    assert ReplayProposer(RECORDED).supports(target) is not None  # the trial's own numbering

    target.fingerprint = captured_fingerprint(entry) or ""
    proposer = ReplayProposer(RECORDED)
    assert proposer.supports(target) is None
    assert len(proposer.steps(target)) == sum(e.target == name for e in RECORDED.entries)


def test_a_search_gets_all_of_a_recording_by_asking() -> None:
    """From the roots on, asking for each node's children plays every kernel once."""
    entry = next(e for e in TRIAL if e.name == "batch_norm_add_relu")
    target = build_target(entry)
    mine = [replace(e, fingerprint=target.fingerprint) for e in RECORDED.entries
            if e.target == entry.name]  # fmt: skip
    proposer = ReplayProposer(Transcript("paste", entries=mine))
    judged = {e.candidate: e.evaluation for e in mine}
    found: list[str] = []
    open_parents: list[Attempt | None] = [None]
    while open_parents:
        parent = open_parents.pop()
        action = "draft" if parent is None else "optimise"
        got = proposer.propose(Request(target, action, parent, tried=frozenset(found)))
        if isinstance(got, Refusal):
            continue
        assert isinstance(got, Candidate)
        assert not isinstance(got, Failure)
        found.append(got.digest)
        open_parents += [parent, Attempt(got, evaluation_of(judged[got.digest]))]
    assert sorted(found) == sorted(judged)


def evaluation_of(document: object):
    """An evaluation as it was recorded."""
    from kforge_nb.judge.evaluation import Evaluation

    assert isinstance(document, dict)
    return Evaluation.from_document(document)


def test_planted_faults_still_fit_the_recorded_kernels() -> None:
    """Each fault changes the recorded answer as it did then, and what came of it was a failure."""
    planted = {e.strategy: e for e in RECORDED.entries if e.action == "planted"}
    assert len(planted) == len(FAULTS) >= 6
    for fault in FAULTS:
        entry = planted[fault.label]
        assert entry.answer == plant(fault, sound_answer(fault, RECORDED.entries).answer)
        assert entry.evaluation is not None
        assert not evaluation_of(entry.evaluation).correct
        repairs = [e for e in RECORDED.entries if label_of(e) == fault.label and e is not entry]
        assert repairs
        assert {e.action for e in repairs} == {"repair"}
