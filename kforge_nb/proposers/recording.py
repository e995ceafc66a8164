"""What a proposer that pays for its answers tells of each call: before, while and after it.

A call is written down before the request leaves, with the most that it may cost. A process that is
killed between request and answer therefore leaves a record of money that was perhaps spent, and a
resumed run counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kforge_nb.proposers.chat import Usage

__all__ = ["Call", "Recorder"]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is about to be made.

    ``target`` and ``node`` are those of the proposal's :class:`~kforge_nb.proposers.protocol`
    request; ``prompt`` is the version of the prompt and ``text`` all that is sent; ``worst_usd`` is
    what the call may cost at most, retries included. ``purpose`` is ``propose``, or ``format``
    where only the form of an answer is to be mended.
    """

    target: int
    node: str
    model: str
    prompt: str
    text: str
    worst_usd: float
    purpose: str = "propose"


class Recorder(Protocol):
    """Where calls are written down. All methods are safe from any thread."""

    def begin(self, call: Call) -> int:
        """Stores the call before it is made; returns the number that names it from now on."""

    def streamed(self, number: int, tokens: int) -> None:
        """Tokens of the answer that have arrived so far; cheap, may be called for each piece."""

    def end(
        self,
        number: int,
        usage: Usage | None,
        usd: float,
        seconds: float,
        answer: str = "",
        problem: str = "",
    ) -> None:
        """Stores what the call cost, in US dollars, and what came of it.

        ``usage`` is None where nothing is known (cut off, refused); ``usd`` is then what must be
        counted all the same, 0 for a call that surely cost nothing. ``problem`` says in words why
        there is no answer.
        """
