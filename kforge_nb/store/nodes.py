"""Targets of a run, and the nodes of their trees, as plain records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from sqlite3 import Row
from typing import Any

from kforge_nb.errors import StoreError
from kforge_nb.judge.evaluation import Verdict
from kforge_nb.store.base import insert
from kforge_nb.store.log import LogRecords
from kforge_nb.store.records import dump, load, now

__all__ = ["NodeRecords"]

_NODE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_ACTIONS = frozenset({"draft", "repair", "optimise", "restart"})
_VERDICTS = frozenset(map(str, Verdict))
_LANGUAGES = frozenset({"cpp", "cuda", "cuda_extension"})
_TARGET_STATES = frozenset({"waiting", "searching", "done", "skipped", "failed", "stopped"})
_GRANULARITIES = frozenset({"op", "module", "region"})


class NodeRecords(LogRecords):
    """Records of targets and nodes."""

    def add_target(
        self,
        run: str,
        index: int,
        record: Mapping[str, Any],
        files: Mapping[str, Any] | None = None,
    ) -> None:
        """A target of a run, or its newer record.

        Args:
            run: Id of the run.
            index: The target's index in the run.
            record: As in ``targets`` of the run document (the index may be left out).
            files: What is needed to build the target again: its document, folder of inputs, ….
        """
        _check(record, state=_TARGET_STATES, granularity=_GRANULARITIES)
        if index < 0:
            raise StoreError(f"a target's index must not be negative, this one is {index}")
        with self.database.write() as c:
            self._must_exist(c, run)
            values = (run, index, str(record["fingerprint"]), dump(record), dump(files or {}))
            c.execute(
                "INSERT INTO targets VALUES (?, ?, ?, ?, ?) ON CONFLICT (run, idx) DO UPDATE SET "
                "fingerprint = excluded.fingerprint, record = excluded.record, "
                "files = excluded.files",
                values,
            )

    def update_target(self, run: str, index: int, **fields: Any) -> None:
        """Set some fields of a target's record (state, state_reason, best, …)."""
        with self.database.write() as c:
            row = self._target(run, index)
            record = {**load(row["record"]), **fields}
            _check(record, state=_TARGET_STATES, granularity=_GRANULARITIES)
            columns = {"record": dump(record), "fingerprint": str(record["fingerprint"])}
            self._update("targets", columns, "run = ? AND idx = ?", (run, index), "")
            self._touch(c, run)

    def target(self, run: str, index: int) -> dict[str, Any]:
        """``{"index", "fingerprint", "record", "files"}`` of one target.

        Raises:
            StoreError: No such target.
        """
        return _target_of(self._target(run, index))

    def targets(self, run: str, *, files: bool = True) -> list[dict[str, Any]]:
        """All targets of a run by index; without ``files``, which may be long, if so wished."""
        columns = "idx, fingerprint, record" + (", files" if files else "")
        query = f"SELECT {columns} FROM targets WHERE run = ? ORDER BY idx"  # noqa: S608
        return [_target_of(r) for r in self._rows(query, run)]

    def _target(self, run: str, index: int) -> dict[str, Any]:
        found = self._rows("SELECT * FROM targets WHERE run = ? AND idx = ?", run, index)
        if not found:
            raise StoreError(f"run {run!r} has no target {index}")
        return found[0]

    def add_node(
        self,
        run: str,
        node: str,
        *,
        target: int,
        parent: str | None,
        action: str,
        candidate: Mapping[str, Any],
        evaluation: Mapping[str, Any],
        seconds: float = 0.0,
        visits: int = 1,
        value: float | None = None,
        cost: Mapping[str, Any] | None = None,
    ) -> None:
        """A finished node. When this returns, it is on disk and survives kill -9.

        Args:
            run: Id of the run.
            node: Id of the node, ``"TARGET.NUMBER"``.
            target: Index of its target, which was added before.
            parent: Id of its parent, which was added before; None for a draft.
            action: ``draft``, ``repair``, ``optimise`` or ``restart``.
            candidate: See :func:`kforge_nb.store.records.candidate_to_record`.
            evaluation: See ``Evaluation.to_document``.
            seconds: Proposing and judging, wall clock.
            visits: As in the tree; see :meth:`set_statistics`.
            value: As in the tree.
            cost: Booked with the node in the same transaction; see :meth:`add_cost`.

        Raises:
            StoreError: The node exists, or its target or parent does not.
        """
        _check(candidate, language=_LANGUAGES)
        _check(
            {"verdict": "", **evaluation, "action": action or ""},
            action=_ACTIONS,
            verdict=_VERDICTS,
        )
        columns = {"run": run, "id": node, "target": target, "number": _number(node, target)}
        columns |= {"parent": parent, "action": action, "seconds": float(seconds)}
        columns |= {"visits": int(visits), "value": value, "created": now()}
        with self.database.write() as c:
            if c.execute("SELECT 1 FROM nodes WHERE run = ? AND id = ?", (run, node)).fetchone():
                raise StoreError(f"run {run!r} already holds a node {node!r}")
            columns |= self._candidate_columns(candidate) | self._evaluation_columns(evaluation)
            self._touch(c, run)
            insert(c, "nodes", columns)
            if cost is not None:
                self.add_cost(run, target=target, node=node, **cost)

    def replace_evaluation(self, run: str, node: str, evaluation: Mapping[str, Any]) -> None:
        """Put the evaluation on fresh samples (confirmation) in place of the first one."""
        _check({"verdict": "", **evaluation}, verdict=_VERDICTS)
        with self.database.write() as c:
            columns = self._evaluation_columns(evaluation)
            where = "run = ? AND id = ?"
            self._update("nodes", columns, where, (run, node), f"no node {node!r} in run {run!r}")
            self._touch(c, run)

    def _candidate_columns(self, candidate: Mapping[str, Any]) -> dict[str, Any]:
        rest = {k: v for k, v in candidate.items() if k != "source"}
        source = self.put_blob(str(candidate.get("source", "")))
        return {"digest": str(rest.get("digest", "")), "candidate": dump(rest), "source": source}

    def _evaluation_columns(self, evaluation: Mapping[str, Any]) -> dict[str, Any]:
        rest = {k: v for k, v in evaluation.items() if k != "log"}
        return {"evaluation": dump(rest), "log": self.put_blob(str(evaluation.get("log", "")))}

    def set_statistics(self, run: str, rows: Iterable[tuple[str, int, float | None]]) -> None:
        """Visits and values of nodes, as ``(node, visits, value)``."""
        with self.database.write() as c:
            c.executemany(
                "UPDATE nodes SET visits = ?, value = ? WHERE run = ? AND id = ?",
                [(visits, value, run, node) for node, visits, value in rows],
            )

    def nodes(
        self, run: str, target: int | None = None, *, sources: bool = False
    ) -> list[dict[str, Any]]:
        """Finished nodes, by target and in the order they were begun (parents first).

        Args:
            run: Id of the run.
            target: Only those of this target.
            sources: Read sources and logs too (``candidate["source"]``, ``evaluation["log"]``).

        Returns:
            Records with id, target, parent, action, digest, candidate, evaluation, seconds,
            visits, value and created: what ``add_node`` was given.
        """
        with self.database.read():
            return [self.node_of(row, sources=sources) for row in self.node_rows(run, target)]

    def node_rows(self, run: str, target: int | None = None) -> list[Row]:
        """The same, not yet read: rows for :meth:`node_of`, equal while their node is the same."""
        where, values = ("", [run]) if target is None else (" AND target = ?", [run, target])
        with self.database.read() as c:
            return c.execute(
                f"SELECT * FROM nodes WHERE run = ?{where} ORDER BY target, number",  # noqa: S608
                values,
            ).fetchall()

    def node(self, run: str, node: str) -> dict[str, Any]:
        """One node with source and log.

        Raises:
            StoreError: No such node.
        """
        with self.database.read() as c:
            row = c.execute("SELECT * FROM nodes WHERE run = ? AND id = ?", (run, node)).fetchone()
            if row is None:
                raise StoreError(f"no node {node!r} in run {run!r}")
            return self.node_of(row, sources=True)

    def node_of(self, row: Row, *, sources: bool = False) -> dict[str, Any]:
        """The record of one row of :meth:`node_rows`."""
        candidate, evaluation = load(row["candidate"]), load(row["evaluation"])
        if sources:
            candidate["source"] = self.blob(row["source"]).decode("utf-8", "surrogateescape")
            evaluation["log"] = self.blob(row["log"]).decode("utf-8", "surrogateescape")
        keys = ("id", "target", "parent", "action", "digest", "seconds", "visits", "value")
        found = {k: row[k] for k in (*keys, "created")}
        return {**found, "candidate": candidate, "evaluation": evaluation}


def _target_of(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {"index": row["idx"], "fingerprint": row["fingerprint"]}
    return {**found, **{k: load(row[k]) for k in ("record", "files") if k in row}}


def _number(node: str, target: int) -> int:
    found = _NODE.fullmatch(node)
    if found is None or int(found[1]) != target:
        raise StoreError(
            f"{node!r} is no id of a node of target {target}; it must be TARGET.NUMBER"
        )
    return int(found[2])


def _check(record: Mapping[str, Any], **allowed: frozenset[str]) -> None:
    """Refuse a word that the run document does not know, before it is kept."""
    for key, words in allowed.items():
        if record.get(key) is not None and record[key] not in words:
            raise StoreError(f"{record[key]!r} is no {key}; there are {', '.join(sorted(words))}")
