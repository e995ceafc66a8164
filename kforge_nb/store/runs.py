"""Runs in the store: their records, their names, and which process works on them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from sqlite3 import Connection, Row
from typing import Any

from kforge_nb.errors import BadInput, StoreError
from kforge_nb.store.base import Base, insert
from kforge_nb.store.owner import Owner
from kforge_nb.store.records import ACTIVE, STATES, check_name, dump, load, now

__all__ = ["RunRecords"]

_JSON_OF_RUN = (
    "versions",
    "device",
    "options",
    "workload",
    "progress",
    "fidelity",
    "recommendation",
    "counters",
)


class RunRecords(Base):
    """Records of runs and their owners."""

    def create_run(
        self,
        name: str | None = None,
        *,
        state: str = "profiling",
        options: Mapping[str, Any] | None = None,
        device: Mapping[str, Any] | None = None,
        versions: Mapping[str, Any] | None = None,
        workload: Mapping[str, Any] | None = None,
    ) -> str:
        """A new run, owned by this process. Without a name it is called ``run1``, ``run2`` ….

        Returns:
            The run's id (``YYYYMMDD-HHMMSS-xxxxxx``).

        Raises:
            BadInput: The name is taken or not fit for one.
        """
        if name is not None:
            check_name(name)
        made = now()
        run = f"{made[:10].replace('-', '')}-{made[11:19].replace(':', '')}-{secrets.token_hex(3)}"
        _check_state(state)
        with self.database.write() as c:
            taken = {r["name"] for r in c.execute("SELECT name FROM runs")}
            if name in taken:
                raise BadInput(
                    f"a run named {name!r} exists in {self.path}; choose another name, resume it, "
                    "or delete it"
                )
            if name is None:
                name = next(n for n in (f"run{i}" for i in range(1, 2**31)) if n not in taken)
            values = {"versions": versions, "device": device, "options": options}
            values["workload"] = workload
            columns = {k: dump(values.get(k) or {}) for k in _JSON_OF_RUN}
            columns |= dict.fromkeys(("fidelity", "recommendation", "counters"), "null")
            columns |= {"id": run, "name": name, "state": state, "state_reason": ""}
            columns |= {"created": made, "updated": made}
            insert(c, "runs", columns)
            self._own(c, run)
        return run

    def runs(self) -> list[dict[str, Any]]:
        """All runs, oldest first, as :meth:`run` gives them."""
        with self.database.read() as c:
            return [_run(r) for r in c.execute("SELECT * FROM runs ORDER BY created, id")]

    def run(self, run: str) -> dict[str, Any]:
        """The record of one run: id, name, state, times, options, device, workload, progress ….

        Raises:
            StoreError: No such run.
        """
        with self.database.read() as c:
            row = c.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise StoreError(f"the store {self.path} holds no run with id {run!r}")
        return _run(row)

    def find_run(self, name: str | None = None) -> str:
        """Id of the run with this name or id; of the newest run where no name is given.

        Raises:
            BadInput: There is none; the message names those that exist.
        """
        found = self.runs()
        for r in reversed(found):
            if name is None or name in (r["name"], r["id"]):
                return str(r["id"])
        if not found:
            raise BadInput(f"the store {self.path} holds no runs yet; start one with optimize")
        known = ", ".join(r["name"] for r in found[-20:])
        raise BadInput(f"there is no run named {name!r} in {self.path}; there are: {known}")

    def update_run(self, run: str, **fields: Any) -> None:
        """Set some of state, state_reason, name, and the JSON records of a run.

        The JSON records are versions, device, options, workload, progress, fidelity,
        recommendation and counters, each replaced whole.

        Raises:
            StoreError: No such run, or no such field or state.
        """
        columns = {"updated": now()}
        for key, value in fields.items():
            if key in _JSON_OF_RUN:
                columns[key] = dump(value)
            elif key in ("state", "state_reason"):
                columns[key] = _check_state(value) if key == "state" else str(value)
            elif key == "name":
                columns[key] = check_name(value)
            else:
                raise StoreError(f"a run has no field {key!r} that can be set")
        self._update("runs", columns, "id = ?", (run,), f"no run with id {run!r}")

    def delete_run(self, run: str) -> None:
        """Remove a run and every source and log that no other run uses.

        Raises:
            StoreError: No such run, or a live process works on it.
        """
        with self.database.write() as c:
            self._refuse_if_owned(c, run)
            c.execute("DELETE FROM runs WHERE id = ?", (run,))
            c.execute(
                "DELETE FROM blobs WHERE digest NOT IN (SELECT source FROM nodes) "
                "AND digest NOT IN (SELECT log FROM nodes) "
                "AND digest NOT IN (SELECT sent FROM costs WHERE sent IS NOT NULL) "
                "AND digest NOT IN (SELECT answer FROM costs WHERE answer IS NOT NULL)"
            )

    def claim(self, run: str) -> None:
        """Make this process the one that works on a run (resume).

        Raises:
            StoreError: Another live process works on it, or no such run.
        """
        with self.database.write() as c:
            self._refuse_if_owned(c, run)
            self._own(c, run)

    def beat(self, run: str) -> None:
        """A sign of life; call it every few seconds while working on a run."""
        self._update("runs", {"beat": time.time()}, "id = ?", (run,), f"no run with id {run!r}")

    def release(self, run: str) -> None:
        """This process no longer works on the run."""
        columns = dict.fromkeys(("host", "boot", "pid", "started", "beat"))
        self._update("runs", columns, "id = ?", (run,), f"no run with id {run!r}")

    def sweep(self) -> list[str]:
        """Mark runs whose process died in the middle as ``interrupted``; returns their ids."""
        found = []
        with self.database.write() as c:
            marks = ", ".join("?" * len(ACTIVE))
            rows = c.execute(f"SELECT * FROM runs WHERE state IN ({marks})", ACTIVE)  # noqa: S608
            for row in rows.fetchall():
                if _owner_lives(row):
                    continue
                reason = (
                    f"the process that worked on it (pid {row['pid']}) is gone; every finished "
                    "evaluation is kept: resume the run to go on"
                )
                self.update_run(row["id"], state="interrupted", state_reason=reason)
                found.append(str(row["id"]))
        return found

    def _own(self, c: Connection, run: str) -> None:
        me = Owner.me()
        c.execute(
            "UPDATE runs SET host = ?, boot = ?, pid = ?, started = ?, beat = ? WHERE id = ?",
            (me.host, me.boot, me.pid, me.started, time.time(), run),
        )

    def _refuse_if_owned(self, c: Connection, run: str) -> None:
        row = self._must_exist(c, run)
        if _owner(row) != Owner.me() and row["state"] in ACTIVE and _owner_lives(row):
            raise StoreError(
                f"process {row['pid']} on {row['host']} works on run {row['name']!r}; "
                "stop it there first"
            )


def _run(row: Row) -> dict[str, Any]:
    found = {k: row[k] for k in row.keys() if k not in ("host", "boot", "started")}  # noqa: SIM118
    return {**found, **{k: load(row[k]) for k in _JSON_OF_RUN}}


def _owner(row: Row) -> Owner | None:
    if row["pid"] is None:
        return None
    return Owner(row["host"], row["boot"], row["pid"], row["started"])


def _owner_lives(row: Row) -> bool:
    owner = _owner(row)
    return owner is not None and owner.alive(row["beat"], time.time())


def _check_state(state: str) -> str:
    if state not in STATES:
        raise StoreError(f"{state!r} is no state of a run; there are {', '.join(STATES)}")
    return state
