"""A run over a real store with a judge and a proposer that tests steer."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate, Kernel, LaunchPlan
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.options import OptimizeOptions
from kforge_nb.proposers.protocol import Refusal
from kforge_nb.run.conductor import Conductor, Tools
from kforge_nb.run.record import Record, open_store
from kforge_nb.run.work import Work
from kforge_nb.search.tree import Tree
from kforge_nb.targets.document import target_to_document
from tests.helpers import make_target

PLAN = LaunchPlan((Kernel("k", ("in0", "out0", "i64:numel(in0)", "i32:nthreads")),))


def evaluation(ratio: float) -> Evaluation:
    """Accepted or slower by this ratio over eager."""
    verdict = Verdict.ACCEPTED if ratio > 1.02 else Verdict.SLOWER
    timing = Comparison("eager", ratio, ratio - 0.01, ratio + 0.01, 9, 10.0, 10.0 * ratio)
    return Evaluation(verdict, f"{ratio:.2f}× of eager", timings=(timing,))


class FakeProposer:
    """Candidates numbered in the order they were asked for; refuses after ``limit``."""

    name = "fake"

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self.requests = []

    def supports(self, target):
        return None

    def propose(self, request):
        if len(self.requests) >= self.limit:
            return Refusal("nothing left")
        self.requests.append(request)
        number = len(self.requests)
        return Candidate("cpp", f"// {number}", PLAN, f"c{number}", {"proposer": "fake"})


class FakeBench:
    """Gives the ratios of its judge in turn; may wait for a gate before each one."""

    def __init__(self, judge: FakeJudge) -> None:
        self.judge = judge
        self.closed = False

    def evaluate(self, candidate, stop=None):
        self.judge.judged.append(candidate)
        self.judge.began.set()
        while not self.judge.gate.wait(0.01):
            if stop is not None and stop.is_set():
                return Evaluation(Verdict.UNDECIDED, "stopped before it was timed; it is correct")
        if self.judge.error is not None:
            raise self.judge.error
        ratios = self.judge.ratios
        return evaluation(ratios[min(len(self.judge.judged), len(ratios)) - 1])

    def confirm(self, candidate, against=("eager",), stop=None, standing=None):
        self.judge.confirmed.append(candidate)
        self.judge.standing.append(standing)
        self.judge.against.append(tuple(against))
        eager = evaluation(self.judge.confirm(candidate))
        others = (replace(eager.timings[0], against=name) for name in against if name != "eager")
        return replace(eager, timings=(*eager.timings, *others))

    def close(self):
        self.closed = True


class FakeJudge:
    """What tests set: ratios, an error to raise, and a gate that evaluations wait for."""

    def __init__(self) -> None:
        self.ratios = [1.5]
        self.confirm_ratio = 1.4
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.judged, self.confirmed, self.benches = [], [], []
        self.against: list[tuple[str, ...]] = []
        self.standing: list[Evaluation | None] = []

    def confirm(self, candidate):
        return self.confirm_ratio

    def open(self, target):
        self.benches.append(FakeBench(self))
        return self.benches[-1]

    @contextmanager
    def session(self, record):
        yield self


class Stage:
    """Makes conductors over one store; ``guard`` is what the guard stage does."""

    def __init__(self, folder) -> None:
        self.store_path = folder / ".kforge"
        self.store = open_store(self.store_path)
        self.judge, self.proposer = FakeJudge(), FakeProposer()
        self.guarded = []

    def guard(self, conductor):
        self.guarded.append(conductor)
        return "0 of 1 targets are replaced"

    def tools(self):
        return Tools(self.judge.session, self.proposer, self.guard, {"name": "test"})

    def conductor(self, name="r", workload="here", targets=1, **options) -> Conductor:
        """A run that has not begun, over targets that differ in their size."""
        chosen = OptimizeOptions.of({"name": name, "budget": 6, **options})
        run_id = self.store.create_run(name, options=chosen.to_document())
        record = Record(self.store, run_id)
        works = [self._work(record, index, target_of(index)) for index in range(targets)]
        return Conductor(record, works, chosen, workload, self.tools())

    @staticmethod
    def _work(record, index, target) -> Work:
        document = target_to_document(target, record.folder / "inputs")
        row = {"fingerprint": target.fingerprint, "name": target.name, "family": "softmax"}
        row |= {"share": 0.5, "headroom": 3.0, "state": "waiting", "calls": 1, "mean_us": 10.0}
        record.store.add_target(record.id, index, row, {"document": document})
        return Work(index, target, Tree(index), record, share=0.5, headroom=3.0, mean_us=10.0)


def target_of(index: int):
    """A softmax target; each index has sizes of its own."""
    return make_target(lambda x: torch.softmax(x, -1), torch.randn(2 + index, 4), family="softmax")


@pytest.fixture
def stage(tmp_path):
    """A fresh store with a fake judge and proposer."""
    made = Stage(tmp_path)
    yield made
    made.judge.gate.set()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Caches and calibrations of the test's own."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
