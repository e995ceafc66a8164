"""Judging the answers of a trial: by the real judge, against eager and against the best recipe.

A CUDA candidate is judged where there is a GPU. Elsewhere it is held to its plan, the source policy
and the compiler, and its verdict stays ``undecided``: it is not known to be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.prompt_targets import TrialTarget, build_target, captured_fingerprint
from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import validate
from kforge_nb.errors import BadInput, ContractBreach
from kforge_nb.judge import ruling
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.judge.stages import Stages
from kforge_nb.judge.timing import Plan, RunnerSide, run_session
from kforge_nb.proposers.protocol import Attempt, Refusal, Request
from kforge_nb.proposers.recipes import RecipeProposer
from kforge_nb.targets.target import Target

__all__ = ["H200", "Bench", "best_recipe", "compile_only", "facts_of", "has_gpu", "opened"]

ARCH = "sm_90"
H200 = {"name": "NVIDIA H200", "arch": ARCH, "multiprocessors": 132, "bandwidth_gbs": 4260.0}
"""Facts of the GPU that CUDA prompts name where there is none; its copy was measured on one."""

DUEL = Plan(seconds=6.0, narrow=0.03, pairs=20)
KNOCK_OUT = Plan(seconds=2.0, narrow=0.03, pairs=10)
_BATCH_SECONDS = 20.0


@dataclass(slots=True)
class Bench:
    """A target with the judge's bench for it; no bench for CUDA without a GPU."""

    target: Target
    bench: Any = None
    cache: Path = field(default_factory=Path)

    def fastest(self, candidates: Sequence[Candidate]) -> Candidate:
        """The one that is left of correct candidates after short duels, one after another.

        Figures that were taken at different times on a busy machine cannot rank them.
        """
        best, *others = candidates
        for other in others:
            if self.duel(other, best, KNOCK_OUT).ratio > 1.0:
                best = other
        return best

    def evaluate(self, candidate: Candidate) -> Evaluation:
        """The judge's word, or what can be said without a GPU."""
        if self.bench is None:
            return compile_only(candidate, self.target, self.cache)
        found: Evaluation = self.bench.evaluate(candidate)
        return found

    def confirm(self, candidate: Candidate) -> Evaluation:
        """On fresh samples; for winners."""
        found: Evaluation = self.bench.confirm(candidate)
        return found

    def duel(self, ours: Candidate, theirs: Candidate, plan: Plan | None = None) -> Comparison:
        """Two correct candidates against each other: C++ interleaved, each in its own process.

        On a GPU each is timed against eager, and the worst of both intervals counts. ``plan`` says
        how long; :data:`DUEL` if it is not given.
        """
        if ours.language == "cuda":
            return _through_eager(self.evaluate(ours), self.evaluate(theirs))
        bench, record = self.bench, Stages()
        first = bench._started(*bench._admit(ours, lambda: False, record))
        second = bench._started(*bench._admit(theirs, lambda: False, record))
        with first as one, second as two:
            for loaded in (one, two):
                bench._load_and_check(loaded, bench._cases[:1], record)
            sides = [RunnerSide(loaded.runner, _BATCH_SECONDS) for loaded in (one, two)]
            with bench._place.timing():
                session = run_session(
                    sides[0], sides[1], bench._slots, plan or DUEL, one.fetch, lambda: False
                )
        return ruling.comparison("recipe", session)


def _through_eager(ours: Evaluation, theirs: Evaluation) -> Comparison:
    one, two = ours.against("eager"), theirs.against("eager")
    if one is None or two is None:
        raise BadInput(f"they were not both timed: {ours.reason}; {theirs.reason}")
    return Comparison(
        "recipe", one.ratio / two.ratio, one.low / two.high, one.high / two.low,
        min(one.n, two.n), one.ours_us, two.ours_us,
    )  # fmt: skip


def facts_of(entry: TrialTarget) -> dict[str, Any]:
    """Plain facts of the device that an entry's target is for."""
    from kforge_nb.run.devices import facts_for

    if entry.kind == "cuda" and not has_gpu():
        return dict(H200)
    return facts_for("cuda:0" if entry.kind == "cuda" else "cpu")


@contextmanager
def opened(entry: TrialTarget, threads: int) -> Iterator[Bench]:
    """The entry's target on the judge's bench."""
    from kforge_nb.judge.judge import Judge
    from kforge_nb.settings import Settings

    with TemporaryDirectory(prefix="kforge-trial-") as folder:
        if entry.kind == "cuda" and not has_gpu():
            yield Bench(build_target(entry), None, Path(folder))
            return
        target = build_target(entry, "cuda:0" if entry.kind == "cuda" else None)
        if entry.kind == "cpu":
            target.fingerprint = captured_fingerprint(entry) or target.fingerprint
        with Judge(Settings(threads=threads), Path(folder)) as judge:
            yield Bench(target, judge.open(target), Path(folder))


def has_gpu() -> bool:
    """Whether CUDA candidates can be judged here."""
    import torch

    return torch.cuda.is_available()


def compile_only(candidate: Candidate, target: Target, cache: Path) -> Evaluation:
    """Plan, policy and compiler for a CUDA candidate; ``undecided`` if it passes them."""
    from kforge_nb.compilers.nvrtc import CompileFailed, build_cuda
    from kforge_nb.judge.cuda.cubin import inspect_cubin
    from kforge_nb.judge.cuda.policy import scan_cuda

    try:
        validate(candidate.plan, candidate.language, target.inputs, target.outputs)
    except ContractBreach as breach:
        return Evaluation(Verdict.REFUSED, str(breach))
    findings = scan_cuda(candidate.source)
    if findings:
        return Evaluation(Verdict.REFUSED, "; ".join(map(str, findings))[:1000])
    entries = tuple(dict.fromkeys(kernel.name for kernel in candidate.plan.kernels))
    built = build_cuda(candidate.source, entries, cache=cache, arch=ARCH)
    if isinstance(built, CompileFailed):
        first = built.distilled.strip().split("\n", 1)[0][:300]
        return Evaluation(Verdict.COMPILE_FAILED, first, log=built.distilled)
    left = inspect_cubin(built.cubin)
    if left:
        return Evaluation(Verdict.REFUSED, "; ".join(map(str, left))[:1000])
    kernels = {
        name: {"registers": r.registers, "spill_stores": r.spill_stores, "shared": r.shared}
        for name, r in built.resources.items()
    }
    words = f"it compiles for {ARCH}; there is no GPU here to judge it on"
    return Evaluation(Verdict.UNDECIDED, words, resources={"kernels": kernels})


def best_recipe(bench: Bench, moves: int) -> Attempt | None:
    """The fastest recipe: the first drafts, then single changes of the best one so far.

    Args:
        bench: of the target.
        moves: candidates that are judged at most.
    """
    proposer = RecipeProposer()
    tried: list[Attempt] = []
    best: Attempt | None = None
    for number in range(moves):
        grow = best is not None and number % 4 != 1
        request = Request(
            bench.target,
            "optimise" if grow else "draft",
            best if grow else None,
            tuple(tried) if grow else (),
            seed=number,
            tried=frozenset(a.candidate.digest for a in tried),
        )
        found = proposer.propose(request)
        if isinstance(found, Refusal):
            if not grow:
                continue
            break
        if not isinstance(found, Candidate):
            continue
        attempt = Attempt(found, bench.evaluate(found))
        tried.append(attempt)
        if not attempt.evaluation.correct:
            continue
        before = best.evaluation.speedup if best is not None else None
        if best is None or (attempt.evaluation.speedup or 0.0) > (before or 0.0):
            best = attempt
    return best
