"""A user's own kernel goes the way of every candidate: judged, stored, and added to the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge_nb.backends import check_backend, language_of
from kforge_nb.errors import BadInput
from kforge_nb.judge.evaluation import Evaluation, Verdict
from kforge_nb.run.control import Handed
from kforge_nb.run.manual import candidate_from_cell, cell_lines
from kforge_nb.run.naming import Called, which_target
from kforge_nb.view import words

if TYPE_CHECKING:
    from kforge_nb.run.conductor import Conductor
    from kforge_nb.run.record import Record

__all__ = ["KernelVerdict", "judge_source"]


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """What the judge says about a kernel from a cell, with the cell's own line numbers.

    ``run`` is the name of the run whose ``target`` it computes, and ``ended`` whether that run had
    ended before, so that it has to go on for the guard to decide about this kernel.
    """

    target: int
    evaluation: Evaluation
    run: str
    ended: bool = False

    def __repr__(self) -> str:
        found = self.evaluation
        lines = [
            f"run {self.run}, target {self.target}: {found.verdict}, {cell_lines(found.reason)}"
        ]
        if found.verdict is Verdict.COMPILE_FAILED and found.log.strip() != found.reason.strip():
            lines.append(cell_lines(found.log))
        lines += [
            f"  {words.ratio(t.ratio)} over {t.against} ({words.interval(t.low, t.high)}), "
            f"{words.time(t.ours_us)} against {words.time(t.against_us)}"
            for t in found.timings
        ]
        if self.ended and found.verdict is Verdict.ACCEPTED:
            lines.append(
                f"not in the model yet: where it is its target's best, %kforge resume {self.run} "
                "times it again and measures it there"
            )
        return "\n".join(lines)


def judge_source(
    record: Record,
    conductor: Conductor | None,
    asked: int | str,
    source: str,
    *,
    parent: str | None = None,
    backend: str = "auto",
    allow_host_code: bool = False,
) -> KernelVerdict:
    """Judges a cell's source for one target and waits for the verdict.

    ``parent`` is the node that the kernel was made from. A live search judges it between two of its
    own candidates; for a run that has ended, a short session is opened that judges this one and
    ends.

    Raises BadInput or MissingTool where the backend does not fit the target or this machine, or
    builds host code and that is not allowed, or where the target has no such parent.
    """
    import torch

    from kforge_nb.run.begin import one_more
    from kforge_nb.run.reload import target_of

    index = asked if isinstance(asked, int) else which_target(asked, _called(record), record.name)
    target = target_of(record, index)
    gpu, devices = torch.cuda.is_available(), (target.device,)
    check_backend(backend, gpu=gpu, allow_host_code=allow_host_code, devices=devices)
    language = language_of(backend, target.device)
    if parent is not None:
        _check_parent(record, index, parent)
    handed = Handed(index, candidate_from_cell(source, target, language), parent)
    if conductor is None or not conductor.alive:
        return KernelVerdict(index, one_more(record, handed, allow_host_code), record.name, True)
    if language == "cuda_extension" and not conductor.options.allow_host_code:
        raise BadInput(
            f"run {record.name} is searching and was begun without --allow-host-code: wait until "
            f"it has ended (%kforge wait {record.name}), or begin it with that option"
        )
    conductor.control.hand_in(handed)
    return KernelVerdict(index, handed.result.result(), record.name)


def _called(record: Record) -> list[Called]:
    """The names of the targets that the run searches."""
    rows = [
        (r["index"], r["record"], r["fingerprint"])
        for r in record.store.targets(record.id)
        if r["files"]
    ]
    return [Called(i, str(r["name"]), str(r["family"]), str(digits)) for i, r, digits in rows]


def _check_parent(record: Record, index: int, parent: str) -> None:
    """BadInput where the target has no node of that id."""
    known = [node["id"] for node in record.store.nodes(record.id, index)]
    if parent not in known:
        listing = f"{', '.join(known[-8:])}" if known else "none yet"
        raise BadInput(
            f"target {index} of run {record.name} has no node {parent!r}; its last are: {listing}"
        )
