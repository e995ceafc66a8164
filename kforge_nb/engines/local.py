"""Evaluations on this machine, a few at a time.

The judge itself sees to it that a timing has the cores alone (``judge.cores``), so a second thread
only overlaps what nobody times: while one candidate is timed nothing else runs, while one is
compiled another may be checked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.judge.evaluation import Evaluation

__all__ = ["Engine", "EvaluatesCandidates", "LocalEngine"]


class EvaluatesCandidates(Protocol):
    """What an engine needs of a bench."""

    def evaluate(self, candidate: Candidate, stop: threading.Event | None = None) -> Evaluation:
        """Verdict and evidence for one candidate; a bad candidate never raises."""


class Engine(Protocol):
    """Where evaluations run: this machine, or a cluster."""

    def submit(self, bench: EvaluatesCandidates, candidate: Candidate) -> Future[Evaluation]:
        """Begin an evaluation; the future raises only for a broken environment."""

    def close(self) -> None:
        """Stop what runs and wait for it."""


class LocalEngine:
    """Runs evaluations in ``workers`` threads of this process; a context manager."""

    def __init__(self, workers: int = 2) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="kforge-engine")
        self._stop = threading.Event()
        self.workers = workers

    def submit(self, bench: EvaluatesCandidates, candidate: Candidate) -> Future[Evaluation]:
        """Begin an evaluation."""
        return self._pool.submit(bench.evaluate, candidate, self._stop)

    def map(
        self, bench: EvaluatesCandidates, candidates: Iterable[Candidate]
    ) -> Iterator[Evaluation]:
        """Evaluations in the order of the candidates."""
        for future in [self.submit(bench, candidate) for candidate in candidates]:
            yield future.result()

    def close(self) -> None:
        """Let running evaluations end early, drop the waiting ones, wait."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
