"""One run in its store: what the run thread writes and what every handle reads.

Whatever happens is written here before anything else sees it. The store is ``runs.db`` in a folder
(``.kforge`` beside the notebook unless chosen otherwise); the captured inputs of a run lie in a
folder of its own beside it.
"""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge_nb.store.records import candidate_from_record, candidate_to_record
from kforge_nb.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kforge_nb.candidates.candidate import Candidate
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.search.tree import Node, Tree

__all__ = ["Record", "open_store", "store_folder", "versions"]

DEFAULT_FOLDER = ".kforge"
FILE = "runs.db"
BEAT_S = 5.0


def store_folder(chosen: str | PathLike[str] | None = None) -> Path:
    """Folder of the store: as chosen, or ``.kforge`` in the working folder."""
    return Path(chosen or DEFAULT_FOLDER).expanduser().absolute()


def open_store(chosen: str | PathLike[str] | None = None) -> Store:
    """The store of a folder; runs whose process died are marked as interrupted on the way.

    Raises StoreError when it cannot be opened.
    """
    store = Store(store_folder(chosen) / FILE)
    store.sweep()
    return store


def versions() -> dict[str, str | None]:
    """Versions that a run's figures depend on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("kforge-nb", "torch", "numpy", "transformers", "diffusers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


class Record:
    """The records of one run. Safe to use from several threads."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.id = run_id
        self.folder = store.path.parent / run_id
        self._beaten = 0.0

    @property
    def run(self) -> dict[str, Any]:
        """The run's own record as it is now."""
        return self.store.run(self.id)

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.run["name"])

    def set_state(self, state: str, reason: str = "") -> None:
        """A state transition with its reason; also written to the log of events."""
        with self.store.transaction():
            self.store.update_run(self.id, state=state, state_reason=reason)
            self.store.add_event(self.id, "state", {"state": state, "reason": reason})

    def set_progress(self, **fields: Any) -> None:
        """What the run is doing: phase, judged, budget, seconds, time_limit, eta_s, message."""
        empty = dict.fromkeys(("budget", "seconds", "time_limit", "eta_s"))
        self.store.update_run(
            self.id, progress={**empty, "phase": "", "judged": 0, "message": "", **fields}
        )
        self.beat()

    def set_target(self, index: int, **fields: Any) -> None:
        """State, reason or best node of a target."""
        self.store.update_target(self.id, index, **fields)

    def beat(self) -> None:
        """A sign of life, written at most every few seconds."""
        if time.monotonic() - self._beaten >= BEAT_S:
            self._beaten = time.monotonic()
            self.store.beat(self.id)

    def add_node(
        self,
        node: Node,
        target: int,
        candidate: Candidate,
        evaluation: Evaluation,
        seconds: float,
        cost: Mapping[str, Any] | None = None,
    ) -> None:
        """A judged candidate; on disk when this returns."""
        self.store.add_node(
            self.id,
            node.id,
            target=target,
            parent=node.parent,
            action=node.action,
            candidate=candidate_to_record(candidate),
            evaluation=evaluation.to_document(),
            seconds=seconds,
            cost=cost,
        )

    def replace_evaluation(self, node_id: str, evaluation: Evaluation) -> None:
        """A node's evaluation on fresh samples."""
        self.store.replace_evaluation(self.id, node_id, evaluation.to_document())

    def set_statistics(self, tree: Tree, node_ids: Iterable[str]) -> None:
        """Visits and values of some nodes, as the tree has them now."""
        nodes = [tree[n] for n in node_ids if n in tree]
        self.store.set_statistics(self.id, [(n.id, n.visits, n.value) for n in nodes])

    def candidate(self, node_id: str) -> Candidate:
        """The candidate of a node, read back and checked."""
        return candidate_from_record(self.store.node(self.id, node_id)["candidate"])

    def note(self, kind: str, **record: Any) -> None:
        """An entry in the log of events."""
        self.store.add_event(self.id, kind, record)

    def add_note(self, text: str) -> None:
        """Something to know about the workload, shown with the run."""
        workload = self.run["workload"]
        notes = list(dict.fromkeys([*workload.get("notes", []), text]))
        self.store.update_run(self.id, workload={**workload, "notes": notes})

    def spent(self) -> float:
        """US dollars booked so far."""
        return sum(row["usd"] or 0.0 for row in self.store.costs(self.id))
