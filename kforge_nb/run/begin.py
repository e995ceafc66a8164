"""How runs begin and go on: profile, choose, store, start the thread."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge_nb.backends import check_backend, unfit
from kforge_nb.errors import BadInput, KForgeError
from kforge_nb.options import OptimizeOptions
from kforge_nb.run import live, reload
from kforge_nb.run.by_rest import installs_any
from kforge_nb.run.choice import Choice, choose_targets, trusted_headroom
from kforge_nb.run.conductor import Conductor
from kforge_nb.run.devices import (
    device_of_targets,
    device_of_workload,
    elsewhere,
    tool_notes,
)
from kforge_nb.run.dry import DryRun, dry_run
from kforge_nb.run.guarding import winner_of
from kforge_nb.run.handle import Run
from kforge_nb.run.record import Record, open_store, versions
from kforge_nb.run.source import StoreSource
from kforge_nb.run.tools import make_tools
from kforge_nb.run.work import Work
from kforge_nb.search.tree import Tree
from kforge_nb.store.records import check_name
from kforge_nb.targets.document import target_to_document

if TYPE_CHECKING:
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.profile.table import Profile
    from kforge_nb.run.control import Handed
    from kforge_nb.store.store import Store
    from kforge_nb.targets.target import Target

__all__ = ["begin", "go_on", "one_more"]


PROFILE_S = 2.0
"""Seconds for timing the targets: enough to rank them; the judge measures properly later."""


def begin(fn: Callable[[], Any], options: OptimizeOptions) -> Run | DryRun:
    """Profiles the workload on this thread, then starts the run's own thread and returns."""
    from kforge_nb.profile.profile import profile
    from kforge_nb.run.gradients import refuse_gradients
    from kforge_nb.workload.capture import capture_graphs, watch

    _check_backend(options)
    if options.budget == 0 and options.proposer != "manual":
        raise BadInput(
            "--budget 0 lets no candidate be judged, so nothing could be found; give at least 1, "
            "or --proposer manual to judge kernels of your own only"
        )
    if options.recording is not None:  # a resume may come from another folder
        recording = str(Path(options.recording).expanduser().absolute())
        options = replace(options, recording=recording)
    store = None if options.dry_run else open_store(options.store)
    if store is not None and options.name is not None:
        _check_free(store, options.name)
    workload = watch(fn)
    device = device_of_workload(workload)
    _check_backend(options, {device})
    tools = make_tools(options, device)
    for text in tool_notes(device):
        workload.note(text)
    if store is not None and (others := live.beside()):
        workload.note(f"when this run began, others were alive: {others}")
    refuse_gradients(capture_graphs(workload))
    profiled = profile(
        workload,
        granularity=options.granularity,
        seconds=PROFILE_S,
        layout=options.layout,
    )
    targets = {row.index: row.target for row in profiled.rows}
    choices = choose_targets(
        profiled.rows,
        options,
        lambda index: (
            elsewhere(targets[index], device)
            or unfit(options.backend, device)
            or tools.proposer.supports(targets[index])
        ),
        rough=bool(profiled.device.get("calibrated_busy")),
    )
    device_facts = {**tools.device, **_limits_of(profiled)}
    if store is None:
        return dry_run(profiled, choices, options, device_facts)
    record, works = _write_down(store, profiled, choices, options, device_facts)
    conductor = Conductor(record, works, options, profiled.workload, tools)
    conductor.start()
    run = Run(StoreSource(record))
    return run.wait() if options.wait else run


def go_on(run: Run, fn: Callable[[], Any] | None) -> Run:
    """Goes on with a run where it was left; see :func:`kforge_nb.resume`."""
    record = run.record
    conductor = live.find(record.id)
    if conductor is not None:
        conductor.control.resume()
        return run
    works = reload.works_of(record)
    if record.run["state"] == "done":
        _check_news(record, works)
    options = OptimizeOptions.of(record.run["options"])
    tools = make_tools(options, device_of_targets(work.target for work in works))
    record.store.claim(record.id)
    layout = record.run["workload"].get("layout", "keep")
    workload = run.workload if fn is None else reload.watch_again(fn, works, layout)
    before = float(record.store.entry(record.id, "seconds", 0.0))
    Conductor(record, works, options, workload, tools, before).start()
    return run


def one_more(record: Record, handed: Handed, allow_host_code: bool = False) -> Evaluation:
    """Judges one candidate of a run that has ended, and ends again in the state it was in."""
    stored = record.run["options"]
    allowed = allow_host_code or stored.get("allow_host_code", False)
    given = {"budget": 0, "allow_host_code": allowed, "proposer": "manual"}  # nothing is proposed
    options = OptimizeOptions.of({**stored, **given})
    before = record.run
    works = reload.works_of(record)
    if handed.target not in {work.index for work in works}:
        raise BadInput(f"target {handed.target} of run {before['name']} was not taken for search")
    tools = make_tools(options, device_of_targets(work.target for work in works))
    record.store.claim(record.id)
    conductor = Conductor(record, works, options, None, tools)
    return conductor.judge_one(handed, before["state"], before["state_reason"])


def _check_news(record: Record, works: list[Work]) -> None:
    """BadInput for a run that is done, unless a kernel from a cell has become a winner since."""
    decided = {d["target"]: d["node"] for d in record.store.decisions(record.id)}
    if any(winner_of(work) != decided.get(work.index) for work in works):
        return
    installs = any(map(installs_any, record.store.decisions(record.id)))
    what = "run.apply() puts its kernels into the model" if installs else "it installs no kernel"
    raise BadInput(
        f"run {record.name} is done, so there is nothing to go on with; {what}, and a new "
        "%%kforge optimize with a larger --budget searches on"
    )


def _check_backend(options: OptimizeOptions, devices: Collection[str] = ()) -> None:
    import torch

    check_backend(
        options.backend,
        gpu=torch.cuda.is_available(),
        allow_host_code=options.allow_host_code,
        proposer=options.proposer,
        devices=devices,
    )


def _check_free(store: Store, name: str) -> None:
    check_name(name)
    if any(run["name"] == name for run in store.runs()):
        raise BadInput(
            f"a run named {name!r} exists in {store.path.parent}; choose another --name, or go on "
            f"with it by %kforge resume {name}"
        )


def _write_down(
    store: Store,
    profiled: Profile,
    choices: list[Choice],
    options: OptimizeOptions,
    device: dict[str, Any],
) -> tuple[Record, list[Work]]:
    """The run, its targets and their inputs on disk; the works of the targets taken."""
    data = profiled.to_document()
    run_id = store.create_run(
        options.name,
        options=options.to_document(),
        device=device,
        versions=versions(),
        workload=data["workload"],
    )
    record = Record(store, run_id)
    rows = {row.index: row for row in profiled.rows}
    documents = {row["index"]: row for row in data["targets"]}
    works = []
    for choice in choices:
        work = _add_target(record, rows[choice.index], documents[choice.index], choice)
        if work is not None:
            work.rough = bool(device.get("calibrated_busy"))
            works.append(work)
    return record, works


def _limits_of(profiled: Profile) -> dict[str, Any]:
    """The limits that the profile's rooflines come from; a moment later they may be better ones."""
    names = ("bandwidth_gbs", "flops_gflops", "calibrated_busy")
    return {name: profiled.device[name] for name in names if name in profiled.device}


def _written(target: Target, folder: Path) -> dict[str, Any]:
    """The target's document, its inputs in ``folder``; a GPU's memory is given back."""
    document = target_to_document(target, folder)
    if target.captured is not None and target.device != "cpu":
        target.captured.leave_in(folder / document["captured"])
    return document


def _add_target(record: Record, row: Any, document: dict[str, Any], choice: Choice) -> Work | None:
    """Stores one target; its work, unless it is skipped (or cannot be written down)."""
    files: dict[str, Any] = {}
    state, reason = ("waiting", "") if choice.taken else ("skipped", choice.reason)
    if choice.taken:
        try:
            files = {"document": _written(row.target, record.folder / "inputs")}
        except KForgeError as error:
            state, reason = "skipped", str(error)
    entry = {**document, "state": state, "state_reason": reason, "best": None}
    record.store.add_target(record.id, row.index, entry, files)
    if state == "skipped":
        return None
    return Work(
        row.index,
        row.target,
        Tree(row.index),
        record,
        share=row.share or 0.0,
        headroom=trusted_headroom(row),
        mean_us=row.mean_us,
        roofline_us=row.roofline_us,
    )
