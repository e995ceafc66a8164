"""How often honest kernels are called wrong: the correctness stage alone, over many secret seeds.

Every honest candidate of ``tests/honest``, every CPU recipe, the generator's kernels for the same
operators and for those of its own tests, and the kernels of a delta rule go through the stage in
which a candidate is checked, each time with values that were drawn anew. One *judging* is one
candidate on all input sets of one draw. Nothing is timed, so this may run on a busy machine::

    python -m benchmarks.judge --refusals 20 --json

A refusal is a mistake of the judge, or of the kernel: the row names the input set, the element
and what eager and float64 have there, so that it can be told which.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import measure_row
from kforge_nb.candidates.candidate import Candidate
from kforge_nb.candidates.plan import resolve, validate
from kforge_nb.judge.cases import secret_generator
from kforge_nb.judge.judge import Judge
from kforge_nb.judge.runner_handle import RunnerFailed
from kforge_nb.judge.slots import TimedInputs
from kforge_nb.settings import Settings
from kforge_nb.targets.target import Target

__all__ = ["LEAST", "Task", "honest_tasks", "refusal_rows", "refused"]

LEAST = 1500
"""Judgings below which a survey without a refusal says little."""
_DTYPES = ("float32", "bfloat16", "float16")
_CALL_SECONDS = 20.0
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Task:
    """One target and the honest candidates for it; ``group`` says where they come from."""

    group: str
    name: str
    target: Target
    candidates: dict[str, Candidate]


@dataclass(slots=True)
class _Found:
    """What came of one group."""

    judgings: int = 0
    sets: int = 0
    refused: int = 0
    where: Counter[tuple[str, str]] = field(default_factory=Counter)
    shown: list[dict[str, Any]] = field(default_factory=list)


def honest_tasks() -> Iterator[Task]:
    """Every target of the survey, one after another (they are not all held at once)."""
    yield from _styles()
    yield from _recipes()
    yield from _deltas()
    yield from _regions()


def _styles() -> Iterator[Task]:
    """The gallery of honest styles, in single and in half precision."""
    import torch

    from tests.honest import test_cpp, test_half
    from tests.judge.kernels import candidate, target_of

    for task, (function, shape, family) in test_cpp.TARGETS.items():
        torch.manual_seed(4)
        mine = {n: candidate(s, p, n) for n, (t, s, p) in test_cpp.CASES.items() if t == task}
        target = target_of(function, torch.randn(*shape), family=family)
        yield Task("honest styles", task, target, mine)
    for kind in dict.fromkeys((task, dtype) for task, dtype, _, _ in test_half.CASES.values()):
        mine = {
            n: candidate(s, p, n) for n, (t, d, s, p) in test_half.CASES.items() if (t, d) == kind
        }
        yield Task("honest styles in half precision", str(kind), test_half.target(*kind), mine)


def _recipes() -> Iterator[Task]:
    """Tuned families and the generator on every operator that the recipes' tests know."""
    import torch

    from tests.helpers import make_target
    from tests.recipes.cases import CASES, inputs_of

    for name, (_, function, _) in CASES.items():
        for dtype in _DTYPES:
            target = make_target(function, *inputs_of(name, getattr(torch, dtype)))
            yield Task("recipes", f"{name} {dtype}", target, _written(target))


def _written(target: Target) -> dict[str, Candidate]:
    """What the first tuned family and the generator write for a target, where they take it."""
    from kforge_nb.candidates.recipes.families import tuned_families
    from kforge_nb.candidates.recipes.family import default_params
    from kforge_nb.candidates.recipes.generator import GENERATOR

    found: dict[str, Candidate] = {}
    for title, families in (("recipe", tuned_families()), ("generated", (GENERATOR,))):
        for family in families:
            match = family.match(target)
            if match is not None:
                found[title] = family.emit(match, default_params(family, match))
                break
    return found


def _deltas() -> Iterator[Task]:
    """Recurrences, by chunks and by tokens."""
    import torch

    from kforge_nb.candidates.recipes.families.delta_rule import CpuDeltaRule
    from kforge_nb.candidates.recipes.family import default_params
    from tests.recipes.delta import by_chunks, by_tokens, delta_inputs, delta_target

    family: Any = CpuDeltaRule()
    for function, sizes, dtype, more in (
        (by_chunks, (1, 40, 2, 4, 32, 32), torch.float32, {}),
        (by_chunks, (2, 21, 3, 3, 24, 16), torch.bfloat16, {"turned": True}),
        (by_chunks, (1, 19, 1, 2, 16, 64), torch.float16, {"state": True}),
        (by_tokens, (2, 1, 2, 4, 32, 64), torch.bfloat16, {"state": True}),
        (by_tokens, (1, 13, 1, 1, 16, 16), torch.float32, {"state": True}),
    ):
        inputs = delta_inputs(*sizes, dtype=dtype, **more)
        target = delta_target(function, inputs)
        match = family.match(target)
        assert match is not None
        written = {"recipe": family.emit(match, default_params(family, match))}
        yield Task("delta rules", f"{function.__name__} {sizes}", target, written)


def _regions() -> Iterator[Task]:
    """The generator on the regions of its own tests; one thread's sums are the longest."""
    from tests.candidates.test_generator import CASES, generated
    from tests.helpers import make_target

    for name, (fn, inputs) in CASES.items():
        function: Any = fn
        target = make_target(function, *inputs)
        yield Task("regions", name, target, {"generated": generated(target)})


def refusal_rows(seeds: int, tasks: Iterable[Task] | None = None) -> list[dict[str, Any]]:
    """A row for each group: how many of its judgings were refused, and where.

    Args:
        seeds: draws of input sets for each target.
        tasks: all of :func:`honest_tasks` if not given.
    """
    found: dict[str, _Found] = {}
    with (
        tempfile.TemporaryDirectory(prefix="kforge-bench-") as folder,
        Judge(Settings(threads=1), Path(folder)) as judge,
    ):
        for task in honest_tasks() if tasks is None else tasks:
            _survey(judge, task, seeds, found.setdefault(task.group, _Found()))
    return [
        measure_row(
            f"refusals: {group}", one.refused, "refused", n=one.judgings, sets=one.sets,
            where={f"{who} on {case}": times for (who, case), times in one.where.items()},
            shown=one.shown,
        )
        for group, one in found.items()
    ]  # fmt: skip


def _survey(judge: Judge, task: Task, seeds: int, found: _Found) -> None:
    """Check every candidate of a target in a runner of its own, on the same draws."""
    place, target = judge.place("cpu"), task.target
    seen = target.captured.sets()[0] if target.captured is not None else []
    slots = TimedInputs(target.inputs, seen, secret_generator(), most=3)
    with ExitStack() as stack:
        stack.callback(slots.close)
        loaded = {}
        for name, candidate in task.candidates.items():
            validate(candidate.plan, "cpp", target.inputs, target.outputs)
            plan = resolve(candidate.plan, target.inputs, target.outputs)
            started = place.start(target, plan, place.build(candidate), slots, _CALL_SECONDS)
            loaded[name] = stack.enter_context(started)
            place.load(loaded[name])
        for _ in range(seeds):
            cases = place.cases(target)
            found.sets += len(cases)
            for name, one in loaded.items():
                found.judgings += 1
                wrong = [row for case in cases if (row := _checked(one, case)) is not None]
                found.refused += bool(wrong)
                for row in wrong:
                    found.where[f"{task.name}: {name}", row["input_set"]] += 1
                    if len(found.shown) < _SHOWN:
                        found.shown.append({"candidate": f"{task.name}: {name}", **row})


def _checked(loaded: Any, case: Any) -> dict[str, Any] | None:
    """What is wrong on one input set, with its worst element; None where nothing is."""
    try:
        checked = loaded.check([case])
    except RunnerFailed as end:
        return {"input_set": case.name, "words": end.reason}
    if checked.wrong is None:
        return None
    return {"input_set": case.name, "words": checked.wrong, "worst": checked.mismatches[:1]}


def refused(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Groups of which something was refused, in words."""
    return [
        f"{row['name']}: none may be, and it is {row['value']} of {row['n']}"
        for row in rows
        if row["name"].startswith("refusals: ") and row["value"]
    ]
