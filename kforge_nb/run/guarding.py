"""The guard stage: the winners go into the model on trial, and every target gets its decision.

Kernels that the judge accepted are measured in the live model by :mod:`kforge_nb.guard.decide`;
what it says is stored with its evidence. Targets without an accepted kernel are decided here, in
the words of the search: they stay original.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kforge_nb.run import by_rest
from kforge_nb.run.building import INSTALLABLE, build_for_model
from kforge_nb.run.devices import check_same_gpu
from kforge_nb.run.reload import target_of
from kforge_nb.search.tree import has_host_code
from kforge_nb.targets.document import target_from_document
from kforge_nb.view import words
from kforge_nb.workload.devices import memory_told

if TYPE_CHECKING:
    from kforge_nb.guard.accepted import Accepted
    from kforge_nb.guard.decide import GuardReport
    from kforge_nb.guard.missed import Place
    from kforge_nb.run.conductor import Conductor
    from kforge_nb.run.record import Record
    from kforge_nb.run.work import Work
    from kforge_nb.targets.target import Target

__all__ = ["guard_stage", "installed_kernels", "measured_kernels", "places_of", "winner_of"]


def guard_stage(conductor: Conductor) -> str:
    """Measures, decides and stores; returns the summary in one line.

    Raises Stopped when the run is stopped meanwhile; then no decision is stored.
    """
    winners = {w.index: node for w in conductor.works if (node := winner_of(w)) is not None}
    kernels = {
        work.index: _kernel(conductor.record, work.target, winners[work.index])
        for work in sorted(conductor.works, key=lambda work: work.index)
        if work.index in winners and _installable(work, winners[work.index])
    }
    report = _measure(conductor, list(kernels.values())) if kernels else None
    conductor.control.checkpoint()
    installed = _store(conductor, winners, report)
    _register(conductor, kernels, report)
    total = len(conductor.record.store.targets(conductor.record.id))
    return f"{installed} of {total} targets are replaced"


def installed_kernels(record: Record, rest: str | None = None) -> list[Accepted]:
    """The kernels that the guard decided to install, compiled on this machine (from the cache).

    ``rest`` is how the remaining graph is to run; the kernels are those decided for it, or for the
    nearest rest that was measured (see :mod:`kforge_nb.run.by_rest`). Without one they are those of
    the best rest.

    Raises DocumentError or StoreError when the store is damaged, MissingTool without a compiler (or
    without the GPU), BadInput where the GPU is another one than the run's.
    """
    found = []
    check_same_gpu(record.run["device"])
    decisions = record.store.decisions(record.id)
    chosen = {d["target"] for d in decisions if d["installed"]}
    if rest is not None:
        home = by_rest.decided_for(decisions, record.run["recommendation"], rest)
        chosen = by_rest.targets_of(decisions, home)
    for decision in decisions:
        if decision["target"] in chosen:
            target = target_of(record, decision["target"])
            found.append(_kernel(record, target, decision["node"]))
    return found


def measured_kernels(record: Record) -> list[Accepted]:
    """All kernels that the guard measured, in its order, whatever it decided; raises as above."""
    check_same_gpu(record.run["device"])
    found = []
    for decision in record.store.decisions(record.id):
        node = decision["node"]
        if node is not None and record.candidate(node).language in INSTALLABLE:
            found.append(_kernel(record, target_of(record, decision["target"]), node))
    return found


def places_of(record: Record) -> list[Place]:
    """Where all targets of a run stand in graphs, also those without a kernel.

    Raises DocumentError when the store is damaged.
    """
    from kforge_nb.guard.missed import Place

    found = []
    for row in record.store.targets(record.id):
        target = target_from_document(row["files"]["document"]) if row["files"] else None
        graph, inputs = (target.graph, target.inputs) if target else (None, ())
        found.append(Place.of(row["fingerprint"], graph, inputs))
    return found


def winner_of(work: Work) -> str | None:
    """The node whose gain was confirmed on fresh samples, if there is one."""
    node_id = work.confirmed
    return node_id if node_id is not None and work.accepted(node_id) else None


def _kernel(record: Record, target: Target, node_id: str) -> Accepted:
    from kforge_nb.guard.accepted import Accepted

    evidence = record.store.node(record.id, node_id)["evaluation"]
    candidate = record.candidate(node_id)
    library = build_for_model(candidate, target)
    layout = record.run["workload"].get("layout", "keep")
    return Accepted.of_target(target, candidate, library, evidence, layout)


def _installable(work: Work, node_id: str) -> bool:
    """Whether the launch op runs it; a torch extension with host code it does not."""
    return work.candidate(node_id).language in INSTALLABLE


def _measure(conductor: Conductor, kernels: list[Accepted]) -> GuardReport:
    """Measures in the live model; the user is told, since it may slow other cells down."""
    from kforge_nb.guard.decide import decide

    workload, options = conductor.workload, conductor.options
    if workload is None:
        raise ValueError("the guard needs the workload")
    with memory_told("measuring the model with and without its kernels"):
        return decide(
            workload,
            kernels,
            options.rest,
            lambda text, _share: conductor.say("guarding", text),
            stop=conductor.control.stop,
            time_limit=options.guard_time,
            against_compile=options.baseline == "compile",
            seed=options.seed,
        )


def _store(conductor: Conductor, winners: dict[int, str], report: GuardReport | None) -> int:
    """All decisions in one transaction; how many kernels are installed."""
    record, store = conductor.record, conductor.record.store
    found = {d.target_fingerprint: d for d in report.decisions} if report else {}
    verdicts = {work.index: _verdicts(work) for work in conductor.works}
    barred = {work.index: _host_code(work) for work in conductor.works}
    installed = 0
    with store.transaction():
        store.clear_decisions(record.id)
        for row in store.targets(record.id):
            said = (verdicts.get(row["index"], ""), barred.get(row["index"], ""))
            decision = _decision(row, winners, found, said)
            installed += decision["installed"]
            store.set_decision(record.id, row["index"], decision)
        if report is not None:
            data = report.to_document()
            workload = record.run["workload"]
            notes = list(dict.fromkeys([*workload.get("notes", []), *data["notes"]]))
            store.set_whole(record.id, data["whole"])
            store.update_run(
                record.id,
                fidelity=data["fidelity"],
                recommendation=data["recommendation"],
                counters=None,  # of kernels that an earlier decision had installed
                workload={**workload, "notes": notes},
            )
    return installed


def _register(
    conductor: Conductor, kernels: dict[int, Accepted], report: GuardReport | None
) -> None:
    """Installed kernels are kept for ``torch.compile(backend="kforge")`` in later scripts.

    Their evidence says which of the measured rests install them.
    """
    from kforge_nb.guard.registry import Registry

    registry = Registry()
    found = report.by_rest if report else {}
    for work in conductor.works:
        if work.index not in kernels:
            continue
        rests = {rest: work.target.fingerprint in installed for rest, installed in found.items()}
        if any(rests.values()):
            kernel = kernels[work.index]
            evidence = {**kernel.evidence, "rests": rests}
            registry.add(replace(kernel, evidence=evidence), work.target.captured)


def _verdicts(work: Work) -> str:
    """Why a target without a winner has none: what became of its candidates.

    Those that the search accepted were timed again, the best first, and did not hold up: with so
    many tries some look fast by chance.
    """
    counts = Counter(str(n.evaluation.verdict) for n in work.tree if n.evaluation)
    accepted = counts.pop("accepted", 0)
    rest = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    if not accepted:
        return f"no candidate was accepted ({rest or 'none judged'}"
    were = words.count(accepted, "candidate") + (" was" if accepted == 1 else " were")
    others = f"the others: {rest}" if rest else "no others"
    return (
        f"{were} accepted in the search, none was confirmed when the best were timed again in "
        f"other processes ({others}"
    )


def _host_code(work: Work) -> str:
    """What is said of accepted torch extensions, which are never installed; else nothing."""
    fast = [n.id for n in work.tree if work.accepted(n.id) and has_host_code(n)]
    if not fast:
        return ""
    best = max(fast, key=work.speedup)
    return (
        f"host code is not installed ({best}, a torch extension, was accepted at "
        f"{work.speedup(best):.2f} times eager's speed): only kernels with a launch plan are, so "
        "write its device code as one; its source is in the run"
    )


def _decision(
    row: dict[str, Any], winners: dict[int, str], found: dict[str, Any], said: tuple[str, str]
) -> dict[str, Any]:
    """One decision as in the run document; ``said``: of the candidates, and of host code."""
    verdicts, host_code = said
    index, decided = row["index"], found.get(row["fingerprint"])
    base = {"target": index, "fingerprint": row["fingerprint"], "node": winners.get(index)}
    if decided is None:
        why = row["record"].get("state_reason") or "not searched"
        reason = f"kept original: {verdicts or 'no candidate was accepted (none judged'}; {why})"
        if row["record"].get("state") == "skipped":
            reason = f"kept original: {why}"
        elif host_code:
            reason = f"kept original: {host_code}"
        empty = dict.fromkeys(("isolated", "in_model", "fidelity"))
        return {**base, **empty, "installed": False, "reason": reason}
    return {**decided.to_document(), **base}
