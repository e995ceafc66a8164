"""Prompts carried to a chat window and answers brought back."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import BadInput, StoreError
from kforge_nb.proposers.paste import PasteProposer, unwritable
from kforge_nb.proposers.protocol import Failure, Refusal, Request
from tests.helpers import make_target

TARGET = make_target(lambda x: x + 1, torch.randn(4, 8), family="pointwise")
SOURCE = """#include <cstdint>
extern "C" void inc(const float* in0, float* out0, int64_t n, int32_t nthreads) {
  for (int64_t i = 0; i < n; ++i) out0[i] = in0[i] + 1.0f;
}"""
PLAN = '{"kernels": [{"name": "inc", "args": ["in0", "out0", "i64:numel(in0)", "i32:nthreads"]}]}'
GOOD = f"IDEA: add one\n```cpp\n{SOURCE}\n```\n```json\n{PLAN}\n```\n"
PATIENCE_S = 20


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls, self.ends = [], []

    def begin(self, call):
        self.calls.append(call)
        return len(self.calls) - 1

    def streamed(self, number, tokens):
        raise AssertionError("nothing streams from a chat window")

    def end(self, number, usage, usd, seconds, answer="", problem=""):
        self.ends.append((number, usage, usd, answer, problem))


class Desk:
    """A proposer with a thread for each request."""

    def __init__(self, known=lambda text: None) -> None:
        self.recorder, self.stop = Recorder(), threading.Event()
        self.proposer = PasteProposer(self.recorder, self.stop, known=known)
        self.pool = ThreadPoolExecutor(4)

    def ask(self, node):
        future = self.pool.submit(self.proposer.propose, Request(TARGET, "draft", node=node))
        deadline = time.monotonic() + PATIENCE_S
        while node not in {p.id for p in self.proposer.prompts} and not future.done():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return future


@pytest.fixture
def desk():
    made = Desk()
    yield made
    made.stop.set()
    made.pool.shutdown()


def test_several_prompts_wait_and_are_answered_in_any_order(desk):
    """Each prompt has an id of its own, and an answer finds the request that it is for."""
    first, second = desk.ask("0.0"), desk.ask("0.1")
    assert [p.id for p in desk.proposer.prompts] == ["0.0", "0.1"]
    words = desk.proposer.answer("0.1", GOOD)

    found = second.result(PATIENCE_S)
    assert isinstance(found, Candidate)
    assert (found.title, found.source.strip()) == ("add one", SOURCE)
    assert found.origin["proposer"] == "paste"
    assert "'add one' is judged now" in words
    assert [p.id for p in desk.proposer.prompts] == ["0.0"]
    assert not first.done()


def test_prompts_and_answers_are_written_down_as_free_calls(desk):
    """A prompt is recorded before it is shown; its answer costs nothing, in tokens estimated."""
    asked = desk.ask("0.0")
    (call,) = desk.recorder.calls
    assert (call.model, call.worst_usd, call.node) == ("paste", 0.0, "0.0")
    assert call.text == desk.proposer.prompts[0].text
    desk.proposer.answer("0.0", GOOD)
    asked.result(PATIENCE_S)

    ((_, usage, usd, answer, problem),) = desk.recorder.ends
    assert (usd, answer, problem) == (0.0, GOOD, "")
    assert usage.estimated
    assert usage.tokens_in > usage.tokens_out > 10


def test_a_broken_answer_is_asked_for_once_more(desk):
    """The prompt turns into a shorter one that asks for the form; a good answer then counts."""
    asked = desk.ask("0.0")
    before = desk.proposer.prompts[0].text
    words = desk.proposer.answer("0.0", f"Sure!\n```cpp\n{SOURCE.replace('int64_t n,', 'N n,')}")

    (again,) = desk.proposer.prompts
    assert "form to be mended" in words
    assert again.note
    assert again.text != before
    desk.proposer.answer("0.0", GOOD)
    assert isinstance(asked.result(PATIENCE_S), Candidate)
    assert [c.purpose for c in desk.recorder.calls] == ["propose", "format"]


def test_a_second_broken_answer_is_a_failure(desk):
    """After one repair the answer is a failed node that keeps the text and says why."""
    asked = desk.ask("0.0")
    desk.proposer.answer("0.0", "I would rather talk about the weather.")
    words = desk.proposer.answer("0.0", "Really.")

    found = asked.result(PATIENCE_S)
    assert isinstance(found, Failure)
    assert found.text == "Really."
    assert found.reason in words


def test_an_answer_from_before_is_used_again():
    """An answer that came just before a kernel died is taken, and its prompt is never shown."""
    shown = []
    desk = Desk(known=lambda text: shown.append(desk.proposer.prompts) or GOOD)

    assert isinstance(desk.ask("0.0").result(PATIENCE_S), Candidate)
    assert (shown, desk.proposer.prompts) == ([[]], [])


@pytest.mark.parametrize("how", ["stop", "withdraw", "close"])
def test_waiting_ends_when_it_is_not_wanted_any_more(desk, how):
    """Stop, a target that is done and a search that ends end the waiting; the record says so."""
    asked = desk.ask("0.0")
    if how == "stop":
        desk.stop.set()
    elif how == "close":
        desk.proposer.close()
    else:
        desk.proposer.withdraw("0.0", "the target is done")

    assert isinstance(asked.result(PATIENCE_S), Refusal)
    assert "taken back" in desk.recorder.ends[0][4]
    desk.proposer.withdraw("0.0", "twice is fine")


def test_no_prompt_waits_after_the_end(desk):
    """A prompt that comes while a search ends is taken back as well, and closing twice is fine."""
    desk.proposer.close()
    desk.proposer.close()
    found = desk.ask("0.0").result(PATIENCE_S)
    assert (found.reason, found.exhausted) == ("the search has ended", False)
    assert desk.proposer.prompts == []


def test_a_store_that_fails_leaves_no_prompt_behind(desk):
    """Where the end cannot be written down, the error is raised and the prompt is gone."""

    def full(*_args, **_more):
        raise StoreError("the disk is full")

    asked = desk.ask("0.0")
    desk.recorder.end = full
    desk.proposer.close()
    with pytest.raises(StoreError):
        asked.result(PATIENCE_S)
    assert desk.proposer.prompts == []


def test_halves_of_characters_in_a_pasted_answer_are_replaced(desk):
    """What a clipboard garbled is written down as text that a store can hold."""
    asked = desk.ask("0.0")
    desk.proposer.answer("0.0", GOOD.replace("add one", "add \ud83d one"))
    assert asked.result(PATIENCE_S).title == "add \ufffd one"
    assert "\ufffd" in desk.recorder.ends[0][3]


def test_answers_that_fit_no_prompt_are_told(desk):
    """A wrong id names those that wait, and nothing is not an answer."""
    desk.ask("0.0")
    with pytest.raises(BadInput, match=r"no prompt '7.7' waits.*: 0\.0"):
        desk.proposer.answer("7.7", GOOD)
    with pytest.raises(BadInput, match="is empty"):
        desk.proposer.answer("0.0", "  \n")


def test_targets_elsewhere_are_not_asked_for():
    """A device that kernels cannot be written for is said in words."""
    meta = make_target(lambda x: x + 1, torch.randn(4, device="cpu"))
    assert unwritable(meta) is None
    spec = type(meta.inputs[0])((4,), (1,), "float32", "meta")
    object.__setattr__(meta, "inputs", (spec,))
    object.__setattr__(meta, "outputs", (spec,))
    assert "meta" in (unwritable(meta) or "")
