"""A trial of the prompts: what a strong model makes of them when it sees nothing but the prompt.

``python -m benchmarks.prompt_trial prompts --out DIR [--targets NAME ...]``
    writes ``DIR/TARGET/NN-ACTION.prompt.txt``, the next prompt of each target. Paste each into a
    chat window and save the answer beside it as ``NN-ACTION.answer.txt``.
``python -m benchmarks.prompt_trial recipes --out DIR [--moves N] [--threads N]``
    searches the best recipe of each target, to compare with; once for a machine.
``python -m benchmarks.prompt_trial judge --out DIR [--model NAME] [--threads N]``
    parses and judges the answers that are there, adds them to ``DIR/transcript.json`` and writes
    the next prompts: a mended form, a repair or an optimisation.
``python -m benchmarks.prompt_trial duel --out DIR [--threads N]``
    times the best kernel of each target against the best recipe, interleaved.
``python -m benchmarks.prompt_trial rejudge --transcript FILE --out DIR [--targets NAME ...]``
    judges recorded answers again, such as CUDA kernels where there is a GPU, into a transcript and
    next prompts in ``DIR``.
``python -m benchmarks.prompt_trial table --out DIR [--json [FILE]]``
    the table by version of the prompts.

Counts of tokens are estimates by length, and marked so: nobody metered these calls.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.prompt_judging import Bench, best_recipe, facts_of, has_gpu, opened
from benchmarks.prompt_steps import attempts_of, best_of, next_step
from benchmarks.prompt_table import report_of
from benchmarks.prompt_targets import TRIAL, TrialTarget, build_target
from benchmarks.report import add_json_option, write_report
from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import plan_from_document, plan_to_document
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.proposers.cost import tokens_estimate
from kforge_nb.proposers.prompting import Prompt, format_repair, render
from kforge_nb.proposers.protocol import Request
from kforge_nb.proposers.transcript import Entry, Transcript, without_samples
from kforge_nb.targets.target import Target

__all__ = ["main"]

_FORM = ".form"


def write_prompts(options: argparse.Namespace) -> int:
    """The next prompt of each target that has none open."""
    said = _transcript(options)
    for entry in _chosen(options):
        _write_next(options.out, entry, build_target(entry), said)
    return 0


def _write_next(out: Path, entry: TrialTarget, target: Target, said: Transcript) -> None:
    folder = out / entry.name
    if _open_prompt(folder) is not None:
        _say(f"{entry.name}: a prompt waits for its answer: {_open_prompt(folder)}")
        return
    prompt, request, strategy = _next_prompt(out, entry, target, said)
    done = [e for e in said.entries if e.target == entry.name and not e.repaired]
    stem = f"{len(done) + 1:02d}-{request.action}"
    _write(folder, stem, prompt, request, strategy)


def _next_prompt(
    out: Path, entry: TrialTarget, target: Target, said: Transcript
) -> tuple[Prompt, Request, str | None]:
    facts = facts_of(entry)
    recipe = _recipes(out).get(entry.name, {})
    roofline = _roofline_us(target, facts)
    request, strategy = next_step(target, said.entries, facts, roofline, recipe.get("eager_us"))
    return render(request, strategy), request, strategy


def _roofline_us(target: Target, facts: dict[str, Any]) -> float | None:
    from kforge_nb.judge.physics import moved_bytes

    speed = facts.get("bandwidth_gbs")
    return moved_bytes(target) / (float(speed) * 1e3) if speed else None


def _write(
    folder: Path, stem: str, prompt: Prompt, request: Request | None, strategy: str | None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.prompt.txt").write_text(prompt.text() + "\n", encoding="utf-8")
    parent = request.parent if request is not None else None
    about = {
        "version": prompt.version,
        "prompt": prompt.digest(),
        "characters": len(prompt.text()),
        "language": prompt.language,
        "action": request.action if request is not None else "form",
        "strategy": strategy,
        "parent": parent.candidate.digest if parent is not None else None,
    }
    (folder / f"{stem}.json").write_text(json.dumps(about, indent=1) + "\n")
    _say(f"{folder.name}: {stem}.prompt.txt ({about['characters']} characters)")


def _open_prompt(folder: Path) -> str | None:
    """The stem of a prompt whose answer was not judged yet."""
    for file in sorted(folder.glob("*.prompt.txt")):
        stem = file.name.removesuffix(".prompt.txt")
        if not (folder / f"{stem}.done").exists():
            return stem
    return None


# -- judging ----------------------------------------------------------------------------------


def judge_answers(options: argparse.Namespace) -> int:
    """Judges the answers that are there; an answer's target is opened once."""
    said = _transcript(options)
    for entry in _chosen(options):
        folder = options.out / entry.name
        stem = _open_prompt(folder)
        if stem is None or not (folder / f"{stem}.answer.txt").exists():
            continue
        with opened(entry, options.threads) as bench:
            made = _take(folder, stem, bench, entry, options.out, said)
            said.entries.append(made)
            said.save(options.out / "transcript.json")
            (folder / f"{stem}.done").write_text(made.candidate or made.problem)
            if not _form_asked(folder, stem) and not (bench.bench is None and _compiled(made)):
                _write_next(options.out, entry, bench.target, said)
    return 0


def judge_again(options: argparse.Namespace) -> int:
    """Recorded answers judged once more, on whatever this machine has."""
    said = Transcript.load(options.transcript)
    for entry in _chosen(options):
        mine = [i for i, e in enumerate(said.entries) if e.target == entry.name]
        if not mine:
            continue
        with opened(entry, options.threads) as bench:
            for i in mine:
                said.entries[i] = _again(said.entries[i], bench)
                said.save(options.out / "transcript.json")
            if bench.bench is not None:
                _write_next(options.out, entry, bench.target, said)
    return 0


def _again(made: Entry, bench: Bench) -> Entry:
    """An entry with a new evaluation, its target as it is here (devices are part of what it is)."""
    made = replace(made, fingerprint=bench.target.fingerprint)
    found = parse(made.answer, bench.target, made.language)
    if not isinstance(found, Answer):
        return replace(made, problem=found.reason)
    evaluation = bench.evaluate(found.candidate)
    _say(f"{made.target} {made.action}: {evaluation.verdict}: {evaluation.reason[:200]}")
    return replace(made, candidate=found.candidate.digest, evaluation=without_samples(evaluation))


def _compiled(made: Entry) -> bool:
    """Whether it passed as far as can be said without a GPU; then nothing more can be asked."""
    return made.evaluation is not None and made.evaluation["verdict"] == "undecided"


def _form_asked(folder: Path, stem: str) -> bool:
    return (folder / f"{stem}{_FORM}.prompt.txt").exists()


def _take(
    folder: Path, stem: str, bench: Bench, entry: TrialTarget, out: Path, said: Transcript
) -> Entry:
    """One answer as an entry, judged if it holds a candidate; else its form is asked for once."""
    about = json.loads((folder / f"{stem}.json").read_text())
    text = (folder / f"{stem}.answer.txt").read_text(encoding="utf-8", errors="replace")
    asked = (folder / f"{stem}.prompt.txt").read_text(encoding="utf-8")
    repaired = stem.endswith(_FORM)
    if repaired:
        about |= {k: _about_first(folder, stem)[k] for k in ("action", "strategy", "parent")}
    made = Entry(
        target=entry.name,
        fingerprint=bench.target.fingerprint,
        answer=text,
        repaired=repaired,
        tokens_in=tokens_estimate(asked),
        tokens_out=tokens_estimate(text),
        **about,
    )
    found = parse(text, bench.target, made.language)
    if not isinstance(found, Answer):
        _say(f"{entry.name} {stem}: no candidate: {found.reason}")
        if found.repairable and not repaired:
            prompt = _next_prompt(out, entry, bench.target, said)[0]
            _write(folder, f"{stem}{_FORM}", format_repair(prompt, text, found.reason), None, None)
        return replace(made, problem=found.reason)
    evaluation = bench.evaluate(found.candidate)
    _say(f"{entry.name} {stem}: {evaluation.verdict}: {evaluation.reason[:200]}")
    return replace(made, candidate=found.candidate.digest, evaluation=without_samples(evaluation))


def _about_first(folder: Path, stem: str) -> dict[str, Any]:
    first = folder / f"{stem.removesuffix(_FORM)}.json"
    return dict(json.loads(first.read_text()))


# -- recipes ----------------------------------------------------------------------------------


def search_recipes(options: argparse.Namespace) -> int:
    """The best recipe of each target, kept with its figures."""
    known = _recipes(options.out)
    for entry in _chosen(options):
        judged = entry.kind == "cpu" or has_gpu()
        if not judged or (entry.name in known and not options.again):
            continue
        with opened(entry, options.threads) as bench:
            best = best_recipe(bench, options.moves)
            if best is None:
                _say(f"{entry.name}: no recipe is right")
                continue
            found = best.evaluation.against("eager")
            known[entry.name] = {
                "eager_us": found.against_us if found else None,
                "language": best.candidate.language,
                "source": best.candidate.source,
                "plan": plan_to_document(best.candidate.plan),
                "origin": best.candidate.origin,
                "evaluation": without_samples(best.evaluation),
            }
            _say(f"{entry.name}: {best.evaluation.reason}")
        _save_json(options.out / "recipes.json", known)
    return 0


def run_duels(options: argparse.Namespace) -> int:
    """The best kernel of each target against the best recipe."""
    said, recipes = _transcript(options), _recipes(options.out)
    duels = _read_json(options.out / "duels.json")
    for entry in _chosen(options):
        if entry.name not in recipes or (entry.kind == "cuda" and not has_gpu()):
            continue
        with opened(entry, options.threads) as bench:
            best = best_of(attempts_of(bench.target, said.entries))
            if best is None:
                continue
            stored = recipes[entry.name]
            plan = plan_from_document(stored["plan"])
            recipe = Candidate(stored.get("language", "cpp"), stored["source"], plan)
            found = bench.duel(best.candidate, recipe)
            duels[entry.name] = {
                "candidate": best.candidate.digest,
                **{k: getattr(found, k) for k in ("ratio", "low", "high", "n")},
                "ours_us": found.ours_us,
                "recipe_us": found.against_us,
            }
            _say(f"{entry.name}: {found.ratio:.3f} [{found.low:.3f} {found.high:.3f}] of a recipe")
        _save_json(options.out / "duels.json", duels)
    return 0


def show_table(options: argparse.Namespace) -> int:
    """The table by version of the prompts."""
    duels = _read_json(options.out / "duels.json")
    write_report(report_of(_transcript(options), duels, _recipes(options.out)), options.json)
    return 0


# -- files ------------------------------------------------------------------------------------


def _transcript(options: argparse.Namespace) -> Transcript:
    path = options.out / "transcript.json"
    found = Transcript.load(path) if path.exists() else Transcript("paste")
    if getattr(options, "model", ""):
        found.model = options.model
    return found


def _recipes(out: Path) -> dict[str, Any]:
    return _read_json(out / "recipes.json")


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _save_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")


def _chosen(options: argparse.Namespace) -> Iterator[TrialTarget]:
    for entry in TRIAL:
        if not options.targets or entry.name in options.targets:
            yield entry


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def main() -> int:
    """One sub-command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, work in (
        ("prompts", write_prompts), ("judge", judge_answers), ("recipes", search_recipes),
        ("duel", run_duels), ("rejudge", judge_again), ("table", show_table),
    ):  # fmt: skip
        command = commands.add_parser(name, help=(work.__doc__ or "").partition("\n")[0])
        command.add_argument("--out", "--answers", type=Path, required=True, metavar="DIR")
        command.add_argument("--targets", nargs="*", default=[], help="only these")
        command.add_argument("--threads", type=int, default=2)
        command.set_defaults(work=work)
        if name == "judge":
            command.add_argument("--model", default="", help="who answered, for the transcript")
        if name == "recipes":
            command.add_argument("--moves", type=int, default=10, help="candidates a target")
            command.add_argument("--again", action="store_true", help="search known ones too")
        if name == "rejudge":
            command.add_argument("--transcript", type=Path, required=True, metavar="FILE")
        if name == "table":
            add_json_option(command)
    options = parser.parse_args()
    unknown = set(options.targets) - {entry.name for entry in TRIAL}
    if unknown:
        parser.error(f"unknown target {', '.join(sorted(unknown))}")
    return int(options.work(options))


if __name__ == "__main__":
    sys.exit(main())
