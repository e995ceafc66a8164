"""The recipes proposer: order of drafts, moves, repairs, and an end."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.candidates.plan import validate
from kforge_nb.candidates.recipes.family import Match, Params, origin_of
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.proposers.protocol import Attempt, Proposer, Refusal, Request
from kforge_nb.proposers.recipes import MAX_REPAIRS, RecipeProposer
from kforge_nb.targets.target import Target
from tests.helpers import make_target


class Family:
    """A family with three parameters, one of which changes nothing in the source."""

    def __init__(self, name: str, *, knows: bool = True) -> None:
        self.name, self.knows = name, knows

    def match(self, target: Target) -> Match | None:
        return Match(self.name, target) if self.knows else None

    def parameters(self, match: Match) -> dict[str, list[Any]]:
        return {"unroll": [4, 1, 2], "stream": [False, True], "idle": [0, 1]}

    def emit(self, match: Match, params: Params) -> Candidate:
        source = f"// {self.name} {params['unroll']} {params['stream']}"
        plan = LaunchPlan((Kernel("k", ("in0", "out0", "i32:nthreads")),))
        return Candidate("cpp", source, plan, self.name, origin_of(match, params))


TARGET = make_target(lambda x: x.exp(), torch.randn(4, 8))


def judged(candidate: Candidate, verdict: Verdict = Verdict.SLOWER, ratio: float = 0.5) -> Attempt:
    """An attempt with a verdict and a speed-up."""
    timing = Comparison("eager", ratio, ratio, ratio, 10, 1.0, ratio)
    return Attempt(candidate, Evaluation(verdict, "for a test", timings=(timing,)))


def ask(proposer: Proposer, **fields: Any) -> Any:
    """One request for the target."""
    return proposer.propose(Request(TARGET, **fields))


def drain(proposer: Proposer, verdict: Verdict = Verdict.SLOWER, **fields: Any) -> list[Candidate]:
    """Ask, with every answer among the siblings, until refused."""
    found: list[Candidate] = []
    for seed in range(100):
        siblings = tuple(judged(c, verdict) for c in found)
        answer = ask(proposer, siblings=siblings, seed=seed, **fields)
        if isinstance(answer, Refusal):
            assert answer.exhausted
            assert answer.reason
            return found
        found.append(answer)
    raise AssertionError("never exhausted")


def test_drafts_follow_the_order_of_families() -> None:
    """Each family's best guess comes first, in order; mixtures follow; then nothing."""
    proposer = RecipeProposer([Family("a"), Family("no", knows=False), Family("b")])
    found = drain(proposer, action="draft")

    assert [c.title for c in found[:2]] == ["a", "b"]
    assert all(c.origin["params"] == {"unroll": 4, "stream": False, "idle": 0} for c in found[:2])
    assert len({c.digest for c in found}) == len(found)
    assert 2 < len(found) <= 12


def test_optimise_changes_one_parameter_and_ends() -> None:
    """All single changes that alter the source are offered once, important ones first."""
    proposer = RecipeProposer([Family("a")])
    root = judged(ask(proposer, action="draft"))
    found = drain(proposer, action="optimise", parent=root)

    assert [c.origin["params"]["unroll"] for c in found] == [1, 4, 2]
    for candidate in found:
        before, after = root.candidate.origin["params"], candidate.origin["params"]
        assert sum(before[name] != after[name] for name in before) == 1


def test_a_change_that_paid_off_is_followed_up() -> None:
    """After a gain the same parameter is tried again before the others."""
    proposer = RecipeProposer([Family("a")])
    root = judged(ask(proposer, action="draft"))
    first = ask(proposer, action="optimise", parent=root)
    gained = judged(first, Verdict.ACCEPTED, 2.0)
    second = ask(proposer, action="optimise", parent=root, siblings=(gained,))

    assert first.origin["params"]["unroll"] == 1
    assert second.origin["params"]["unroll"] == 2


def test_repair_goes_back_to_the_best_guess_first_and_gives_up() -> None:
    """A failed candidate is first brought back towards the defaults, a few times at most."""
    family = Family("a")
    proposer = RecipeProposer([family])
    odd = family.emit(Match("a", TARGET), {"unroll": 2, "stream": True, "idle": 0})
    found = drain(proposer, Verdict.WRONG, action="repair", parent=judged(odd, Verdict.WRONG))

    assert found[0].origin["params"] == {"unroll": 4, "stream": True, "idle": 0}
    assert found[1].origin["params"] == {"unroll": 2, "stream": False, "idle": 0}
    assert len(found) <= MAX_REPAIRS


def test_what_was_judged_elsewhere_in_the_tree_is_not_proposed() -> None:
    """Digests in ``tried`` count like siblings."""
    proposer = RecipeProposer([Family("a")])
    first = ask(proposer, action="draft")
    second = ask(proposer, action="draft", tried=frozenset({first.digest}))

    assert second.digest != first.digest


def test_same_request_same_answer() -> None:
    """Answers depend on the request alone, not on the proposer's history."""
    used = RecipeProposer()
    drain(used, action="draft")
    for seed in range(3):
        fields = {"action": "restart", "seed": seed, "siblings": ()}
        assert ask(used, **fields) == ask(RecipeProposer(), **fields)


def test_foreign_parents_are_refused() -> None:
    """A parent without recipe parameters has no moves; that is said, not raised."""
    proposer = RecipeProposer([Family("a")])
    foreign = Candidate("cpp", "x", LaunchPlan(()), origin={"proposer": "openai"})
    gone = Candidate("cpp", "x", LaunchPlan(()), origin={"proposer": "recipes", "recipe": "old"})

    for candidate in (foreign, gone):
        answer = ask(proposer, action="optimise", parent=judged(candidate))
        assert isinstance(answer, Refusal)


def test_unsupported_targets_have_a_reason() -> None:
    """What no family can write is refused in words."""
    target = make_target(lambda x: x.cumsum(-1), torch.randn(4, 8))
    proposer = RecipeProposer()

    assert "cumsum" in (proposer.supports(target) or "")
    answer = proposer.propose(Request(target, "draft"))
    assert isinstance(answer, Refusal)
    assert "cumsum" in answer.reason


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x: F.softmax(x, -1), [(4, 64)]),
        (lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)), [(2, 8, 6, 7), (8,), (8,)]),
        (lambda x, y: F.silu(x) * y, [(8, 96), (8, 96)]),
    ],
)
def test_real_families_give_valid_plans(fn: Any, shapes: list[tuple[int, ...]]) -> None:
    """Tuned families come before the generator, and every proposal keeps the contract."""
    target = make_target(fn, *(torch.randn(shape) for shape in shapes))
    proposer = RecipeProposer()
    assert proposer.supports(target) is None
    found: list[Candidate] = []
    for seed in range(6):
        request = Request(target, "draft", siblings=tuple(judged(c) for c in found), seed=seed)
        candidate = proposer.propose(request)
        assert isinstance(candidate, Candidate)
        validate(candidate.plan, "cpp", target.inputs, target.outputs)
        found.append(candidate)

    recipes = [c.origin["recipe"] for c in found]
    assert recipes[0] != "generated"
    assert "generated" in recipes
