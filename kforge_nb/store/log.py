"""What a run leaves behind beside its nodes: events, decisions, whole-model rows, bookings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kforge_nb.store.base import insert
from kforge_nb.store.calls import CallRecords
from kforge_nb.store.records import dump, load, now

__all__ = ["LogRecords"]


class LogRecords(CallRecords):
    """Costs, events, decisions and other records of a run."""

    def add_cost(
        self,
        run: str,
        *,
        target: int | None = None,
        node: str | None = None,
        calls: int = 0,
        tokens_in: int = 0,
        tokens_out: int = 0,
        usd: float | None = 0.0,
        seconds: float = 0.0,
    ) -> None:
        """Book what a proposal cost; ``usd`` is None where only an estimate would be known."""
        with self.database.write() as c:
            self._must_exist(c, run)
            columns = {"run": run, "target": target, "node": node, "calls": calls}
            columns |= {"tokens_in": tokens_in, "tokens_out": tokens_out}
            amounts = {"usd": usd, "seconds": float(seconds), "created": now()}
            insert(c, "costs", {**columns, **amounts})

    def add_event(self, run: str, kind: str, record: Mapping[str, Any] | None = None) -> int:
        """Append to the run's log; returns the event's number, which only ever grows."""
        with self.database.write() as c:
            self._must_exist(c, run)
            columns = {"run": run, "kind": kind, "record": dump(record or {}), "created": now()}
            return int(insert(c, "events", columns))

    def events(self, run: str, after: int = 0, limit: int = 10_000) -> list[dict[str, Any]]:
        """Events with a number above ``after``: ``{"seq", "kind", "record", "created"}``."""
        with self.database.read() as c:
            rows = c.execute(
                "SELECT seq, kind, record, created FROM events WHERE run = ? AND seq > ? "
                "ORDER BY seq LIMIT ?",
                (run, after, limit),
            ).fetchall()
        return [{**dict(r), "record": load(r["record"])} for r in rows]

    def set_decision(self, run: str, target: int, record: Mapping[str, Any]) -> None:
        """What the guard does with one target, as in ``decisions`` of the run document."""
        with self.database.write() as c:
            self._must_exist(c, run)
            c.execute(
                "INSERT OR REPLACE INTO decisions VALUES (?, ?, ?)", (run, target, dump(record))
            )
            self._touch(c, run)

    def clear_decisions(self, run: str) -> None:
        """Forget decisions and whole-model rows, before the guard decides again."""
        with self.database.write() as c:
            c.execute("DELETE FROM decisions WHERE run = ?", (run,))
            c.execute("DELETE FROM whole WHERE run = ?", (run,))
            self._touch(c, run)

    def decisions(self, run: str) -> list[dict[str, Any]]:
        """All decisions by target."""
        rows = self._rows("SELECT record FROM decisions WHERE run = ? ORDER BY target", run)
        return [load(r["record"]) for r in rows]

    def set_whole(self, run: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """The whole-model comparisons, as in ``whole`` of the run document; replaces them."""
        with self.database.write() as c:
            self._must_exist(c, run)
            c.execute("DELETE FROM whole WHERE run = ?", (run,))
            for place, row in enumerate(rows):
                insert(c, "whole", {"run": run, "place": place, "record": dump(row)})
            self._touch(c, run)

    def whole(self, run: str) -> list[dict[str, Any]]:
        """The whole-model comparisons in order."""
        rows = self._rows("SELECT record FROM whole WHERE run = ? ORDER BY place", run)
        return [load(r["record"]) for r in rows]

    def put_entry(self, run: str, key: str, value: Any) -> None:
        """Keep any plain data under a key of the run (search state, paths, …)."""
        with self.database.write() as c:
            self._must_exist(c, run)
            c.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (run, key, dump(value)))

    def entry(self, run: str, key: str, default: Any = None) -> Any:
        """What :meth:`put_entry` kept under the key, or the default."""
        rows = self._rows("SELECT value FROM entries WHERE run = ? AND key = ?", run, key)
        return load(rows[0]["value"]) if rows else default
