"""The openai proposer: from a request to a candidate, with its money and its record."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import StoreError
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.proposers.prompting import PROMPT_VERSION
from kforge_nb.proposers.protocol import Attempt, Failure, Refusal, Request
from kforge_nb.proposers.strategies import next_strategy
from tests.cuda.targets import on_cuda
from tests.helpers import make_target
from tests.proposers.loopback import Exchange, Loopback, answer, silent, status
from tests.proposers.talk import GOOD, TARGET, Talk, good

pytestmark = pytest.mark.usefixtures("endpoint_environment")

NO_PLAN = GOOD.split("```json")[0]


def attempt(ratio: float, share: float | None = None, **resources: Any) -> Attempt:
    """A correct attempt with its figures."""
    row = Comparison("eager", ratio, ratio, ratio, 9, 1.0, ratio)
    found = Evaluation(
        Verdict.ACCEPTED, "", timings=(row,), roofline_share=share, resources=resources
    )
    made = parse(GOOD, TARGET, "cpp")
    assert isinstance(made, Answer)
    return Attempt(made.candidate, found)


def test_a_draft_is_a_candidate_with_its_origin() -> None:
    """Source and plan are the model's; model and version of the prompt are kept with it."""
    with Loopback([answer(GOOD)]) as server, Talk(server) as talk:
        found = talk.propose(index=3, node="3.7")
    assert isinstance(found, Candidate)
    assert "std::exp" in found.source
    assert found.title == "one pass"
    assert found.origin == {
        "proposer": "openai", "model": "loopback-1", "prompt": PROMPT_VERSION, "strategy": None,
    }  # fmt: skip
    call = talk.records.begun[0]
    assert (call.target, call.node, call.purpose) == (3, "3.7", "propose")
    assert call.text == "\n\n".join(m["content"] for m in server.requests[0]["messages"])


def test_a_call_is_written_down_before_it_is_made() -> None:
    """The record and its worst case are there when the request arrives, and its end afterwards."""
    seen: list[list[str]] = []

    def step(exchange: Exchange) -> None:
        seen.append(list(talk.records.log))
        assert talk.ledger.reserved == pytest.approx(talk.records.begun[0].worst_usd)
        answer(GOOD)(exchange)

    with Loopback([step]) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
    assert seen == [["begin"]]
    assert talk.records.log == ["begin", "end"]
    assert talk.records.ended[0]["answer"] == GOOD
    assert talk.records.ended[0]["usd"] == pytest.approx(1000e-6 + 4 * 200e-6)
    assert talk.ledger.spent == talk.records.ended[0]["usd"]
    assert talk.records.tokens == sorted(talk.records.tokens)
    assert talk.records.tokens[-1] == pytest.approx(len(GOOD) / 3.5, abs=2)


def test_a_call_that_cannot_be_written_down_is_not_made() -> None:
    """A full disk costs nothing: no record, no request."""
    with Loopback() as server, Talk(server) as talk:

        def full(call: Any) -> int:
            raise StoreError("the disk is full")

        talk.records.begin = full  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            talk.propose()
        assert server.requests == []
    assert talk.ledger.booked == 0


def test_a_broken_answer_is_mended_once() -> None:
    """The second prompt is short, holds the answer and the problem, and is booked by itself."""
    with Loopback([answer(NO_PLAN), answer(GOOD)]) as server, Talk(server) as talk:
        found = talk.propose()
        first, second = server.requests
    assert isinstance(found, Candidate)
    assert [c.purpose for c in talk.records.begun] == ["propose", "format"]
    assert "launch plan" in second["messages"][1]["content"]
    assert NO_PLAN.strip() in second["messages"][1]["content"]
    sizes = [sum(len(m["content"]) for m in body["messages"]) for body in (first, second)]
    assert sizes[1] < sizes[0] / 2
    assert talk.ledger.spent == pytest.approx(2 * (1000e-6 + 4 * 200e-6))


def test_an_answer_that_stays_broken_is_a_failure() -> None:
    """It keeps what was said, and both reasons."""
    with Loopback([answer(NO_PLAN), answer("Sorry, here: nothing")]) as server, Talk(server) as t:
        found = t.propose()
        assert len(server.requests) == 2
    assert isinstance(found, Failure)
    assert found.text == "Sorry, here: nothing"
    assert "launch plan" in found.reason
    assert "no fenced block" in found.reason
    assert found.origin["proposer"] == "openai"


def test_a_mending_that_fails_leaves_the_first_reason() -> None:
    """An endpoint that is down for the second call does not lose the first one's story."""
    with Loopback([answer(NO_PLAN), *[status(500)] * 3]) as server, Talk(server) as talk:
        found = talk.propose()
    assert isinstance(found, Failure)
    assert "launch plan" in found.reason
    assert "HTTP 500" in found.reason
    assert talk.ledger.reserved == 0


def test_what_cannot_be_mended_is_not_asked_for() -> None:
    """An empty answer has no form to mend."""
    with Loopback([answer("")]) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Failure)
        assert len(server.requests) == 1


def test_a_plan_that_does_not_fit_is_mended() -> None:
    """A plan that breaks the contract is broken form, and the breach is said."""
    wrong = GOOD.replace('"in0", "out0"', '"in1", "out0"')
    with Loopback([answer(wrong), answer(GOOD)]) as server, Talk(server) as talk:
        assert isinstance(talk.propose(), Candidate)
        assert "in1" in server.requests[1]["messages"][1]["content"]


def test_no_call_beyond_the_money() -> None:
    """What could exceed --max-cost is not asked; the run is told that its money is out."""
    with Loopback() as server, Talk(server, max_cost=0.001) as talk:
        found = talk.propose()
        assert server.requests == []
    assert isinstance(found, Refusal)
    assert found.ends == "run"
    assert talk.records.begun == []


def test_no_call_beyond_a_targets_share() -> None:
    """Where only the target's part is used up, only the target ends."""
    with Loopback() as server, Talk(server, max_cost=0.1) as talk:
        talk.ledger.set_shares({0: 0.01, 1: 0.99})
        found = talk.propose()
        assert server.requests == []
    assert isinstance(found, Refusal)
    assert found.ends == "target"


def test_the_cap_holds_however_many_ask_at_once() -> None:
    """Twenty threads, an endpoint that tells no usage: what is booked never exceeds the cap."""
    with Loopback(otherwise=answer(GOOD, usage=None)) as server, Talk(server, max_cost=0.2) as talk:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(talk.propose())) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    made = sum(isinstance(f, Candidate) for f in found)
    assert 0 < made < 20
    assert talk.ledger.booked <= 0.2
    assert talk.ledger.spent == pytest.approx(made * talk.worst())
    assert sum(row["usd"] for row in talk.records.ended.values()) == pytest.approx(
        talk.ledger.spent
    )


def test_proposals_run_side_by_side() -> None:
    """Several threads have their calls under way at the same time."""
    gate = threading.Barrier(3, timeout=30)

    def step(exchange: Exchange) -> None:
        gate.wait()
        answer(GOOD)(exchange)

    with Loopback(otherwise=step) as server, Talk(server) as talk:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(talk.propose())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [type(f) for f in found] == [Candidate] * 3


def test_close_ends_what_is_under_way() -> None:
    """The end of a search ends its calls; the proposal says that the run was stopped."""
    with Loopback([silent]) as server, Talk(server) as talk:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(talk.propose()))
        thread.start()
        assert server.arrived.wait(20)
        talk.proposer.close()
        thread.join(10)
        assert not thread.is_alive()
    assert isinstance(found[0], Refusal)
    assert talk.ledger.reserved == 0


def test_an_optimisation_asks_for_a_move() -> None:
    """The move is in the prompt and in the candidate's origin; the next one is another."""
    parent = attempt(1.2, share=0.1)
    with Loopback(otherwise=answer(good("out0[i] = expf(in0[i]);"))) as server, Talk(server) as t:
        first = t.propose(action="optimise", parent=parent)
        sibling = Attempt(first, parent.evaluation)
        second = t.propose(action="optimise", parent=parent, siblings=(sibling,))
        said = [body["messages"][1]["content"] for body in server.requests]
    moves = [c.origin["strategy"] for c in (first, second)]
    assert moves[0] == "vectorise"
    assert moves[1] != moves[0]
    assert all(f"**{move}**" in text for move, text in zip(moves, said, strict=True))
    assert "std::exp" in said[0], "the parent's source is shown"


def test_moves_go_by_what_was_measured() -> None:
    """Spills, registers and the distance to the roofline choose what is tried first."""
    target = on_cuda(TARGET)

    def first(**figures: Any) -> str:
        parent = attempt(1.5, **figures)
        return next_strategy(Request(target, "optimise", parent))

    assert first(share=0.5, kernels={"f": {"spill_stores": 8}}) == "cut registers"
    assert first(share=0.5, kernels={"f": {"registers": 200}}) == "raise occupancy"
    assert first(share=0.2) == "vectorise"
    assert first(share=0.5) == "fuse passes"
    assert first(share=0.9) == "change the mapping"


def test_targets_that_no_kernel_can_be_written_for_are_said() -> None:
    """A target on two devices has no one kernel."""
    mixed = on_cuda(make_target(lambda x: x.exp(), torch.randn(4)))
    mixed.outputs = TARGET.outputs
    with Loopback() as server, Talk(server) as talk:
        assert talk.proposer.supports(TARGET) is None
        assert "devices" in (talk.proposer.supports(mixed) or "")
