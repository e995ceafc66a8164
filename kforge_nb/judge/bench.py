"""A target on the judge's bench: expected values at hand, baselines warm, candidates one by one."""

from __future__ import annotations

import json
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import DTYPE_BYTES, ResolvedPlan, resolve, validate
from kforge_nb.errors import BadInput, ContractBreach
from kforge_nb.judge import ruling
from kforge_nb.judge.cases import Case, secret_generator, weakness
from kforge_nb.judge.conditions import conditions
from kforge_nb.judge.correctness import check_output
from kforge_nb.judge.cuda.sanitizer import found_errors, stray_access
from kforge_nb.judge.cuda.staging import noted
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.judge.feedback import feedback_case
from kforge_nb.judge.place import Compiled, Loaded, Place
from kforge_nb.judge.regions import extent
from kforge_nb.judge.runner_handle import RunnerFailed
from kforge_nb.judge.screen import distance
from kforge_nb.judge.session import Checked
from kforge_nb.judge.shelf import Shelf, taken
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.judge.stages import Ended, Stages, end_on
from kforge_nb.judge.statistics import LEAST_PROCESSES, MOST_PROCESSES
from kforge_nb.judge.timing import Plan, Probe, Session
from kforge_nb.targets.document import target_to_document
from kforge_nb.targets.target import Target

if TYPE_CHECKING:
    from kforge_nb.judge.judge import Judge

__all__ = ["CONFIRM", "EVALUATE", "Bench"]

EVALUATE = Plan()
CONFIRM = Plan(seconds=1.2, narrow=0.03, pairs=10, probes=2)
_CONFIRM_SECONDS = 18.0  # for one comparison, over all of its processes
_PATIENCE = 100.0  # a call may take this many times eager's time, then it is stopped
_PROBED_BYTES = 64 << 20  # of inputs and outputs of timed calls, checked after one session
_SCREENED, _CLOSELY = 256, 8  # outputs of timed calls: a quick look, a close one
_BARELY, _GROSS = 4.0, 100.0  # times an error budget, for outputs of timed calls
Stop = Callable[[], bool] | threading.Event | None
Asked = Callable[[], bool]


class Bench:
    """Judges candidates of one target. Made by ``Judge.open``; safe to use from several threads.

    ``weak`` says how a candidate that computes nothing would pass (None: it would not).
    """

    def __init__(self, judge: Judge, place: Place, target: Target) -> None:
        place.accept(target)
        self.target = target
        self._judge = judge
        self._place = place
        self._key = f"{target.fingerprint[:24]}-{id(self):x}"
        self._closed = False
        self._folder = Path(mkdtemp(prefix="bench-", dir=judge.folder))
        self._prepared: dict[str, float] = {}
        self._call_seconds = place.call_seconds
        self._timed: TimedInputs | None = None
        self._cases = Shelf(target.device)
        self._opening: dict[str, float] = {}
        try:
            with place.working():
                self._set_up()
        except BaseException as problem:
            self.close()
            words = place.trouble(problem) if isinstance(problem, Exception) else None
            if words is not None:
                raise BadInput(f"target {target.name} cannot be judged: {words}") from problem
            raise

    def _set_up(self) -> None:
        place, worker, opening = self._place, self._place.worker, Stages()
        with opening.stage("cases"):
            self._cases = place.cases(self.target)
        for part, seconds in self._cases.seconds.items():
            opening.part("cases", part, seconds)
        with opening.stage("weakness"):
            self.weak = weakness(self._cases)
        with opening.stage("slots"):
            self._timed = place.timed(self.target.inputs, self._cases[0].inputs)
        document = target_to_document(self.target)
        (self._folder / "target.json").write_text(json.dumps(document))
        given = getattr(self._timed, "given", None)  # where weights begin that stay the same
        more = {} if given is None else {"given": given}
        with opening.stage("baseline"):
            worker.open(self._key, self._folder, self._timed.region, self._timed.slots, **more)
            self.baseline("eager")
            eager = place.one_call(self._key, "eager")
        self._call_seconds = max(place.call_seconds, _PATIENCE * eager)
        self._opening = opening.seconds

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the input sets that a candidate must pass."""
        return self._cases.names

    def baseline(self, name: str = "eager") -> float:
        """Make a baseline ready; seconds that took, the first time.

        ``eager``, ``compile`` or ``max_autotune``.
        """
        if name not in self._prepared:
            self._prepared[name] = self._place.worker.prepare(self._key, name)
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
        bench = self._serving(candidate)
        return bench._judged(candidate, stop, bench._evaluate)

    def confirm(
        self,
        candidate: Candidate,
        against: Sequence[str] = ("eager",),
        stop: Stop = None,
        standing: Evaluation | None = None,
    ) -> Evaluation:
        """Judge a winner again: fresh processes, inputs and samples, longer, and more narrowly.

        The best of many noisy candidates is flattered by chance; the figures of this evaluation are
        the ones to show. ``against`` may name ``compile`` and ``max_autotune`` too; each has its
        comparison in ``timings``. ``standing`` is an earlier confirmation of the same candidate:
        what it was timed against is kept as it is, and only the rest is timed.
        """
        bench = self._serving(candidate)

        def stages(item: Candidate, stopped: Asked, record: Stages) -> Evaluation:
            return bench._confirm(item, tuple(against), stopped, record, standing)

        return bench._judged(candidate, stop, stages)

    def _serving(self, candidate: Candidate) -> Bench:
        """This bench, or for a candidate with host code the one beside it."""
        if candidate.language != "cuda_extension":
            return self
        from kforge_nb.judge.extension.place import ExtensionBench

        return ExtensionBench(self)

    def _judged(
        self,
        candidate: Candidate,
        stop: Stop,
        stages: Callable[[Candidate, Asked, Stages], Evaluation],
    ) -> Evaluation:
        if self._closed:
            raise BadInput(f"the bench of {self.target.name} is closed; open it again")
        record = Stages()
        start = perf_counter()
        if self.weak is not None:
            words = f"the task is weak: {self.weak} would pass on every input set"
            return record.evaluation(Verdict.WEAK_TASK, words)
        try:
            found = stages(candidate, _asker(stop), record)
        except Ended as end:
            found = record.evaluation(end.verdict, end.reason, **end.details)
        except RunnerFailed as end:
            cause = self._place.trouble(end)
            verdict = end.verdict if cause is None else Verdict.UNDECIDED
            found = record.evaluation(verdict, cause or end.reason)
        except Exception as problem:
            cause = self._place.trouble(problem)
            if cause is None:
                raise
            found = record.evaluation(Verdict.UNDECIDED, f"it could not be judged: {cause}")
        record.close(found, perf_counter() - start)
        return found

    # ---- stages ----------------------------------------------------------------------------

    def _evaluate(self, candidate: Candidate, stopped: Asked, record: Stages) -> Evaluation:
        resolved, built = self._admit(candidate, stopped, record)
        with self._running(resolved, built, record) as loaded:
            self._load_and_check(loaded, self._cases, record)
            if stopped():
                raise Ended(Verdict.UNDECIDED, "stopped before it was timed; it is correct")
            session = self._time(loaded, "eager", EVALUATE, stopped, record)
            self._check_probes(session, record)
        comparison = ruling.comparison("eager", session)
        return self._rule(comparison, [session], [comparison], record)

    def _confirm(
        self,
        candidate: Candidate,
        against: tuple[str, ...],
        stopped: Asked,
        record: Stages,
        standing: Evaluation | None,
    ) -> Evaluation:
        kept = standing.timings if standing is not None and standing.against("eager") else ()
        known = {row.against for row in kept}
        resolved, built = self._admit(candidate, stopped, record)
        self._place.ahead(self.target, self._slots, self._call_seconds, LEAST_PROCESSES)
        with record.waiting(self._place.working()), record.stage("expect"):
            fresh = self._place.cases(self.target, self._cases)
        for part, seconds in fresh.seconds.items():
            record.part("expect", part, seconds)
        with self._alone(record), record.stage("refill"):
            self._slots.refill(secret_generator(self._slots.device))
        names = dict.fromkeys(("eager", *against))
        sessions: dict[str, list[Session]] = {name: [] for name in names if name not in known}
        for name in sessions:
            with record.waiting(self._place.working()), record.stage(f"prepare {name}"):
                self.baseline(name)
        wanted = not known & {"call", "warm"}
        calls = self._time_again(resolved, built, fresh, sessions, wanted, stopped, record)
        rows = [ruling.merged(name, f) for name, f in sessions.items() if f]
        if standing is not None and kept:
            record.resources = {**standing.resources, **record.resources}
            timings = (*kept, *rows, *calls)
            return record.evaluation(standing.verdict, standing.reason, timings=timings,
                                     bandwidth_gbs=standing.bandwidth_gbs,
                                     roofline_share=standing.roofline_share)  # fmt: skip
        if not sessions["eager"]:
            raise Ended(Verdict.UNDECIDED, "stopped before it was timed again; it is correct")
        ruled = self._rule(rows[0], sessions["eager"], [*rows, *calls], record)
        return self._sanitized(ruled, resolved, built, record)

    def _time_again(
        self,
        resolved: ResolvedPlan,
        built: Compiled,
        cases: Sequence[Case],
        sessions: dict[str, list[Session]],
        call_time: bool,
        stopped: Asked,
        record: Stages,
    ) -> list[Comparison]:
        """Add sessions, each in a process of its own, until every comparison is settled."""
        calls: list[Comparison] = []
        with record.stage("conditions"):
            noted = [conditions(self.target.device)]
        begun, limit = perf_counter(), _CONFIRM_SECONDS * len(sessions)
        for index in range(MOST_PROCESSES):
            pending = [name for name, found in sessions.items() if not ruling.settled(found)]
            late = index >= LEAST_PROCESSES and perf_counter() - begun > limit
            if not pending or late or stopped():
                break
            with self._running(resolved, built, record) as loaded:
                self._load_and_check(loaded, cases if index == 0 else cases[:1], record)
                for name in pending:
                    if not stopped():
                        session = self._time(loaded, name, CONFIRM, stopped, record)
                        sessions[name].append(session)
                        self._check_probes(session, record)
                if index == 0 and call_time and not stopped():
                    calls += self._call_time(loaded, record)
        with record.stage("conditions"):
            noted.append(conditions(self.target.device))
        record.resources["conditions"] = dict(zip(("before", "after"), noted, strict=True))
        return calls

    def _admit(
        self, candidate: Candidate, stopped: Asked, record: Stages
    ) -> tuple[ResolvedPlan, Compiled]:
        """Plan, source, compile, binary: what can be said before anything runs."""
        place = self._place
        if candidate.language != place.language:
            words = f"a {candidate.language} candidate cannot compute a target on {place.where}"
            raise Ended(Verdict.REFUSED, words)
        try:
            with record.stage("policy"):
                validate(
                    candidate.plan, candidate.language, self.target.inputs, self.target.outputs
                )
                resolved = resolve(candidate.plan, self.target.inputs, self.target.outputs)
                end_on(place.scan(candidate))
            if stopped():
                raise Ended(Verdict.UNDECIDED, "stopped before it was compiled")
            with record.waiting(place.compiling()), record.stage("compile"):
                built = place.build(candidate)
            record.details["log"] = built.log
            record.resources |= built.resources
            with record.stage("policy"):
                end_on(place.inspect(built, candidate))
        except ContractBreach as breach:
            raise Ended(Verdict.REFUSED, str(breach)) from breach
        return resolved, built

    def _started(self, resolved: ResolvedPlan, built: Compiled) -> Loaded:
        return self._place.start(self.target, resolved, built, self._slots, self._call_seconds)

    @contextmanager
    def _running(self, resolved: ResolvedPlan, built: Compiled, record: Stages) -> Iterator[Loaded]:
        """The candidate's process; starting and ending it are stages."""
        with record.stage("start"):
            loaded = self._started(resolved, built).__enter__()
        try:
            yield loaded
        finally:
            with record.stage("end"):
                loaded.__exit__(*sys.exc_info())

    def _alone(self, record: Stages) -> AbstractContextManager[None]:
        """The device for a timing; waiting for it is a stage of its own."""
        return record.waiting(self._place.timing())

    @property
    def _slots(self) -> TimedInputs:
        if self._timed is None:
            raise BadInput(f"the bench of {self.target.name} is closed; open it again")
        return self._timed

    def _load_and_check(self, loaded: Loaded, cases: Sequence[Case], record: Stages) -> None:
        taking: list[float] = []
        with record.waiting(self._place.working()):
            with record.stage("load"):
                record.resources |= self._place.load(loaded)
            with record.stage("correctness"):
                checked = loaded.check(taken(cases, taking))
            record.part("correctness", "cases", sum(taking))
            with record.stage("feedback"):
                self._add_feedback(loaded, checked)
        _note(checked, record)
        if self._cases.notes:
            record.resources["memory"] = list(self._cases.notes)
        if self._opening:
            record.resources["opening"], self._opening = self._opening, {}
        if checked.wrong is not None:
            raise Ended(Verdict.WRONG, checked.wrong)

    def _add_feedback(self, loaded: Loaded, checked: Checked) -> None:
        """Wrong elements of a set that may be told to whoever mends the candidate."""
        if not checked.mismatches:
            return
        seen = self._cases[0].inputs
        failed = str(checked.mismatches[-1]["input_set"])
        generator = secret_generator(str(seen[0].device))
        case = feedback_case(self.target.graph, failed, seen, generator, self._place.make_case)
        if case is None:
            return
        try:
            checked.mismatches += loaded.check([case]).mismatches
        except RunnerFailed:
            return  # the verdict is there already

    def _time(
        self, loaded: Loaded, baseline: str, plan: Plan, stopped: Asked, record: Stages
    ) -> Session:
        with self._alone(record), record.stage("timing"):
            session, figures = self._place.time(
                loaded, self._key, baseline, self._slots, self._looking(plan), stopped,
                self._call_seconds,
            )  # fmt: skip
        for part, seconds in session.spent.items():
            record.part("timing", part, seconds)
        record.resources |= figures
        return session

    def _looking(self, plan: Plan) -> Plan:
        """The plan, with fewer outputs to check where each is large: float64 takes its time."""
        outputs = sum(extent(s) * DTYPE_BYTES.get(s.dtype, 8) for s in self.target.outputs)
        size = max(1, self._slots.layout.stride + outputs)
        room = _PROBED_BYTES // size
        on_cpu = self.target.device == "cpu" and self._place.language == "cpp"
        screened = max(1, min(_SCREENED, room)) if on_cpu else 0
        return replace(plan, probes=max(1, min(plan.probes, room)), screened=screened)

    def _sanitized(
        self, found: Evaluation, resolved: ResolvedPlan, built: Compiled, record: Stages
    ) -> Evaluation:
        """A winner as slow tools see it: an access outside of its memory is wrong after all."""
        if found.verdict is not Verdict.ACCEPTED:
            return found
        with record.waiting(self._place.working()), record.stage("sanitizer"):
            said = self._place.sanitize(self.target, resolved, built, self._slots, self._cases[0])
        if not said:
            return found
        reason = found.reason
        bad = {tool: words for tool, words in said.items() if found_errors(words)}
        if bad:
            reason += "; " + "; ".join(f"{tool}: {words}" for tool, words in bad.items())
        stray = stray_access(bad.get("memcheck", ""))
        verdict = Verdict.WRONG if stray else found.verdict
        return replace(
            found, verdict=verdict, reason=reason, resources={**found.resources, "sanitizer": said}
        )

    def _call_time(self, loaded: Loaded, record: Stages) -> list[Comparison]:
        with self._alone(record), record.stage("call time"):
            found = self._place.call_time(loaded, self._key, "eager")
        return [] if found is None else [found]

    def _check_probes(self, session: Session, record: Stages) -> None:
        """Outputs of timed calls must be as right as those of checked ones.

        They are other values than those that were checked, so an element that is barely outside its
        budget is let pass; one that is far outside was never computed. Of many calls that were kept
        for a quick look, a few are checked like that, and all that are not what eager says.
        """
        graph, name = self.target.graph, "inputs of a timed call"
        with record.waiting(self._place.working()), record.stage("probes"):
            probes = [*session.probes, *session.noted, *self._screened(session)]
            for probe in probes:
                case = self._place.make_case(graph, name, probe.inputs)
                for i, (whole, output) in enumerate(zip(case.expected, probe.outputs, strict=True)):
                    expected, got = whole, output
                    if probe.places is not None:
                        expected, got = noted(
                            whole, output, probe.places[i], self.target.outputs[i]
                        )
                    there = got.to(expected.reference.device)
                    found = check_output(expected, there, f"out{i}", case.name)
                    if found.wrong is None or found.excess <= _BARELY:
                        continue
                    words = f"right when checked, wrong when timed: {found.wrong}"
                    gross = found.excess > _GROSS
                    verdict = Verdict.SUSPICIOUS if gross else Verdict.WRONG
                    raise Ended(verdict, words, mismatches=found.worst)
        session.probes.clear()  # they may lie in the device's memory
        session.noted.clear()

    def _screened(self, session: Session) -> list[Probe]:
        """Of the outputs kept for a quick look those to check: a few, the furthest off first."""
        if len(session.screened) <= session.closely:
            return session.screened
        budgets = [expected.budget for expected in self._cases[0].expected]
        rows = []
        for probe in session.screened:
            with torch.no_grad():
                found = self.target.graph(*probe.inputs)
            eager = [found] if isinstance(found, torch.Tensor) else list(found)
            rows.append((distance(probe.outputs, eager, budgets), probe))
        random.SystemRandom().shuffle(rows)
        rows.sort(key=lambda row: -row[0])
        far = sum(1 for off, _ in rows if off > 0.0)
        return [probe for _, probe in rows[: max(min(far, _CLOSELY), session.closely)]]

    def _rule(
        self,
        comparison: Comparison,
        sessions: Sequence[Session],
        comparisons: Sequence[Comparison],
        record: Stages,
    ) -> Evaluation:
        floor = self._place.floor_seconds(self.target, self._slots)
        ruled = ruling.rule(self.target, comparison, sessions, floor)
        limits = self._place.calibration
        bandwidth = 0.0 if limits.busy else limits.bandwidth_gbs  # a share of what nobody knows
        return record.evaluation(
            ruled.verdict,
            ruled.reason,
            timings=tuple(comparisons),
            **ruling.throughput(self.target, comparison, bandwidth),
        )

    def close(self) -> None:
        """Give back memory and files. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._timed is not None:
            self._place.release(self._key, self._timed)
            self._timed.close()
            self._timed = None
        self._cases = Shelf(self.target.device)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._judge.benches.discard(self)


def _asker(stop: Stop) -> Asked:
    if stop is None:
        return lambda: False
    return stop.is_set if isinstance(stop, threading.Event) else stop


def _note(checked: Checked, record: Stages) -> None:
    record.details["errors"] = tuple(checked.errors)
    record.details["mismatches"] = tuple(checked.mismatches)
    if checked.repeatable is not None:
        record.details["repeatable"] = checked.repeatable
