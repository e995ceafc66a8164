"""Candidates that a language model writes, over any OpenAI-compatible endpoint.

Each call is booked at its worst case before it is made, written down before it leaves, and settled
by what the endpoint says it cost. A broken answer gets one short request to mend its form; after
that it is a failed node with its reason. What every further call would meet too (a refused key, an
unknown model, a server that stays down) ends the run in words, and what was found is kept.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput, MissingTool
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.proposers.chat import Chat, ChatFailed, Progress, Reply, Usage
from kforge_nb.proposers.cost import Ledger, OverBudget, Reservation, tokens_bound, tokens_estimate
from kforge_nb.proposers.paste import unwritable
from kforge_nb.proposers.prompting import Prompt, format_repair, language_of, render
from kforge_nb.proposers.protocol import Failure, Refusal
from kforge_nb.proposers.recording import Call
from kforge_nb.proposers.strategies import next_strategy

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate, Language
    from kforge_nb.proposers.protocol import Request
    from kforge_nb.proposers.recording import Recorder
    from kforge_nb.targets.target import Target

__all__ = ["MAX_TOKENS", "OpenAIProposer"]

MAX_TOKENS = 16_000
"""Tokens that an answer may have where nothing else is said, reasoning included."""

FAILURES_IN_A_ROW = 3
"""Calls that come to nothing one after the other, and then the endpoint is given up."""

_SHORTER = 3
_CHARACTERS_PER_TOKEN = 2.5
_KEPT_ANSWER = 60_000
_HOPELESS = frozenset({"key", "model", "quota"})
_ANSWERED = frozenset({"filtered", "oversized"})


@dataclass(slots=True)
class _Asked:
    """One proposal under way: request, what its candidate's origin says, the answer so far."""

    request: Request
    origin: dict[str, Any]
    language: Language


class _Given(Exception):
    """What a proposal came to before there was an answer."""

    def __init__(self, outcome: Refusal | Failure) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class OpenAIProposer:
    """Proposes what a language model writes. Thread-safe.

    Args:
        chat: the client of the endpoint; closed with the proposer.
        ledger: what may be spent.
        recorder: writes calls down; None where nobody keeps a record.
        stop: ends calls under way at once.
        max_tokens: of each answer.
    """

    name = "openai"

    def __init__(
        self,
        chat: Chat,
        ledger: Ledger,
        recorder: Recorder | None = None,
        *,
        stop: threading.Event | None = None,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self._chat, self._ledger, self._recorder = chat, ledger, recorder
        self._stop = stop or threading.Event()
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._limit: int | None = None  # characters of a prompt that the endpoint takes
        self._failures = 0

    def supports(self, target: Target) -> str | None:
        """None where a kernel can be written for the target, else the reason in words."""
        return unwritable(target)

    def propose(self, request: Request) -> Candidate | Refusal | Failure:
        """The model's candidate; a refusal without an answer, a failure without a kernel in it.

        Raises:
            BadInput: the key, the model or the request can never work, or the prompt cannot be made
                as short as the endpoint needs it.
            MissingTool: the endpoint cannot be reached, or answers nothing of use, again and again.
        """
        strategy = next_strategy(request) if request.action == "optimise" else None
        language = language_of(request)
        try:
            prompt, reply = self._ask_shortened(request, strategy)
            origin = {
                "proposer": self.name,
                "model": self._chat.model,
                "prompt": prompt.version,
                "strategy": strategy,
            }
            return self._taken(_Asked(request, origin, language), prompt, reply)
        except _Given as given:
            return given.outcome

    def close(self) -> None:
        """Ends calls under way, and the client."""
        self._stop.set()
        self._chat.close()

    # -- asking --------------------------------------------------------------------------------

    def _ask_shortened(self, request: Request, strategy: str | None) -> tuple[Prompt, Reply]:
        """Asks; a prompt that is too long for the endpoint is made shorter, a few times."""
        for _ in range(_SHORTER):
            prompt = render(request, strategy, limit_chars=self._limit)
            try:
                return prompt, self._ask(request, prompt, "propose")
            except ChatFailed as failed:
                if failed.kind != "too_long":
                    raise _Given(self._given_up(failed, request)) from failed
                self._shorten(len(prompt.text()), failed)
        raise BadInput(
            f"{self._chat.where} finds every prompt for {request.target.name} too long; use a "
            "model with a longer context"
        )

    def _shorten(self, size: int, failed: ChatFailed) -> None:
        limit = int(size * 0.7)
        if failed.limit is not None:
            room = failed.limit - self._max_tokens
            if room <= 0:
                raise BadInput(
                    f"{self._chat.where} takes {failed.limit} tokens, prompt and answer together, "
                    f"and --max-tokens {self._max_tokens} leaves no room for the prompt; give fewer"
                )
            limit = min(int(room * _CHARACTERS_PER_TOKEN), size - 1)
        with self._lock:
            self._limit = limit if self._limit is None else min(limit, self._limit)

    def _ask(self, request: Request, prompt: Prompt, purpose: str) -> Reply:
        """One call: reserved, written down, made, settled. Raises ChatFailed and _Given."""
        if self._stop.is_set():
            raise _Given(Refusal("the run was stopped", exhausted=False))
        bound = tokens_bound(*(message["content"] for message in prompt.messages))
        booked = self._ledger.reserve(
            request.index, bound, self._max_tokens, attempts=self._chat.attempts
        )
        if isinstance(booked, OverBudget):
            raise _Given(Refusal(booked.reason, ends="run" if booked.whole else "target"))
        book = _Book(self._recorder, booked)
        book.begin(Call(request.index, request.node, self._chat.model, prompt.version,
                        prompt.text(), booked.usd, purpose))  # fmt: skip
        progress = Progress()
        try:
            reply = self._chat.complete(
                prompt,
                max_tokens=self._max_tokens,
                cancel=self._stop,
                on_text=book.streamed,
                progress=progress,
            )
        except ChatFailed as failed:
            book.failed(failed)
            raise
        except BaseException as problem:  # the call may have been made: it counts as if it was
            book.failed(progress.given_up(f"interrupted ({type(problem).__name__})", least=1))
            raise
        book.answered(reply)
        with self._lock:
            self._failures = 0
        return reply

    def _given_up(self, failed: ChatFailed, request: Request) -> Refusal | Failure:
        """What becomes of a proposal whose call gave no answer; raises where the run must end."""
        if failed.kind == "cancelled":
            return Refusal("the run was stopped", exhausted=False)
        if failed.kind in _HOPELESS:
            raise BadInput(str(failed)) from failed
        if failed.kind in _ANSWERED:
            return Failure(str(failed), language=language_of(request), title="no answer")
        with self._lock:
            self._failures += 1
            count = self._failures
        if count >= FAILURES_IN_A_ROW:
            words = f"{failed}; {count} calls in a row came to nothing"
            raise (BadInput(words) if failed.kind == "request" else MissingTool(words)) from failed
        return Refusal(str(failed), exhausted=False)

    # -- answers -------------------------------------------------------------------------------

    def _taken(self, asked: _Asked, prompt: Prompt, reply: Reply) -> Candidate | Failure:
        """The candidate in an answer; a broken one is asked for once more."""
        found = parse(reply.text, asked.request.target, asked.language)
        if isinstance(found, Answer):
            return self._candidate(asked, found, reply)
        why = self._why(found.reason, reply)
        if not found.repairable or reply.finish in ("length", "content_filter"):
            return _failure(asked, why, reply.text)
        try:
            again = self._ask(
                asked.request, format_repair(prompt, reply.text, found.reason), "format"
            )
        except _Given as given:
            words = f"{why}; its form could not be mended: {given.outcome.reason}"
            return _failure(asked, words, reply.text)
        except ChatFailed as failed:
            words = f"{why}; its form could not be mended: {failed}"
            return _failure(asked, words, reply.text)
        mended = parse(again.text, asked.request.target, asked.language)
        if isinstance(mended, Answer):
            return self._candidate(asked, mended, again)
        words = f"{why}; and after its form was to be mended: {self._why(mended.reason, again)}"
        return _failure(asked, words, again.text)

    def _candidate(self, asked: _Asked, found: Answer, reply: Reply) -> Candidate:
        strategy = asked.origin["strategy"]
        title = found.candidate.title or strategy or asked.request.action
        origin = dict(asked.origin)
        if reply.usage is not None and reply.usage.model:
            origin["model"] = reply.usage.model
        return replace(found.candidate, title=title, origin=origin)

    def _why(self, reason: str, reply: Reply) -> str:
        if reply.finish == "length":
            return f"{reason} (the answer was cut at --max-tokens {self._max_tokens})"
        if reply.finish == "content_filter":
            return f"{reason} (the endpoint's content filter cut the answer)"
        return reason


def _said(*words: str) -> list[str]:
    return [word for word in words if word]


def _failure(asked: _Asked, reason: str, text: str) -> Failure:
    return Failure(reason, text[:_KEPT_ANSWER], asked.language, origin=dict(asked.origin))


class _Book:
    """One call's money and record, from before it is made until it has ended."""

    def __init__(self, recorder: Recorder | None, booked: Reservation) -> None:
        self._recorder, self._booked = recorder, booked
        self._number: int | None = None
        self._begun = time.monotonic()
        self._characters = 0
        self._asked = ""

    def begin(self, call: Call) -> None:
        """Written down before anything is sent; without a record there is no call."""
        self._asked = call.text
        if self._recorder is None:
            return
        try:
            self._number = self._recorder.begin(call)
        except BaseException:
            self._booked.release()
            raise

    def streamed(self, piece: str) -> None:
        """More of the answer has come."""
        self._characters += len(piece)
        if self._recorder is not None and self._number is not None:
            self._recorder.streamed(self._number, tokens_estimate("x" * self._characters))

    def answered(self, reply: Reply) -> None:
        """Books what it cost."""
        usd = self._booked.settle(reply.usage, lost=reply.lost)
        usage = reply.usage or Usage(
            tokens_estimate(self._asked), 0, tokens_estimate(reply.text), estimated=True
        )
        self._end(usage, usd, reply.text, "; ".join(_said(*reply.notes, self._booked.note)))

    def failed(self, failed: ChatFailed) -> None:
        """Books what it may have cost: nothing, where the endpoint refused it unread."""
        if failed.usage is not None:
            usd = self._booked.settle(failed.usage, lost=failed.lost)
        elif failed.lost:
            usd = self._booked.settle(None, lost=failed.lost - 1)
        else:
            self._booked.release()
            usd = 0.0
        self._end(failed.usage, usd, "", str(failed))

    def _end(self, usage: Any, usd: float, answer: str, problem: str) -> None:
        if self._recorder is None or self._number is None:
            return
        seconds = time.monotonic() - self._begun
        self._recorder.end(self._number, usage, usd, seconds, answer, problem)
