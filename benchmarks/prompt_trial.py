"""A trial of the prompts: what a strong model makes of them when it sees nothing but the prompt.

``python -m benchmarks.prompt_trial prompts --out DIR [--targets NAME ...]``
    writes ``DIR/TARGET/NN-ACTION.prompt.txt``, the next prompt of each target. Paste each into a
    chat window and save the answer beside it as ``NN-ACTION.answer.txt``.
``python -m benchmarks.prompt_trial plant --transcript FILE --out DIR``
    plants a fault into each of some accepted kernels of a transcript, judges what comes of it and
    writes the repair prompts, ``DIR/planted-FAULT/02-repair.prompt.txt``. Their answers are judged
    like any other and stay marked as repairs of planted faults.
``python -m benchmarks.prompt_trial judge --out DIR [--model NAME] [--threads N]``
    parses and judges the answers that are there, adds them to ``DIR/transcript.json`` and writes
    the next prompts: a mended form, a repair or an optimisation.
``python -m benchmarks.prompt_trial recipes --out DIR [--moves N] [--threads N]``
    searches the best recipe of each target by a run's first moves; once for a machine.
``python -m benchmarks.prompt_trial tune --out DIR [--tries N] [--seconds S] [--threads N]``
    picks the parameters of each CPU recipe as a longer search would, on a quiet machine.
``python -m benchmarks.prompt_trial duel --out DIR [--threads N]``
    times the fastest kernel of each target against the fastest recipe, interleaved, and against
    eager on fresh samples; on a quiet machine.
``python -m benchmarks.prompt_trial rejudge --transcript FILE --out DIR [--targets NAME ...]``
    judges recorded answers again, such as CUDA kernels where there is a GPU, into a transcript and
    next prompts in ``DIR``.
``python -m benchmarks.prompt_trial table --out DIR [--json [FILE]]``
    the table by version of the prompts.

Counts of tokens are estimates by length, and marked so: nobody metered these calls.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.prompt_faults import plant, sound_answer
from benchmarks.prompt_judging import Bench, facts_of, opened
from benchmarks.prompt_lines import (
    FORM,
    Line,
    about_answer,
    lines,
    open_prompt,
    read_json,
    say,
    write_prompt,
)
from benchmarks.prompt_recipes import recipes_of, run_duels, search_recipes, tune_recipes
from benchmarks.prompt_steps import next_step
from benchmarks.prompt_table import report_of
from benchmarks.prompt_targets import build_target
from benchmarks.report import add_json_option, write_report
from kforge_nb.errors import BadInput
from kforge_nb.proposers.answers import Answer, parse
from kforge_nb.proposers.cost import tokens_estimate
from kforge_nb.proposers.prompting import Prompt, format_repair, render
from kforge_nb.proposers.protocol import Request
from kforge_nb.proposers.transcript import Entry, Transcript, without_samples
from kforge_nb.targets.target import Target

__all__ = ["main"]


def write_prompts(options: argparse.Namespace) -> int:
    """The next prompt of each target that has none open."""
    said = _transcript(options)
    for line in lines(options.targets):
        if line.fault is None or line.of(said.entries):
            _write_next(options.out, line, build_target(line.entry), said)
    return 0


def _write_next(out: Path, line: Line, target: Target, said: Transcript) -> None:
    folder = out / line.name
    if open_prompt(folder) is not None:
        say(f"{line.name}: a prompt waits for its answer: {open_prompt(folder)}")
        return
    prompt, request, strategy = _next_prompt(out, line, target, said)
    if line.fault is not None and request.action != "repair":
        return  # it ends when it is mended, or was repaired in vain as often as a run would
    done = [e for e in line.of(said.entries) if not e.repaired]
    stem = f"{len(done) + 1:02d}-{request.action}"
    write_prompt(folder, stem, prompt, request, strategy)


def _next_prompt(
    out: Path, line: Line, target: Target, said: Transcript
) -> tuple[Prompt, Request, str | None]:
    facts = facts_of(line.entry)
    recipe = recipes_of(out).get(line.entry.name, {})
    roofline = _roofline_us(target, facts)
    mine = line.of(said.entries)
    request, strategy = next_step(target, mine, facts, roofline, recipe.get("eager_us"))
    label = line.fault.label if line.fault is not None else strategy
    return render(request, strategy), request, label


def _roofline_us(target: Target, facts: dict[str, Any]) -> float | None:
    from kforge_nb.judge.physics import moved_bytes

    speed = facts.get("bandwidth_gbs")
    return moved_bytes(target) / (float(speed) * 1e3) if speed else None


# -- planting ---------------------------------------------------------------------------------


def plant_faults(options: argparse.Namespace) -> int:
    """Kernels with a fault, judged, and the repair prompts that follow from them."""
    said = _transcript(options)
    known = Transcript.load(options.transcript).entries
    for line in lines(options.targets):
        if line.fault is None or line.of(said.entries):
            continue
        with opened(line.entry, options.threads) as bench:
            made = _planted(line, sound_answer(line.fault, known), bench)
            if made is not None:
                said.entries.append(made)
                said.save(options.out / "transcript.json")
                _write_next(options.out, line, bench.target, said)
    return 0


def _planted(line: Line, sound: Entry, bench: Bench) -> Entry | None:
    """The recorded kernel with the fault, judged; None where the judge finds nothing wrong."""
    assert line.fault is not None
    text = plant(line.fault, sound.answer)
    found = parse(text, bench.target, sound.language)
    if not isinstance(found, Answer):
        raise BadInput(f"{line.name}: the answer with the fault holds no kernel: {found.reason}")
    evaluation = bench.evaluate(found.candidate)
    say(f"{line.name}: {evaluation.verdict}: {evaluation.reason[:200]}")
    if evaluation.correct:
        return None
    return Entry(
        target=line.entry.name,
        fingerprint=bench.target.fingerprint,
        language=sound.language,
        action="planted",
        version="",
        prompt="",
        characters=0,
        answer=text,
        strategy=line.fault.label,
        parent=sound.candidate,
        candidate=found.candidate.digest,
        evaluation=without_samples(evaluation),
    )


# -- judging ----------------------------------------------------------------------------------


def judge_answers(options: argparse.Namespace) -> int:
    """Judges the answers that are there; an answer's target is opened once."""
    said = _transcript(options)
    for line in lines(options.targets):
        folder = options.out / line.name
        stem = open_prompt(folder)
        if stem is None or not (folder / f"{stem}.answer.txt").exists():
            continue
        with opened(line.entry, options.threads) as bench:
            made = _take(folder, stem, bench, line, options.out, said)
            said.entries.append(made)
            said.save(options.out / "transcript.json")
            (folder / f"{stem}.done").write_text(made.candidate or made.problem)
            if not _form_asked(folder, stem) and not (bench.bench is None and _compiled(made)):
                _write_next(options.out, line, bench.target, said)
    return 0


def judge_again(options: argparse.Namespace) -> int:
    """Recorded answers judged once more, on whatever this machine has."""
    said = Transcript.load(options.transcript)
    for line in lines(options.targets):
        mine = line.of(said.entries)
        if not mine:
            continue
        with opened(line.entry, options.threads) as bench:
            for made in mine:
                said.entries[said.entries.index(made)] = _again(made, bench)
                said.save(options.out / "transcript.json")
            if bench.bench is not None:
                _write_next(options.out, line, bench.target, said)
    return 0


def _again(made: Entry, bench: Bench) -> Entry:
    """An entry with a new evaluation, its target as it is here (devices are part of what it is)."""
    made = replace(made, fingerprint=bench.target.fingerprint)
    found = parse(made.answer, bench.target, made.language)
    if not isinstance(found, Answer):
        return replace(made, problem=found.reason)
    evaluation = bench.evaluate(found.candidate)
    say(f"{made.target} {made.action}: {evaluation.verdict}: {evaluation.reason[:200]}")
    return replace(made, candidate=found.candidate.digest, evaluation=without_samples(evaluation))


def _compiled(made: Entry) -> bool:
    """Whether it passed as far as can be said without a GPU; then nothing more can be asked."""
    return made.evaluation is not None and made.evaluation["verdict"] == "undecided"


def _form_asked(folder: Path, stem: str) -> bool:
    return (folder / f"{stem}{FORM}.prompt.txt").exists()


def _take(folder: Path, stem: str, bench: Bench, line: Line, out: Path, said: Transcript) -> Entry:
    """One answer as an entry, judged if it holds a candidate; else its form is asked for once."""
    text = (folder / f"{stem}.answer.txt").read_text(encoding="utf-8", errors="replace")
    asked = (folder / f"{stem}.prompt.txt").read_text(encoding="utf-8")
    repaired = stem.endswith(FORM)
    made = Entry(
        target=line.entry.name,
        fingerprint=bench.target.fingerprint,
        answer=text,
        repaired=repaired,
        tokens_in=tokens_estimate(asked),
        tokens_out=tokens_estimate(text),
        **about_answer(folder, stem),
    )
    found = parse(text, bench.target, made.language)
    if not isinstance(found, Answer):
        say(f"{line.name} {stem}: no candidate: {found.reason}")
        if found.repairable and not repaired:
            prompt = _next_prompt(out, line, bench.target, said)[0]
            form = format_repair(prompt, text, found.reason)
            write_prompt(folder, f"{stem}{FORM}", form, None, None)
        return replace(made, problem=found.reason)
    evaluation = bench.evaluate(found.candidate)
    say(f"{line.name} {stem}: {evaluation.verdict}: {evaluation.reason[:200]}")
    return replace(made, candidate=found.candidate.digest, evaluation=without_samples(evaluation))


def show_table(options: argparse.Namespace) -> int:
    """The table by version of the prompts."""
    duels = read_json(options.out / "duels.json")
    write_report(report_of(_transcript(options), duels, recipes_of(options.out)), options.json)
    return 0


def _transcript(options: argparse.Namespace) -> Transcript:
    path = options.out / "transcript.json"
    found = Transcript.load(path) if path.exists() else Transcript("paste")
    if getattr(options, "model", ""):
        found.model = options.model
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, work in (
        ("prompts", write_prompts), ("plant", plant_faults), ("judge", judge_answers),
        ("recipes", search_recipes), ("tune", tune_recipes), ("duel", run_duels),
        ("rejudge", judge_again), ("table", show_table),
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
        if name == "tune":
            command.add_argument("--tries", type=int, default=12, help="parameter sets at first")
            command.add_argument("--seconds", type=float, default=2.0, help="of each stage")
        if name in ("rejudge", "plant"):
            command.add_argument("--transcript", type=Path, required=True, metavar="FILE")
        if name == "table":
            add_json_option(command)
    options = parser.parse_args()
    unknown = set(options.targets) - {line.name for line in lines()}
    if unknown:
        parser.error(f"unknown target {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    """One sub-command."""
    options = _options()
    return int(options.work(options))


if __name__ == "__main__":
    sys.exit(main())
