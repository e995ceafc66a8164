"""Prompts that a person carries to a chat window, and answers that they bring back.

Each request becomes a prompt that waits under the id of the node it is for; several may wait at
once. An answer whose form is broken is asked for once more, in a short prompt under the same id;
after that it is a failed node. Prompts and answers are written down like calls of an endpoint, so
an answer that was given just before a kernel died is found again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kforge_nb.errors import BadInput
from kforge_nb.proposers.answers import Answer, format_repair, parse
from kforge_nb.proposers.cost import tokens_estimate
from kforge_nb.proposers.prompting import language_of, render
from kforge_nb.proposers.protocol import Failure, Refusal
from kforge_nb.proposers.recording import Call
from kforge_nb.proposers.strategies import next_strategy
from kforge_nb.proposers.stream import Usage, paired

if TYPE_CHECKING:
    from typing import Any

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.proposers.prompting import Prompt
    from kforge_nb.proposers.protocol import Request
    from kforge_nb.proposers.recording import Recorder
    from kforge_nb.targets.target import Target

__all__ = ["PasteProposer", "Pending", "unwritable"]

LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Pending:
    """A prompt that waits for an answer; ``note`` says why an earlier one was of no use."""

    id: str
    target: int
    name: str
    action: str
    text: str
    note: str = ""


@dataclass(slots=True)
class _Question:
    """A request with the prompt that now waits; ``done`` is set when ``outcome`` is there."""

    request: Request
    prompt: Prompt
    origin: dict[str, Any]
    begun: float
    number: int
    note: str = ""
    repaired: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    outcome: Candidate | Refusal | Failure | None = None


def unwritable(target: Target) -> str | None:
    """Why a language model cannot be asked for a kernel of this target; None if it can."""
    devices = {spec.device.partition(":")[0] for spec in (*target.inputs, *target.outputs)}
    if len(devices) > 1:
        return f"its tensors are on several devices ({', '.join(sorted(devices))})"
    if not devices <= {"cpu", "cuda"}:
        return f"kernels are written for the CPU and for CUDA; this target is on {devices.pop()}"
    return None


class PasteProposer:
    """Proposes what a person brings back from a chat window. Thread-safe.

    Args:
        recorder: writes prompts and answers down.
        stop: ends all waiting.
        changed: called when prompts come or go.
        known: the answer that a prompt got before its node could be judged, if there is one.
    """

    name = "paste"

    def __init__(
        self,
        recorder: Recorder,
        stop: threading.Event,
        changed: Callable[[], None] = lambda: None,
        known: Callable[[str], str | None] = lambda _text: None,
    ) -> None:
        self._recorder, self._stop, self._changed, self._known = recorder, stop, changed, known
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._questions: dict[str, _Question] = {}

    def supports(self, target: Target) -> str | None:
        """None where a kernel can be written for the target, else the reason in words."""
        return unwritable(target)

    def propose(self, request: Request) -> Candidate | Refusal | Failure:
        """Waits for the person's answer; a refusal when it is not wanted any more."""
        strategy = next_strategy(request) if request.action == "optimise" else None
        prompt = render(request, strategy)
        origin = {"proposer": self.name, "prompt": prompt.version, "strategy": strategy}
        before = self._known(prompt.text())
        number = self._begin(request, prompt)
        question = _Question(request, prompt, origin, time.monotonic(), number)
        try:
            with self._lock:
                self._questions[request.node] = question
                if before is not None:
                    self._take(question, before)
            self._changed()
            while not question.done.wait(LOOK_EVERY_S):
                if self._stop.is_set():
                    self.withdraw(request.node, "the run was stopped")
                elif self._over.is_set():
                    self.withdraw(request.node, "the search has ended")
        finally:
            with self._lock:
                self._questions.pop(request.node, None)
        self._changed()
        return question.outcome or Refusal("nothing was answered", exhausted=False)

    def close(self) -> None:
        """Takes back all prompts that wait, and any that is still to come; safe to call twice."""
        self._over.set()

    @property
    def prompts(self) -> list[Pending]:
        """What waits for an answer, oldest first."""
        with self._lock:
            return [_pending(q) for q in self._questions.values() if not q.done.is_set()]

    def answer(self, prompt_id: str, text: str) -> str:
        """Takes an answer; what becomes of it, in words.

        Raises BadInput when no prompt of that id waits, or the answer is empty.
        """
        if not text.strip():
            raise BadInput(f"the answer to prompt {prompt_id} is empty; paste the whole answer")
        with self._lock:
            question = self._questions.get(prompt_id)
            if question is None or question.done.is_set():
                raise BadInput(self._unknown(prompt_id))
            return self._take(question, paired(text))

    def withdraw(self, prompt_id: str, reason: str) -> None:
        """Takes a prompt back that nobody needs an answer to any more."""
        with self._lock:
            question = self._questions.get(prompt_id)
            if question is None or question.done.is_set():
                return
            seconds = time.monotonic() - question.begun
            self._recorder.end(question.number, None, 0.0, seconds, problem=f"taken back: {reason}")
            question.outcome = Refusal(reason, exhausted=False)
            question.done.set()

    # -- inside ------------------------------------------------------------------------------

    def _take(self, question: _Question, text: str) -> str:
        request, prompt = question.request, question.prompt
        found = parse(text, request.target, language_of(request))
        problem = "" if isinstance(found, Answer) else found.reason
        asked, said = tokens_estimate(prompt.text()), tokens_estimate(text)
        tokens = Usage(asked, tokens_out=said, estimated=True)
        seconds = time.monotonic() - question.begun
        self._recorder.end(question.number, tokens, 0.0, seconds, text, problem)
        if isinstance(found, Answer):
            title = found.candidate.title or question.origin["strategy"] or request.action
            question.outcome = replace(found.candidate, title=title, origin=question.origin)
            question.done.set()
            return f"prompt {request.node}: taken, {title!r} is judged now"
        if found.repairable and not question.repaired:
            return self._ask_again(question, text, problem)
        language = language_of(request)
        origin = question.origin
        question.outcome = Failure(problem, text, language, origin=origin)
        question.done.set()
        return f"prompt {request.node}: there is no kernel in the answer ({problem})"

    def _ask_again(self, question: _Question, text: str, problem: str) -> str:
        question.prompt = format_repair(question.prompt, text, problem)
        question.note, question.repaired = problem, True
        question.begun = time.monotonic()
        question.number = self._begin(question.request, question.prompt, "format")
        self._changed()
        return (
            f"prompt {question.request.node}: the answer cannot be read ({problem}); the prompt "
            "now asks for its form to be mended"
        )

    def _begin(self, request: Request, prompt: Prompt, purpose: str = "propose") -> int:
        text, version = prompt.text(), prompt.version
        call = Call(request.index, request.node, self.name, version, text, 0.0, purpose)
        return self._recorder.begin(call)

    def _unknown(self, prompt_id: str) -> str:
        waiting = [q.request.node for q in self._questions.values() if not q.done.is_set()]
        known = f"these wait: {', '.join(waiting)}" if waiting else "none waits now"
        return f"no prompt {prompt_id!r} waits for an answer; {known}"


def _pending(question: _Question) -> Pending:
    request = question.request
    text, note = question.prompt.text(), question.note
    return Pending(request.node, request.index, request.target.name, request.action, text, note)
