"""Proposers that take long: asked in parallel, stopped at once, and what becomes of failures."""

from __future__ import annotations

import threading
import time

import pytest

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import BadInput
from kforge_nb.proposers.protocol import Failure, Refusal
from kforge_nb.run.conductor import Tools
from tests.run.conftest import PLAN

PATIENCE_S = 30


class SlowProposer:
    """Each request waits for its turn in ``gate``; ``answer`` makes what it then gets."""

    name = "slow"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.stop: threading.Event | None = None
        self.lock = threading.Lock()
        self.under_way, self.most, self.requests = 0, 0, []
        self.withdrawn: set[str] = set()
        self.answer = lambda number, request: Candidate("cpp", f"// {number}", PLAN, f"c{number}")

    def supports(self, target):
        return None

    def propose(self, request):
        with self.lock:
            self.requests.append(request)
            number = len(self.requests)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            while not self.gate.wait(0.005):
                if request.node in self.withdrawn or (self.stop and self.stop.is_set()):
                    return Refusal("stopped", exhausted=False)
            return self.answer(number, request)
        finally:
            with self.lock:
                self.under_way -= 1

    def withdraw(self, node, reason):
        self.withdrawn.add(node)


@pytest.fixture
def slow(stage):
    """A stage whose conductors ask a slow proposer for three proposals at once."""
    proposer = SlowProposer()
    stage.slow = proposer
    stage.tools = lambda: Tools(
        stage.judge.session, proposer, stage.guard, {"name": "test"}, parallel=3
    )
    yield stage
    proposer.gate.set()


def until(condition, what):
    """Polls until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.005)


def test_proposals_are_asked_for_in_parallel(slow):
    """Three requests are under way before the first is answered, and never more."""
    conductor = slow.conductor(budget=8)
    conductor.start()
    until(lambda: slow.slow.under_way == 3, "three requests")
    slow.slow.gate.set()

    assert conductor.join(PATIENCE_S)
    assert slow.slow.most == 3
    assert len(slow.store.nodes(conductor.record.id)) == 8


def test_the_judge_works_while_proposals_are_awaited(slow):
    """A candidate that is there is judged although other answers have not come yet."""
    slow.slow.gate.set()
    first = slow.slow.answer

    def answer(number, request):
        if number > 1:
            assert slow.judge.began.wait(PATIENCE_S), "the judge waited for all proposals"
        return first(number, request)

    slow.slow.answer = answer
    conductor = slow.conductor(budget=3)
    conductor.start()

    assert conductor.join(PATIENCE_S)
    assert len(slow.store.nodes(conductor.record.id)) == 3


def test_proposals_are_asked_for_while_the_judge_works(slow):
    """While all that may be judged at once is being judged, further proposals are made."""
    slow.judge.gate.clear()
    slow.slow.gate.set()
    conductor = slow.conductor(budget=9)
    conductor.start()
    until(lambda: len(slow.slow.requests) == 5, "requests ahead of the judge")
    slow.judge.gate.set()

    assert conductor.join(PATIENCE_S)
    assert len(slow.store.nodes(conductor.record.id)) == 9


def test_the_budget_counts_what_is_under_way(slow):
    """No more is asked for than may be judged, since each request may cost money."""
    conductor = slow.conductor(budget=2)
    conductor.start()
    until(lambda: slow.slow.under_way == 2, "two requests")
    slow.slow.gate.set()

    assert conductor.join(PATIENCE_S)
    assert len(slow.slow.requests) == 2


def test_stop_ends_a_run_that_waits_for_answers(slow):
    """Stop does not wait for a language model that never answers."""
    conductor = slow.conductor()
    slow.slow.stop = conductor.control.stop
    conductor.start()
    until(lambda: slow.slow.under_way == 3, "three requests")
    begun = time.monotonic()
    conductor.control.request_stop("stopped by a test")

    assert conductor.join(PATIENCE_S)
    assert time.monotonic() - begun < 5
    assert conductor.record.run["state"] == "stopped"
    assert not conductor.works[0].tree.root.pending


def test_a_failed_answer_is_a_node_with_its_reason(slow):
    """An answer without a kernel counts, is kept with its text, and the run goes on."""
    slow.slow.gate.set()
    good = slow.slow.answer
    slow.slow.answer = lambda number, request: (
        Failure("the answer has no code block", "Sorry!", origin={"proposer": "slow"})
        if number == 1
        else good(number, request)
    )
    conductor = slow.conductor(budget=3)
    conductor.start()

    assert conductor.join(PATIENCE_S)
    nodes = slow.store.nodes(conductor.record.id, sources=True)
    failed = next(n for n in nodes if n["candidate"]["source"] == "Sorry!")
    assert failed["evaluation"]["verdict"] == "refused"
    assert failed["evaluation"]["reason"] == "the answer has no code block"
    assert len(nodes) == 3
    assert len(slow.judge.judged) == 2
    assert conductor.record.candidate(failed["id"]).title == "no kernel"


def test_money_that_is_out_ends_the_run_with_its_reason(slow):
    """When nothing is under way whose money could come back, the refusal's words end the run."""
    slow.slow.gate.set()
    good = slow.slow.answer
    slow.slow.answer = lambda number, request: (
        good(number, request)
        if number <= 3
        else Refusal("0.01 USD are left", exhausted=False, ends="run")
    )
    conductor = slow.conductor(budget=30)
    conductor.start()

    assert conductor.join(PATIENCE_S)
    run = conductor.record.run
    assert (run["state"], "0.01 USD are left" in run["state_reason"]) == ("done", True)
    assert len(slow.store.nodes(conductor.record.id)) == 3
    assert len(slow.slow.requests) < 12


def test_a_targets_share_ends_that_target_only(slow):
    """A target without money waits while the other goes on, and at the end both say why."""
    slow.slow.gate.set()
    good = slow.slow.answer
    given = []

    def answer(number, request):
        if request.index == 0:
            return Refusal("its share is spent", exhausted=False, ends="target")
        if len(given) == 5:
            return Refusal("nothing left")
        given.append(number)
        return good(number, request)

    slow.slow.answer = answer
    conductor = slow.conductor(budget=50, targets=2)
    conductor.start()

    assert conductor.join(PATIENCE_S)
    rows = {t["index"]: t["record"] for t in slow.store.targets(conductor.record.id)}
    assert rows[0]["state_reason"] == "its share is spent"
    assert rows[1]["state_reason"] == "there is nothing more to try"
    assert {n["target"] for n in slow.store.nodes(conductor.record.id)} == {1}
    assert len(slow.store.nodes(conductor.record.id)) == 5


def test_an_error_of_the_proposer_ends_the_run_in_words(slow):
    """What every further call would meet too, such as a refused key, fails the run once."""
    slow.slow.gate.set()

    def answer(number, request):
        raise BadInput("the endpoint refused the key; set OPENAI_API_KEY")

    slow.slow.answer = answer
    conductor = slow.conductor()
    conductor.start()

    assert conductor.join(PATIENCE_S)
    run = conductor.record.run
    assert run["state"] == "failed"
    assert run["state_reason"].startswith("the endpoint refused the key")


def test_an_unforeseen_error_of_the_proposer_ends_the_run_in_words(slow):
    """A mistake in a proposer fails the run by its name, after what is judged has its node."""
    slow.slow.gate.set()
    good = slow.slow.answer

    def answer(number, request):
        if number == 1:
            return good(number, request)
        assert slow.judge.began.wait(PATIENCE_S)
        raise UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates not allowed")

    slow.slow.answer = answer
    conductor = slow.conductor()
    conductor.start()

    assert conductor.join(PATIENCE_S)
    run = conductor.record.run
    assert run["state"] == "failed"
    assert run["state_reason"].startswith("the proposer slow failed (UnicodeEncodeError")
    assert len(slow.store.nodes(conductor.record.id)) == 1


def test_an_error_of_the_proposer_loses_nothing_that_is_being_judged(slow):
    """An answer that was paid for and is with the judge gets its node before the run fails."""
    slow.slow.gate.set()
    good = slow.slow.answer
    failed = threading.Event()

    def answer(number, request):
        if number == 1:
            return good(number, request)
        assert slow.judge.began.wait(PATIENCE_S)
        failed.set()
        raise BadInput("the account has no money left")

    slow.slow.answer = answer
    slow.judge.gate.clear()
    conductor = slow.conductor()
    conductor.start()
    assert failed.wait(PATIENCE_S)
    slow.judge.gate.set()

    assert conductor.join(PATIENCE_S)
    assert conductor.record.run["state"] == "failed"
    assert len(slow.store.nodes(conductor.record.id)) == 1


def test_the_time_limit_takes_back_what_is_awaited(slow):
    """A prompt that nobody answers does not hold a run beyond its time limit."""
    conductor = slow.conductor(time_limit=0.3)
    conductor.start()

    assert conductor.join(PATIENCE_S)
    assert "time limit" in conductor.record.run["state_reason"]
    assert len(slow.slow.withdrawn) == 3


def test_a_kernel_from_a_cell_does_not_wait_for_the_model(slow):
    """A candidate handed in while all proposals are awaited is judged at once."""
    from kforge_nb.run.control import Handed

    conductor = slow.conductor(budget=9)
    conductor.start()
    until(lambda: slow.slow.under_way == 3, "three requests")
    handed = Handed(0, Candidate("cpp", "// mine", PLAN, "mine"))
    conductor.control.hand_in(handed)

    assert handed.result.result(PATIENCE_S).speedup == 1.5
    slow.slow.gate.set()
    assert conductor.join(PATIENCE_S)
