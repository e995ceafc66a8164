"""A target on the judge's bench: expected values at hand, baselines warm, candidates one by one."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import ResolvedPlan, resolve, validate
from kforge_nb.compilers.cpp import Built, CompileFailed, build
from kforge_nb.errors import BadInput, ContractBreach
from kforge_nb.judge import policy, ruling
from kforge_nb.judge.cases import Case, build_cases, make_case, secret_generator, weakness
from kforge_nb.judge.cores import CORES
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.judge.physics import floor_seconds
from kforge_nb.judge.runner_handle import Limits, RunnerFailed
from kforge_nb.judge.session import Checked, LoadedCandidate
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.timing import BaselineSide, Plan, RunnerSide, Session, run_session
from kforge_nb.targets.document import target_to_document
from kforge_nb.targets.target import Target

if TYPE_CHECKING:
    from kforge_nb.judge.judge import Judge

__all__ = ["CONFIRM", "EVALUATE", "Bench"]

EVALUATE = Plan()
CONFIRM = Plan(seconds=9.0, narrow=0.04, pairs=12)
_CONFIRM_PROCESSES = 2
_PATIENCE = 100.0  # a call may take this many times eager's time, then it is stopped
_BATCH_SECONDS = 20.0
_BARELY, _GROSS = 4.0, 100.0  # times an error budget, for outputs of timed calls
Stop = Callable[[], bool] | threading.Event | None


class _Ended(Exception):
    def __init__(self, verdict: Verdict, reason: str, **details: Any) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.details = details


class _Record:
    """What is collected while one candidate goes through the stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.details: dict[str, Any] = {}
        self.resources: dict[str, Any] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start

    def evaluation(self, verdict: Verdict, reason: str, **details: Any) -> Evaluation:
        merged = {**self.details, **details}
        return Evaluation(
            verdict, reason, seconds=dict(self.seconds), resources=dict(self.resources), **merged
        )


class Bench:
    """Judges candidates of one target. Made by ``Judge.open``; safe to use from several threads.

    ``weak`` says how a candidate that computes nothing would pass (None: it would not).
    """

    def __init__(self, judge: Judge, target: Target) -> None:
        if target.device != "cpu":
            raise BadInput(f"target {target.name} lives on {target.device}; this judge has the CPU")
        self.target = target
        self._judge = judge
        self._key = f"{target.fingerprint[:24]}-{id(self):x}"
        self._closed = False
        self._folder = Path(mkdtemp(prefix="bench-", dir=judge.folder))
        self._prepared: dict[str, float] = {}
        self._call_seconds = judge.call_seconds
        self._timed: TimedInputs | None = None
        try:
            with CORES.work():
                self._cases = build_cases(target, secret_generator())
                self.weak = weakness(self._cases)
                self._timed = TimedInputs(target.inputs, self._cases[0].inputs, secret_generator())
                document = target_to_document(target)
                (self._folder / "target.json").write_text(json.dumps(document))
                judge.worker.open(self._key, self._folder, self._timed.region, self._timed.slots)
                self.baseline("eager")
                eager = judge.worker.batch(self._key, "eager", 0, 1)
                self._call_seconds = max(judge.call_seconds, _PATIENCE * eager)
        except BaseException:
            self.close()
            raise

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the input sets that a candidate must pass."""
        return tuple(case.name for case in self._cases)

    def baseline(self, name: str = "eager") -> float:
        """Make a baseline (``eager`` or ``compile``) ready; seconds that took, the first time."""
        if name not in self._prepared:
            self._prepared[name] = self._judge.worker.prepare(self._key, name)
        return self._prepared[name]

    def evaluate(self, candidate: Candidate, stop: Stop = None) -> Evaluation:
        """Take a candidate through all stages until one of them ends it.

        Args:
            candidate: untrusted.
            stop: a callable or an event; when it says so, the evaluation ends ``undecided``.

        Returns:
            Verdict, reason and evidence. A bad candidate never raises.

        Raises:
            MissingTool: no compiler, or the baseline worker died.
        """
        return self._judged(candidate, stop, self._evaluate)

    def confirm(
        self, candidate: Candidate, against: Sequence[str] = ("eager",), stop: Stop = None
    ) -> Evaluation:
        """Judge a winner again: fresh processes, inputs and samples, longer, and more narrowly.

        The best of many noisy candidates is flattered by chance; the figures of this evaluation are
        the ones to show. ``against`` may name ``compile`` too; its comparison is in ``timings``.
        """

        def stages(item: Candidate, stopped: Callable[[], bool], record: _Record) -> Evaluation:
            return self._confirm(item, tuple(against), stopped, record)

        return self._judged(candidate, stop, stages)

    def _judged(
        self,
        candidate: Candidate,
        stop: Stop,
        stages: Callable[[Candidate, Callable[[], bool], _Record], Evaluation],
    ) -> Evaluation:
        if self._closed:
            raise BadInput(f"the bench of {self.target.name} is closed; open it again")
        record = _Record()
        start = perf_counter()
        if self.weak is not None:
            words = f"the task is weak: {self.weak} would pass on every input set"
            return record.evaluation(Verdict.WEAK_TASK, words)
        try:
            found = stages(candidate, _asker(stop), record)
        except _Ended as end:
            found = record.evaluation(end.verdict, end.reason, **end.details)
        except RunnerFailed as end:
            found = record.evaluation(end.verdict, end.reason)
        found.seconds["total"] = perf_counter() - start
        return found

    # ---- stages ----------------------------------------------------------------------------

    def _evaluate(
        self, candidate: Candidate, stopped: Callable[[], bool], record: _Record
    ) -> Evaluation:
        resolved, built = self._admit(candidate, stopped, record)
        with self._loaded(resolved, built) as loaded:
            self._load_and_check(loaded, self._cases, record)
            if stopped():
                raise _Ended(Verdict.UNDECIDED, "stopped before it was timed; it is correct")
            session = self._time(loaded, "eager", EVALUATE, stopped, record)
            self._check_probes(session, record)
        comparison = ruling.comparison("eager", session)
        return self._rule(comparison, [session], [comparison], record)

    def _confirm(
        self,
        candidate: Candidate,
        against: tuple[str, ...],
        stopped: Callable[[], bool],
        record: _Record,
    ) -> Evaluation:
        resolved, built = self._admit(candidate, stopped, record)
        with record.stage("expect"), CORES.work():
            fresh = build_cases(self.target, secret_generator())
        with CORES.timing():
            self._slots.refill(secret_generator())
        sessions: dict[str, list[Session]] = {name: [] for name in ("eager", *against)}
        for name in sessions:
            with record.stage(f"prepare {name}"), CORES.work():
                self.baseline(name)
        for index in range(_CONFIRM_PROCESSES):
            with self._loaded(resolved, built) as loaded:
                self._load_and_check(loaded, fresh if index == 0 else fresh[:1], record)
                for name, found in sessions.items():
                    if not stopped():
                        found.append(self._time(loaded, name, CONFIRM, stopped, record))
                        self._check_probes(found[-1], record)
        if not sessions["eager"]:
            raise _Ended(Verdict.UNDECIDED, "stopped before it was timed again; it is correct")
        comparisons = [ruling.merged(name, f) for name, f in sessions.items() if f]
        return self._rule(comparisons[0], sessions["eager"], comparisons, record)

    def _admit(
        self, candidate: Candidate, stopped: Callable[[], bool], record: _Record
    ) -> tuple[ResolvedPlan, Built]:
        """Plan, source, compile, library: what can be said before anything runs."""
        if candidate.language != "cpp":
            words = f"a {candidate.language} candidate cannot compute a target on the CPU"
            raise _Ended(Verdict.REFUSED, words)
        with record.stage("policy"):
            try:
                validate(candidate.plan, "cpp", self.target.inputs, self.target.outputs)
                resolved = resolve(candidate.plan, self.target.inputs, self.target.outputs)
                _end_on(policy.scan_source(candidate.source))
            except ContractBreach as breach:
                raise _Ended(Verdict.REFUSED, str(breach)) from breach
        if stopped():
            raise _Ended(Verdict.UNDECIDED, "stopped before it was compiled")
        entry = candidate.plan.kernels[0].name
        return resolved, self._compile(candidate.source, entry, record)

    def _compile(self, source: str, entry: str, record: _Record) -> Built:
        try:
            with CORES.work(), record.stage("compile"):
                built = build(source, entry, cache=self._judge.builds)
            if isinstance(built, CompileFailed):
                words = "the compiler was stopped: it took too long" if built.timed_out else (
                    built.distilled.strip().split("\n", 1)[0][:300] or "it does not compile"
                )  # fmt: skip
                raise _Ended(Verdict.COMPILE_FAILED, words, log=built.distilled)
            record.details["log"] = built.log
            with record.stage("policy"):
                _end_on(policy.inspect_library(built.library, entry))
        except ContractBreach as breach:
            raise _Ended(Verdict.REFUSED, str(breach)) from breach
        return built

    def _loaded(self, resolved: ResolvedPlan, built: Built) -> LoadedCandidate:
        judge = self._judge
        return LoadedCandidate(
            self.target,
            resolved,
            self._slots,
            binary=judge.binary,
            library=built.library,
            threads=judge.threads,
            limits=Limits(call_seconds=self._call_seconds),
            library_folder=judge.library_folder,
        )

    @property
    def _slots(self) -> TimedInputs:
        if self._timed is None:
            raise BadInput(f"the bench of {self.target.name} is closed; open it again")
        return self._timed

    def _load_and_check(
        self, loaded: LoadedCandidate, cases: Sequence[Case], record: _Record
    ) -> None:
        with CORES.work():
            with record.stage("load"):
                record.resources["strict_filter"] = loaded.load()
            with record.stage("correctness"):
                checked = loaded.check(cases)
        _note(checked, record)
        if checked.wrong is not None:
            raise _Ended(Verdict.WRONG, checked.wrong)

    def _time(
        self,
        loaded: LoadedCandidate,
        baseline: str,
        plan: Plan,
        stopped: Callable[[], bool],
        record: _Record,
    ) -> Session:
        ours = RunnerSide(loaded.runner, max(_BATCH_SECONDS, 4 * self._call_seconds))
        against = BaselineSide(self._judge.worker, self._key, baseline)
        asked = perf_counter()
        with CORES.timing():
            record.seconds["wait"] = record.seconds.get("wait", 0.0) + perf_counter() - asked
            with record.stage("timing"):
                session = run_session(ours, against, self._slots, plan, loaded.fetch, stopped)
        record.resources |= {
            "threads": self._judge.threads,
            "calls_in_a_batch": session.calls,
            "foreign_load": round(session.foreign, 3),
            "runner_reading_share": round(sorted(ours.own)[len(ours.own) // 2], 3),
        }
        return session

    def _check_probes(self, session: Session, record: _Record) -> None:
        """Outputs of timed calls must be as right as those of checked ones.

        They are other values than those that were checked, so an element that is barely outside its
        budget is let pass; one that is far outside was never computed.
        """
        with CORES.work(), record.stage("probes"):
            for probe in session.probes:
                case = make_case(self.target.graph, "inputs of a timed call", probe.inputs)
                pairs = zip(case.expected, probe.outputs, strict=True)
                for i, (expected, got) in enumerate(pairs):
                    found = check_output(expected, got, f"out{i}", case.name)
                    if found.wrong is None or found.excess <= _BARELY:
                        continue
                    words = f"right when checked, wrong when timed: {found.wrong}"
                    gross = found.excess > _GROSS
                    verdict = Verdict.SUSPICIOUS if gross else Verdict.WRONG
                    raise _Ended(verdict, words, mismatches=found.worst)

    def _rule(
        self,
        comparison: Comparison,
        sessions: Sequence[Session],
        comparisons: Sequence[Comparison],
        record: _Record,
    ) -> Evaluation:
        calibration = self._judge.calibration
        floor = floor_seconds(self.target, self._slots.region.bytes, calibration)
        ruled = ruling.rule(self.target, comparison, sessions, floor)
        return record.evaluation(
            ruled.verdict,
            ruled.reason,
            timings=tuple(comparisons),
            **ruling.throughput(self.target, comparison, calibration.bandwidth_gbs),
        )

    def close(self) -> None:
        """Give back memory and files. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._timed is not None:
            if self._prepared:
                self._judge.forget(self._key)
            self._timed.close()
            self._timed = None
        self._cases = []
        shutil.rmtree(self._folder, ignore_errors=True)
        self._judge.benches.discard(self)


def _asker(stop: Stop) -> Callable[[], bool]:
    if stop is None:
        return lambda: False
    return stop.is_set if isinstance(stop, threading.Event) else stop


def _end_on(findings: Sequence[policy.Finding]) -> None:
    """The gravest finding decides; all are in the reason."""
    if not findings:
        return
    verdict = {
        "breach": Verdict.REFUSED,
        "library": Verdict.WRAPPER,
        "suspicion": Verdict.SUSPICIOUS,
    }[findings[0].kind]
    words = "; ".join(dict.fromkeys(str(f) for f in findings))
    raise _Ended(verdict, words[:1000])


def _note(checked: Checked, record: _Record) -> None:
    record.details["errors"] = tuple(checked.errors)
    record.details["mismatches"] = tuple(checked.mismatches)
    if checked.repeatable is not None:
        record.details["repeatable"] = checked.repeatable
