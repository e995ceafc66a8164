"""The book of a run's calls: in the store before each is made, on screen while tokens arrive.

What is under way (tokens, tokens a second) lives in memory only and is shown at the rate of the
view; what a call cost is on disk before anything is made of its answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kforge_nb.proposers.chat import Usage
    from kforge_nb.proposers.recording import Call
    from kforge_nb.run.record import Record

__all__ = ["CallBook"]

SHOW_EVERY_S = 0.2


@dataclass(slots=True)
class _Live:
    """A call under way."""

    call: Call
    begun: float
    first: float | None = None
    tokens: int = 0

    def row(self, now: float) -> dict[str, Any]:
        """As in ``progress.calls`` of the run document."""
        since = now - self.first if self.first is not None else 0.0
        return {
            "target": self.call.target,
            "node": self.call.node,
            "model": self.call.model,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens / since if since > SHOW_EVERY_S else None,
            "seconds": now - self.begun,
        }


class CallBook:
    """A recorder of calls (:mod:`kforge_nb.proposers.recording`) over a run's store.

    ``changed`` is called when there is something new to show, a few times a second at most.
    """

    def __init__(self, record: Record, changed: Callable[[], None] = lambda: None) -> None:
        self._record, self._changed = record, changed
        self._live: dict[int, _Live] = {}
        self._lock = threading.Lock()
        self._shown = 0.0
        self._before = record.store.last_call(record.id)

    def earlier_answer(self, text: str) -> str | None:
        """The answer that a text got in an earlier session which could not judge it any more."""
        return self._record.store.take_answer(self._record.id, text, self._before)

    def begin(self, call: Call) -> int:
        """On disk, at its worst price, before the request leaves."""
        number = self._record.store.begin_call(
            self._record.id,
            target=call.target,
            node=call.node,
            model=call.model,
            prompt=call.prompt,
            text=call.text,
            worst_usd=call.worst_usd,
            purpose=call.purpose,
        )
        with self._lock:
            self._live[number] = _Live(call, time.monotonic())
        self._changed()
        return number

    def streamed(self, number: int, tokens: int) -> None:
        """Tokens that have arrived so far; kept in memory, shown a few times a second."""
        now = time.monotonic()
        with self._lock:
            live = self._live.get(number)
            if live is None:
                return
            live.first = now if live.first is None else live.first
            live.tokens = tokens
            due = now - self._shown >= SHOW_EVERY_S
            self._shown = now if due else self._shown
        if due:
            self._changed()

    def end(
        self,
        number: int,
        usage: Usage | None,
        usd: float,
        seconds: float,
        answer: str = "",
        problem: str = "",
    ) -> None:
        """What the call cost; on disk before anything is made of its answer."""
        tokens: dict[str, Any] = {}
        if usage is not None:
            tokens = {
                "tokens_in": usage.tokens_in,
                "tokens_cached": usage.cached,
                "tokens_out": usage.tokens_out,
                "tokens_reasoning": usage.reasoning,
                "estimated": usage.estimated,
                "model": usage.model,
            }
        self._record.store.end_call(
            number, usd=usd, seconds=seconds, answer=answer, problem=problem, **tokens
        )
        with self._lock:
            self._live.pop(number, None)
        self._changed()

    @property
    def live(self) -> list[dict[str, Any]]:
        """Calls under way whose answer arrives by itself, as in ``progress.calls``."""
        now = time.monotonic()
        with self._lock:
            return [live.row(now) for live in self._live.values() if live.call.model != "paste"]
