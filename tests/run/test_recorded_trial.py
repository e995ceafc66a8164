"""A part of the recorded trial of the prompts, played again with the real judge.

Every recorded kernel was written for AVX-512. So that a verdict is demanded on any CPU, the norm,
its fault and its repair are played with the intrinsics that they use written out in
``plain_vectors.h``: their own statements, in the compiler's vectors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.prompt_targets import TRIAL, build_target
from kforge_nb.judge import bench as benches
from kforge_nb.judge.timing import Plan
from kforge_nb.options import OptimizeOptions
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.proposers.transcript import Transcript
from kforge_nb.run.conductor import Conductor
from kforge_nb.run.handle import Run
from kforge_nb.run.record import Record
from kforge_nb.run.source import StoreSource
from kforge_nb.run.tools import make_tools
from kforge_nb.run.work import Work
from kforge_nb.search.tree import Tree
from kforge_nb.targets.document import target_to_document

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "docs" / "results" / "2026-11-30-prompt_trial-transcript.json"
PLAIN_VECTORS = (Path(__file__).parent / "plain_vectors.h").read_text()
HEADER = "#include <immintrin.h>\n"
PATIENCE_S = 200
RIGHT = {"accepted", "slower", "undecided"}  # how fast it is here is another matter
NAME = "rms_norm_bf16"


def part_of_the_recording(target):
    """A draft; half of it, cut off; the draft for any CPU, its fault, and the repair."""
    recorded = [e for e in Transcript.load(RECORDING).entries if e.target == NAME]
    sound = recorded[0]
    cut_off = replace(sound, answer=sound.answer[: len(sound.answer) // 2], candidate=None)
    planted = next(e for e in recorded if e.action == "planted")
    repair = next(e for e in recorded if e.action == "repair" and e.parent == planted.candidate)
    entries = [sound, cut_off, *for_any_cpu((sound, planted, repair), target)]
    return Transcript(
        "paste",
        "played again",
        entries=[replace(e, fingerprint=target.fingerprint) for e in entries],
    )


def for_any_cpu(descent, target):
    """Kernels, each made from the one before, with their intrinsics written out."""
    found, parent = [], None
    for entry in descent:
        assert entry.answer.count(HEADER) == 1
        text = entry.answer.replace(HEADER, PLAIN_VECTORS)
        answer = parse(text, target, entry.language)
        assert isinstance(answer, Answer), answer
        found.append(replace(entry, answer=text, parent=parent, candidate=answer.candidate.digest))
        parent = answer.candidate.digest
    return found


def is_right(node):
    """Whether it passed every check of its values; so short a timing may come out as nonsense."""
    return node["verdict"] in RIGHT or node["reason"].startswith("faster than physics allows")


@pytest.fixture
def quick(monkeypatch):
    """Timing that only has to take place."""
    for name in ("EVALUATE", "CONFIRM"):
        monkeypatch.setattr(benches, name, Plan(seconds=0.2, narrow=0.9, pairs=4))


def work_of(record, index, target):
    """A target at work, in the run's store."""
    document = target_to_document(target, record.folder / "inputs")
    row = {"fingerprint": target.fingerprint, "name": target.name, "family": target.family}
    row |= {"share": 0.5, "headroom": 3.0, "state": "waiting", "calls": 1, "mean_us": 900.0}
    record.store.add_target(record.id, index, row, {"document": document})
    return Work(index, target, Tree(index), record, share=0.5, headroom=3.0, mean_us=900.0)


def test_recorded_answers_are_judged_again(stage, tmp_path, quick):
    """Right kernels, a fault, its repair and half an answer: each is found to be what it is."""
    entries = {entry.name: entry for entry in TRIAL}
    target = build_target(entries[NAME])
    recording = tmp_path / "part.json"
    part_of_the_recording(target).save(recording)
    options = OptimizeOptions.of(
        {"name": "played", "proposer": "replay", "recording": str(recording), "baseline": "eager"}
    )
    record = Record(stage.store, stage.store.create_run("played", options=options.to_document()))
    works = [work_of(record, 0, target)]
    tools = replace(make_tools(options, "cpu"), guard=stage.guard)
    conductor = Conductor(record, works, options, "here", tools)
    conductor.start()
    assert conductor.join(PATIENCE_S)

    document = Run(StoreSource(conductor.record)).document
    assert document["state"] == "done", document["state_reason"]
    nodes = {n["origin"].get("entry"): n for n in document["nodes"]}
    said = {place: f"{n['verdict']}: {n['reason']}" for place, n in nodes.items()}
    assert set(nodes) == set(range(5)), said
    ids = {n["id"]: place for place, n in nodes.items()}
    assert [ids.get(nodes[place]["parent"]) for place in range(5)] == [None, None, None, 2, 3], said
    assert nodes[1]["verdict"] == "refused"
    assert "cut off" in nodes[1]["reason"]
    assert all(is_right(nodes[place]) for place in (2, 4)), said
    assert nodes[3]["verdict"] == "wrong", said
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert is_right(nodes[0]), said
    else:
        assert nodes[0]["verdict"] == "compile_failed", said
