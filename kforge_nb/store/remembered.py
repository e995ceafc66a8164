"""Rows of a run document that were made before, so that a live view costs what is new and no more.

A view asks for the document several times a second, also when the run has thousands of nodes and
one of them has changed. Making a row (reading, scrubbing, fitting to the schema) costs far more
than seeing that the record it was made of is still the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kforge_nb.store.clean import secret_values

__all__ = ["Remembered"]


class Remembered:
    """Rows by name and by the record that they were made of.

    Rows must not be changed by whoever gets them. Safe from several threads: at worst a row is made
    twice.
    """

    def __init__(self) -> None:
        self._rows: dict[Hashable, tuple[Any, Any]] = {}
        self._secrets: list[str] | None = None

    def begin(self) -> None:
        """Before a document is made: a secret that is new may stand in rows made before it."""
        secrets = secret_values()
        if secrets != self._secrets:
            self._rows, self._secrets = {}, secrets

    def row(self, name: Hashable, record: Any, make: Callable[[], Any]) -> Any:
        """The row that was made of an equal record under this name, or a new one."""
        held = self._rows.get(name)
        if held is not None and held[0] == record:
            return held[1]
        row = make()
        self._rows[name] = (record, row)
        return row
