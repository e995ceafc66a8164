"""Calls of language models: written down before they are made, and again when they have ended.

A call is one row of the costs. While it is ``open`` it stands with the most that it may cost, so a
process that is killed between request and answer leaves money that counts; the next one to work on
the run marks it ``lost``, at that price.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kforge_nb.store.base import Base, insert, raw_of
from kforge_nb.store.records import now

__all__ = ["CallRecords"]

_SHOWN = (
    "target, node, calls, tokens_in, tokens_cached, tokens_out, tokens_reasoning, estimated, "
    "usd, seconds, model, prompt, purpose, state, problem, created"
)
TAKEN = "the session ended before the answer was judged; a later one used it"
LOST = "the process ended before the answer came; the call may have been paid for"


class CallRecords(Base):
    """Records of costs, and of the calls that they were for."""

    def begin_call(
        self,
        run: str,
        *,
        target: int | None,
        node: str | None,
        model: str,
        prompt: str,
        text: str,
        worst_usd: float,
        purpose: str = "propose",
    ) -> int:
        """A call that is about to be made; on disk, at its worst price, when this returns.

        Args:
            run: Id of the run.
            target: Index of the target that it is for.
            node: Id of the node that is to come of it; no such node need ever exist.
            model: Name of the model.
            prompt: Version of the prompt.
            text: All that is sent.
            worst_usd: The most that it may cost, US dollars.
            purpose: ``propose``, or ``format`` where only an answer's form is to be mended.

        Returns:
            The call's number, for :meth:`end_call`.
        """
        with self.database.write() as c:
            self._touch(c, run)
            columns: dict[str, Any] = {"run": run, "target": target, "node": node, "calls": 1}
            columns |= {"tokens_in": 0, "tokens_out": 0, "usd": float(worst_usd), "seconds": 0.0}
            columns |= {"model": model, "prompt": prompt, "purpose": purpose, "state": "open"}
            return insert(c, "costs", {**columns, "sent": self.put_blob(text), "created": now()})

    def end_call(
        self,
        number: int,
        *,
        usd: float,
        seconds: float,
        tokens_in: int = 0,
        tokens_cached: int = 0,
        tokens_out: int = 0,
        tokens_reasoning: int = 0,
        estimated: bool = False,
        model: str | None = None,
        answer: str = "",
        problem: str = "",
    ) -> None:
        """What a call cost and what was answered.

        Raises:
            StoreError: There is no such call, or it has ended before.
        """
        columns: dict[str, Any] = {"usd": float(usd), "seconds": float(seconds), "state": "done"}
        columns |= {"tokens_in": tokens_in, "tokens_cached": tokens_cached}
        columns |= {"tokens_out": tokens_out, "tokens_reasoning": tokens_reasoning}
        columns |= {"estimated": int(estimated), "problem": problem}
        if model:
            columns["model"] = model
        missing = f"no open call {number}"
        with self.database.write():
            columns["answer"] = self.put_blob(answer)
            self._update("costs", columns, "seq = ? AND state = 'open'", (number,), missing)

    def lose_calls(self, run: str) -> int:
        """Marks calls that a process now gone has left open; they keep their worst price."""
        with self.database.write() as c:
            done = c.execute(
                "UPDATE costs SET state = 'lost', problem = ? WHERE run = ? AND state = 'open'",
                (LOST, run),
            )
            return done.rowcount

    def costs(self, run: str) -> list[dict[str, Any]]:
        """All bookings in order, as in ``costs`` of the run document."""
        rows = self._rows(f"SELECT {_SHOWN} FROM costs WHERE run = ? ORDER BY seq", run)  # noqa: S608
        return [{**row, "estimated": bool(row["estimated"])} for row in rows]

    def calls(self, run: str, node: str | None = None) -> list[dict[str, Any]]:
        """Calls of models in order: as in :meth:`costs`, with ``seq``, ``sent`` and ``answer``.

        With ``node``, only those that were made for it.
        """
        return self._calls("" if node is None else " AND node = ?", run, *([node] if node else []))

    def last_call(self, run: str) -> int:
        """The number of the run's newest call; 0 where there is none."""
        return int(self._rows("SELECT max(seq) AS n FROM costs WHERE run = ?", run)[0]["n"] or 0)

    def take_answer(self, run: str, sent: str, last: int) -> str | None:
        """An answer that a text got and that nothing came of, to be used instead of asking again.

        Args:
            run: Id of the run.
            sent: The text.
            last: Only calls up to this number are looked at: those of earlier sessions.

        Returns:
            The newest answer whose node was never judged and that was not taken before. What is
            noted of its call does not matter (a call that failed has no answer).
        """
        digest = hashlib.sha256(raw_of(sent)).hexdigest()
        where = " AND sent = ? AND seq <= ? AND state = 'done'"
        with self.database.write() as c:
            for call in reversed(self._calls(where, run, digest, last)):
                noted = str(call["problem"])
                if noted.endswith(TAKEN) or not call["answer"] or self._judged(run, call["node"]):
                    continue
                told = "; ".join(words for words in (noted, TAKEN) if words)
                c.execute("UPDATE costs SET problem = ? WHERE seq = ?", (told, call["seq"]))
                return str(call["answer"])
        return None

    def _calls(self, where: str, *values: Any) -> list[dict[str, Any]]:
        query = (
            f"SELECT seq, sent, answer, {_SHOWN} FROM costs "  # noqa: S608 - names from this file
            f"WHERE run = ? AND sent IS NOT NULL{where} ORDER BY seq"
        )
        with self.database.read():
            rows = self._rows(query, *values)
            return [
                {**row, "estimated": bool(row["estimated"])}
                | {k: self._text(row[k]) for k in ("sent", "answer")}
                for row in rows
            ]

    def _judged(self, run: str, node: str | None) -> bool:
        return bool(self._rows("SELECT 1 FROM nodes WHERE run = ? AND id = ?", run, node))

    def _text(self, digest: str | None) -> str:
        return self.blob(digest).decode("utf-8", "surrogateescape") if digest else ""
