"""A run that judges nothing real, for kernels of tests: no torch, no compiler, begun by one call.

Threads, store, search, views and the handle are the real ones; only judge, proposer and guard are
not. Every candidate takes ``seconds`` and is a little faster than the one before.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from types import SimpleNamespace

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.options import OptimizeOptions
from kforge_nb.run.conductor import Conductor, Tools
from kforge_nb.run.handle import Run
from kforge_nb.run.record import Record, open_store
from kforge_nb.run.source import StoreSource
from kforge_nb.run.work import Work
from kforge_nb.search.tree import Tree

PLAN = LaunchPlan((Kernel("k", ("in0", "out0", "i64:numel(in0)", "i32:nthreads")),))


class _Proposer:
    name = "light"

    def __init__(self):
        self._numbers = itertools.count()

    def supports(self, target):
        return None

    def propose(self, request):
        number = next(self._numbers)
        return Candidate("cpp", f"// {number}", PLAN, f"kernel {number}", {"proposer": "light"})


class _Judge:
    def __init__(self, seconds):
        self._seconds, self._numbers = seconds, itertools.count()
        self.began = threading.Event()

    def open(self, target):
        return self

    def evaluate(self, candidate, stop=None):
        self.began.set()
        if stop.wait(self._seconds):
            return Evaluation(Verdict.UNDECIDED, "stopped before it was timed")
        return self.confirm(candidate)

    def confirm(self, candidate, against=("eager",), stop=None, standing=None):
        ratio = 1.1 + next(self._numbers) / 50
        timing = Comparison("eager", ratio, ratio - 0.01, ratio + 0.01, 9, 10.0, 10.0 * ratio)
        return Evaluation(Verdict.ACCEPTED, f"{ratio:.2f}× of eager", timings=(timing,))

    def close(self):
        """Nothing is held."""


def begin(name, budget=10_000, seconds=0.02, targets=2, show=True):
    """Begins a run in the store of the working folder; its handle, once it searches."""
    options = OptimizeOptions.of(
        {"name": name, "budget": budget, "patience": 10_000, "baseline": "eager"}
    )
    store = open_store(None)
    record = Record(store, store.create_run(name, options=options.to_document()))
    judge = _Judge(seconds)

    @contextmanager
    def session(record):
        yield judge

    works = [_work(record, index) for index in range(targets)]
    tools = Tools(session, _Proposer(), lambda conductor: "0 of 2 targets are replaced")
    Conductor(record, works, options, SimpleNamespace(modules=()), tools).start()
    judge.began.wait(20)
    run = Run(StoreSource(record))
    if show:
        run.show()
    return run


def _work(record, index):
    row = {"fingerprint": f"f{index}", "name": f"softmax {index}", "family": "softmax"}
    row |= {"share": 0.4, "calls": 1, "mean_us": 10.0, "state": "waiting"}
    record.store.add_target(record.id, index, row)
    target = SimpleNamespace(
        name=row["name"], family="softmax", graph=None, fingerprint=f"f{index}"
    )
    return Work(index, target, Tree(index), record, share=0.4, headroom=9.0, mean_us=10.0)
