"""Candidates under way: submitted to the engine, and taken back in the order they were sent off."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kforge_nb.engines.local import LocalEngine
from kforge_nb.errors import KForgeError
from kforge_nb.run.control import Stopped

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.run.benches import Benches
    from kforge_nb.run.control import Control, Handed
    from kforge_nb.run.work import Work

__all__ = ["AT_ONCE", "STOP_LATENCY_S", "Flight", "Flights"]

AT_ONCE = 2
"""Evaluations under way at once; fewer than the benches that stay open."""

STOP_LATENCY_S = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A candidate that is being judged since ``sent``, and the user's future if it was handed in.

    ``begun`` is when it was asked for.
    """

    work: Work
    node_id: str
    candidate: Candidate
    begun: float
    verdict: Future[Evaluation]
    handed: Handed | None = None
    sent: float = field(default_factory=time.monotonic)


class Flights:
    """At most ``AT_ONCE`` evaluations on the engine of this machine."""

    def __init__(self, benches: Benches, control: Control) -> None:
        self._benches, self._control = benches, control
        self._engine = LocalEngine(AT_ONCE)
        self._waiting: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether one must land before another can be sent off."""
        return len(self._waiting) >= AT_ONCE

    @property
    def futures(self) -> list[Future[Any]]:
        """What is waited for, oldest first."""
        return [flight.verdict for flight in self._waiting]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is being judged, as in ``progress.judging`` of the run document; from any thread."""
        now = time.monotonic()
        return [
            {
                "target": flight.work.index,
                "node": flight.node_id,
                "title": flight.candidate.title,
                "seconds": now - flight.sent,
            }
            for flight in self._waiting.copy()
        ]

    def digests(self, work: Work) -> frozenset[str]:
        """Digests of a target's candidates that are being judged."""
        return frozenset(f.candidate.digest for f in self._waiting if f.work is work)

    def send(
        self,
        work: Work,
        node_id: str,
        candidate: Candidate,
        begun: float,
        handed: Handed | None = None,
    ) -> None:
        """Begins an evaluation, opening the target's bench if need be."""
        try:
            bench = self._benches.of(work.index, work.target)
            verdict = self._engine.submit(bench, candidate)
        except Exception as error:  # noqa: BLE001  it is told when the flight lands
            verdict = Future()
            verdict.set_exception(error)
        self._waiting.append(Flight(work, node_id, candidate, begun, verdict, handed))

    def land(self, *, in_order: bool = True) -> tuple[Flight, Evaluation | Exception]:
        """Waits for the oldest flight; its evaluation, or what the judge failed with.

        With ``in_order`` of False any flight that has ended already goes first. Raises Stopped as
        soon as the run is stopped; the flight stays under way.
        """
        ended = (f for f in self._waiting if f.verdict.done() and not in_order)
        flight = next(ended, self._waiting[0])
        while not wait([flight.verdict], timeout=STOP_LATENCY_S).done:
            self._raise_if_stopped()
        self._raise_if_stopped()
        self._waiting.remove(flight)
        try:
            return flight, flight.verdict.result()
        except Exception as error:  # noqa: BLE001  the caller decides what it means
            return flight, error

    def _raise_if_stopped(self) -> None:
        if self._control.stop.is_set():
            raise Stopped(self._control.reason)

    def close(self) -> None:
        """Ends what is under way; whoever handed a candidate in learns that it was not judged."""
        self._engine.close()
        for flight in self._waiting:
            flight.work.tree.refuse(flight.node_id, exhausted=False)
            if flight.handed is not None:
                late = KForgeError("the run ended before its turn came")
                flight.handed.result.set_exception(late)
        self._waiting.clear()
