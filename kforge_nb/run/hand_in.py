"""A user's own kernel goes the way of every candidate: judged, stored, and added to the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.run.control import Handed
from kforge_nb.run.manual import candidate_from_cell, cell_lines

if TYPE_CHECKING:
    from kforge_nb.run.conductor import Conductor
    from kforge_nb.run.record import Record

__all__ = ["KernelVerdict", "judge_source"]


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """What the judge says about a kernel from a cell, with the cell's own line numbers."""

    target: int
    evaluation: Evaluation

    def __repr__(self) -> str:
        found = self.evaluation
        lines = [f"target {self.target}: {found.verdict}, {cell_lines(found.reason)}"]
        if found.verdict is Verdict.COMPILE_FAILED and found.log.strip() != found.reason.strip():
            lines.append(cell_lines(found.log))
        lines += [
            f"  {t.ratio:.2f}× over {t.against} ({t.low:.2f} to {t.high:.2f}), "
            f"{t.ours_us:.1f} µs against {t.against_us:.1f} µs"
            for t in found.timings
        ]
        return "\n".join(lines)


def judge_source(
    record: Record, conductor: Conductor | None, index: int, source: str
) -> KernelVerdict:
    """Judges a cell's source for one target and waits for the verdict.

    A live search judges it between two of its own candidates; for a run that has ended, a short
    session is opened that judges this one candidate and ends.
    """
    from kforge_nb.run.begin import one_more
    from kforge_nb.run.reload import target_of

    target = target_of(record, index)
    handed = Handed(index, candidate_from_cell(source, target))
    if conductor is not None and conductor.alive:
        conductor.control.hand_in(handed)
        return KernelVerdict(index, handed.result.result())
    return KernelVerdict(index, one_more(record, handed))
