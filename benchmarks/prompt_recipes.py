"""What the kernels of a trial are measured against: the best recipe that a search finds.

The recipe's parameters are picked as for the table of CPU operators (single changes timed side by
side, mixtures of what gained, the quickest once more), and the judge's own bench decides between
what was picked and what a run's first moves found. The final duel is timed afresh.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cpu_op_tuning import emit, pick
from benchmarks.cpu_ops import launcher
from benchmarks.prompt_judging import Bench, best_recipe, has_gpu, opened
from benchmarks.prompt_lines import Line, lines, read_json, save_json, say
from benchmarks.prompt_steps import attempts_of
from benchmarks.prompt_targets import TrialTarget, build_target
from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import plan_from_document, plan_to_document
from kforge_nb.proposers.transcript import Transcript, without_samples

__all__ = ["recipes_of", "run_duels", "search_recipes", "tune_recipes"]

Entry = dict[str, Any]
CLOSEST = 0.02
"""Largest difference from eager's result of a recipe that is timed, relative and absolute."""


def recipes_of(out: Path) -> dict[str, Any]:
    """What is known of each target's recipes, by its name."""
    return read_json(out / "recipes.json")


def _judged_here(options: argparse.Namespace) -> list[TrialTarget]:
    found = [line.entry for line in lines(options.targets) if line.fault is None]
    return [entry for entry in found if entry.kind == "cpu" or has_gpu()]


def search_recipes(options: argparse.Namespace) -> int:
    """The best recipe of each target by a run's own first moves, kept with its figures."""
    known = recipes_of(options.out)
    for entry in _judged_here(options):
        if entry.name in known and not options.again:
            continue
        with opened(entry, options.threads) as bench:
            best = best_recipe(bench, options.moves)
        if best is None:
            say(f"{entry.name}: no recipe is right")
            continue
        found = best.evaluation.against("eager")
        known[entry.name] = {
            "eager_us": found.against_us if found else None,
            **_kept(best.candidate),
            "evaluation": without_samples(best.evaluation),
        }
        say(f"{entry.name}: {best.evaluation.reason}")
        save_json(options.out / "recipes.json", known)
    return 0


def tune_recipes(options: argparse.Namespace) -> int:
    """Parameters of each CPU recipe, picked by a search; what is built stays in DIR/built."""
    known = recipes_of(options.out)
    for entry in _judged_here(options):
        if entry.kind != "cpu":
            continue
        picked = _picked(entry, options)
        if picked is None:
            continue
        known.setdefault(entry.name, {})["tuned"] = _kept(picked)
        say(f"{entry.name}: {picked.origin}")
        save_json(options.out / "recipes.json", known)
    return 0


def _picked(entry: TrialTarget, options: argparse.Namespace) -> Candidate | None:
    """The tuned recipe; None where no recipe knows the target."""
    import torch

    torch.set_num_threads(options.threads)
    target = build_target(entry)
    inputs = target.captured.sets()[0] if target.captured is not None else []
    with torch.no_grad():
        want = target.graph(*inputs)[0]

    def build(candidate: Candidate, _: Path) -> Callable[[], Any]:
        ours = launcher(candidate, target, options.threads, options.out / "built")
        torch.testing.assert_close(ours(*inputs), want, rtol=CLOSEST, atol=CLOSEST)
        return lambda: ours(*inputs)

    try:
        emit(target)
    except RuntimeError as problem:
        say(f"{entry.name}: {problem}")
        return None
    return emit(target, pick(target, build, options.tries, options.seconds))


def run_duels(options: argparse.Namespace) -> int:
    """The fastest kernel of each target against the fastest recipe, and against eager."""
    said = Transcript.load(options.out / "transcript.json")
    known, duels = recipes_of(options.out), read_json(options.out / "duels.json")
    for entry in _judged_here(options):
        recipes = _stored(known.get(entry.name, {}))
        with opened(entry, options.threads) as bench:
            found = _duel(bench, entry, said, recipes)
        if found is not None:
            duels[entry.name] = found
            save_json(options.out / "duels.json", duels)
    return 0


def _duel(
    bench: Bench, entry: TrialTarget, said: Transcript, recipes: list[Candidate]
) -> Entry | None:
    attempts = attempts_of(bench.target, Line(entry).of(said.entries))
    right = [a.candidate for _, a in attempts if a is not None and a.evaluation.correct]
    if not right:
        return None
    ours = bench.fastest(list({c.digest: c for c in right}.values()))
    evaluation = bench.confirm(ours)
    eager = evaluation.against("eager")
    made: Entry = {"candidate": ours.digest, "verdict": str(evaluation.verdict)}
    if eager is not None:
        made["eager"] = {k: getattr(eager, k) for k in ("ratio", "low", "high", "n")}
        made["eager"] |= {"ours_us": eager.ours_us, "eager_us": eager.against_us}
    if recipes:
        best = bench.fastest(recipes)
        found = bench.duel(ours, best)
        made |= {k: getattr(found, k) for k in ("ratio", "low", "high", "n")}
        made |= {"ours_us": found.ours_us, "recipe_us": found.against_us, "recipe": best.origin}
        say(f"{entry.name}: {found.ratio:.3f} [{found.low:.3f} {found.high:.3f}] of a recipe")
    say(f"{entry.name}: {evaluation.reason}")
    return made


def _kept(candidate: Candidate) -> Entry:
    return {
        "language": candidate.language,
        "source": candidate.source,
        "plan": plan_to_document(candidate.plan),
        "origin": candidate.origin,
    }


def _stored(known: Entry) -> list[Candidate]:
    """The recipes that are to be compared: what was tuned, and what a run's moves found."""
    found = [kept for kept in (known.get("tuned"), known) if kept and "source" in kept]
    return [
        Candidate(
            kept.get("language", "cpp"),
            kept["source"],
            plan_from_document(kept["plan"]),
            origin=dict(kept.get("origin", {})),
        )
        for kept in found
    ]
