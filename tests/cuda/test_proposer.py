"""The recipes proposer on targets of a GPU: which families it asks, its moves, its words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import validate
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.proposers.protocol import Attempt, Refusal, Request
from kforge_nb.proposers.recipes import RecipeProposer
from kforge_nb.targets.target import Target
from tests.cuda.targets import case, on_cuda
from tests.helpers import make_target


def judged(candidate: Candidate, ratio: float = 0.5) -> Attempt:
    """An attempt that came out correct, with a speed-up."""
    timing = Comparison("eager", ratio, ratio, ratio, 10, 1.0, ratio)
    verdict = Verdict.ACCEPTED if ratio > 1 else Verdict.SLOWER
    return Attempt(candidate, Evaluation(verdict, "for a test", timings=(timing,)))


def drain(proposer: RecipeProposer, target: Target, **fields: Any) -> list[Candidate]:
    """Ask until refused; every answer is among the siblings of the next request."""
    found: list[Candidate] = []
    for seed in range(200):
        siblings = tuple(judged(c) for c in found)
        answer = proposer.propose(Request(target, siblings=siblings, seed=seed, **fields))
        if isinstance(answer, Refusal):
            assert answer.exhausted
            return found
        found.append(answer)
    raise AssertionError("never exhausted")


@pytest.mark.parametrize("name", ["softmax", "group-norm-silu", "rotary", "cat-odd"])
def test_the_device_decides_the_language(name: str) -> None:
    """One proposer writes C++ for the target on the CPU and device code for the same on a GPU."""
    target, _ = case(name, torch.bfloat16)
    proposer = RecipeProposer()
    for there, language in ((target, "cpp"), (on_cuda(target), "cuda"), (target, "cpp")):
        assert proposer.supports(there) is None
        answer = proposer.propose(Request(there, "draft"))
        assert isinstance(answer, Candidate)
        assert answer.language == language
        validate(answer.plan, answer.language, there.inputs, there.outputs)


def test_drafts_end_with_the_generator_and_its_mixtures() -> None:
    """Tuned families come first, then the generator, then mixtures; all of them distinct."""
    target = on_cuda(case("softmax", torch.bfloat16)[0])
    found = drain(RecipeProposer(), target, action="draft")
    assert [c.origin["recipe"] for c in found[:2]] == ["softmax", "generated"]
    assert len({c.digest for c in found}) == len(found) > 4


@pytest.mark.parametrize("name", ["softmax", "large-group-norm", "silu-up", "max-pool-last"])
def test_moves_change_one_parameter_of_the_parent(name: str) -> None:
    """From a CUDA parent each single change is offered once, and each keeps the contract."""
    target = on_cuda(case(name, torch.bfloat16)[0])
    proposer = RecipeProposer()
    root = proposer.propose(Request(target, "draft"))
    assert isinstance(root, Candidate)
    found = drain(proposer, target, action="optimise", parent=judged(root))
    before = root.origin["params"]
    assert len(found) >= 3
    for candidate in found:
        after = candidate.origin["params"]
        assert sum(before[name] != after[name] for name in before) == 1
        validate(candidate.plan, "cuda", target.inputs, target.outputs)


def test_words_where_there_is_no_recipe() -> None:
    """A target that no CUDA family knows, one on two devices and one elsewhere are told apart."""
    proposer = RecipeProposer()
    unknown = on_cuda(make_target(lambda x: x.cumsum(-1), torch.randn(4, 8)))
    assert "cumsum" in (proposer.supports(unknown) or "")
    assert "cuda:0" in (proposer.supports(unknown) or "")

    split = on_cuda(case("softmax", torch.float32)[0])
    split.inputs = tuple(dataclasses.replace(s, device="cpu") for s in split.inputs)
    assert "cuda:0, cpu" in (proposer.supports(split) or "")
    assert isinstance(proposer.propose(Request(split, "draft")), Refusal)

    other = case("softmax", torch.float32)[0]
    other.inputs = tuple(dataclasses.replace(s, device="mps:0") for s in other.inputs)
    other.outputs = tuple(dataclasses.replace(s, device="mps:0") for s in other.outputs)
    assert "mps:0" in (proposer.supports(other) or "")
