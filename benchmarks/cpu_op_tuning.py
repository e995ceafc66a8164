"""Picks the parameters with which a CPU recipe stands in the table, as a run's search would.

Single changes of the best guess are timed side by side in one process, then mixtures of the changes
that gained, then the quickest few once more with fresh samples. What is picked here is timed anew,
in other processes, before it is reported: a figure that won a contest is flattered by chance.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.parameter_sets import mixtures, single_changes
from benchmarks.timing import interleave

if TYPE_CHECKING:
    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.targets.target import Target

__all__ = ["emit", "pick"]

FINALISTS = 3
Params = dict[str, Any]
Launcher = Callable[["Candidate", Path], Callable[[], Any]]


def _first_family(target: Target) -> tuple[Any, Any]:
    """The tuned family that knows the target, or the generator.

    Raises:
        RuntimeError: no family knows it.
    """
    from kforge_nb.candidates.recipes.families import tuned_families
    from kforge_nb.candidates.recipes.generator import GENERATOR

    for family in (*tuned_families(), GENERATOR):
        match = family.match(target)
        if match is not None:
            return family, match
    raise RuntimeError(f"no recipe for {target.name}")


def emit(target: Target, params: Params | None = None) -> Candidate:
    """The recipe's candidate for these parameters; without any, its best guess."""
    family, match = _first_family(target)
    return family.emit(match, single_changes(family, match)[0] if params is None else params)


def pick(target: Target, launcher: Launcher, tries: int, seconds: float) -> Params:
    """The quickest parameters of at most ``tries`` single changes and their mixtures.

    Args:
        target: what is computed.
        launcher: builds a candidate in a folder and gives a call without arguments.
        tries: parameter sets that are built first; 1 takes the best guess untimed.
        seconds: of timing in each of the three stages.
    """
    family, match = _first_family(target)
    sets = single_changes(family, match)[: max(1, tries)]
    if len(sets) == 1:
        return sets[0]
    with tempfile.TemporaryDirectory() as folder:
        timed = _timed(family, match, sets, launcher, Path(folder), seconds)
        more = mixtures(sets[0], timed, timed[0][0])
        timed += _timed(family, match, [sets[0], *more], launcher, Path(folder), seconds)[1:]
        best = sorted(timed, key=lambda entry: entry[0])[:FINALISTS]
        last = [params for _, params in best if params != sets[0]]
        final = _timed(family, match, [sets[0], *last], launcher, Path(folder), seconds)
    return min(final, key=lambda entry: entry[0])[1]


def _timed(
    family: Any,
    match: Any,
    sets: list[Params],
    launcher: Launcher,
    folder: Path,
    seconds: float,
) -> list[tuple[float, Params]]:
    """Median seconds of each set relative to the first in the same round; sets in order.

    Relative, so that figures of different stages can stand side by side.
    """
    with ThreadPoolExecutor(2) as pool:
        calls = list(pool.map(lambda p: launcher(family.emit(match, p), folder), sets))
    samples = interleave({str(i): call for i, call in enumerate(calls)}, seconds=seconds, least=7)
    first = samples["0"]
    return [
        (statistics.median(s / f for s, f in zip(samples[str(i)], first, strict=True)), params)
        for i, params in enumerate(sets)
    ]
