"""A run read back from its store: targets, trees and where each stood."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput
from kforge_nb.run.choice import Times, trusted_headroom
from kforge_nb.run.wishes import BY_USER
from kforge_nb.run.work import Work
from kforge_nb.search.tree import Tree
from kforge_nb.targets.document import target_from_document

if TYPE_CHECKING:
    from kforge_nb.run.record import Record
    from kforge_nb.targets.target import Target
    from kforge_nb.workload.capture import Workload

__all__ = ["target_of", "watch_again", "works_of"]


def works_of(record: Record) -> list[Work]:
    """The works of a run as far as its store knows them; finished evaluations are all there.

    Raises DocumentError when the store holds something that cannot be a target or a tree.
    """
    return [_work(record, row) for row in record.store.targets(record.id) if row["files"]]


def target_of(record: Record, index: int) -> Target:
    """One target of a run; BadInput when it has none of that index."""
    for row in record.store.targets(record.id):
        if row["index"] == index:
            if not row["files"]:
                why = row["record"].get("state_reason") or "it was skipped"
                raise BadInput(f"target {index} is not searched by run {record.name}: {why}")
            return _target(record, row)
    known = [row["index"] for row in record.store.targets(record.id)]
    raise BadInput(f"run {record.name} has no target {index}; it has {known}")


def watch_again(fn: Callable[[], Any], works: list[Work], layout: str = "keep") -> Workload:
    """The workload of a resumed run, laid out as it was, made sure to contain the run's targets.

    Raises BadInput when not one of them occurs in it, or a gradient is needed everywhere.
    """
    from kforge_nb.profile.layout import lay_out_graphs
    from kforge_nb.run.gradients import refuse_gradients
    from kforge_nb.targets.partition import cut
    from kforge_nb.workload.capture import capture_graphs, watch

    workload = capture_graphs(watch(fn))
    refuse_gradients(workload)
    if layout == "channels_last":
        lay_out_graphs(workload)
    wanted = {work.target.fingerprint for work in works}
    granularities = {work.target.granularity for work in works}
    found = {
        piece.fingerprint
        for graph in workload.graphs
        for granularity in granularities
        for piece in cut(graph.gm, graph.example_inputs, granularity)
    }
    if wanted and not wanted & found:
        raise BadInput(
            "none of the run's targets occurs in this workload; give the cell (or function) that "
            "the run was started with, with inputs of the same shapes"
        )
    return workload


def _target(record: Record, row: dict[str, Any]) -> Target:
    return target_from_document(row["files"]["document"], record.folder / "inputs")


def _work(record: Record, row: dict[str, Any]) -> Work:
    entry, index = row["record"], row["index"]
    state = entry.get("state", "waiting")
    mean, roofline = entry.get("mean_us"), entry.get("roofline_us")
    return Work(
        index,
        _target(record, row),
        Tree.restore(index, record.store.nodes(record.id, index)),
        record,
        share=entry.get("share") or 0.0,
        headroom=trusted_headroom(Times(mean, roofline)),
        rough=bool(record.run["device"].get("calibrated_busy")),
        mean_us=mean,
        roofline_us=roofline,
        state=state,
        reason=entry.get("state_reason", ""),
        confirmed=entry.get("best") if state == "done" else None,
        paused=bool(entry.get("paused")),
        ending=BY_USER if entry.get("stopping") else "",
    )
