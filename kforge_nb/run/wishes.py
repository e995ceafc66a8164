"""What users ask of single targets: hold it, let it go on, or end it with the best it has.

A button, a magic or Python asks, on any thread, and the run thread acts on it between steps. It is
written down with the target too, so that a resumed run still knows; where that fails, the wish
holds in this session all the same. What is under way for a target is judged all the same: it may be
paid for already.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput, StoreError
from kforge_nb.run.naming import Called, which_target

if TYPE_CHECKING:
    from kforge_nb.run.control import Control
    from kforge_nb.run.record import Record
    from kforge_nb.run.work import Work

__all__ = ["BY_BUTTON", "BY_USER", "Wishes", "held"]

BY_USER = "stopped by the user"
BY_BUTTON = "stopped by the button"

_log = logging.getLogger("kforge_nb.run")


def held(works: Iterable[Work]) -> list[int]:
    """Indices of the targets that are held and could go on."""
    return [work.index for work in works if work.open and work.paused and not work.ending]


def _named(work: Work) -> Called:
    target = work.target
    return Called(work.index, target.name, target.family, target.fingerprint)


class Wishes:
    """Pause, resume and stop for the targets of one run. All methods are thread-safe.

    Each raises BadInput where the run does not search that target, or has ended it already. That
    is looked at, and the wish kept and stored, under the lock of the target, so that a wish comes
    either before its end or too late.
    """

    def __init__(self, works: Sequence[Work], record: Record, control: Control) -> None:
        self._works = {work.index: work for work in works}
        self._record, self._control = record, control

    def pause(self, index: int | str) -> None:
        """The target gets no more proposals until it is resumed."""
        self._hold(index, True)

    def resume(self, index: int | str) -> None:
        """A held target goes on; one that is not held stays as it is."""
        self._hold(index, False)

    def stop(self, index: int | str, reason: str = BY_USER) -> None:
        """The target's search ends when what is under way has been judged; its best stays."""
        work = self._searched(index)
        with work.lock:
            self._require_open(work)
            work.ending = work.ending or reason
            self._control.nudge()
            self._write(work.index, stopping=True)

    def _hold(self, index: int | str, paused: bool) -> None:
        work = self._searched(index)
        with work.lock:
            self._require_open(work)
            work.paused = paused
            self._control.nudge()
            self._write(work.index, paused=paused)

    def _write(self, index: int, **wish: bool) -> None:
        """The run thread knows already, so a store that cannot be written loses no wish."""
        try:
            self._record.set_target(index, **wish)
        except StoreError as error:
            _log.warning(
                "what was asked of target %d holds now, but could not be stored, so a resumed run "
                "will not know it: %s",
                index,
                error,
            )

    def _searched(self, index: Any) -> Work:
        """The work of a target by its index, or by what else it is called."""
        work = self._works.get(index) if type(index) is int else None
        if isinstance(index, str):
            named = [_named(work) for work in self._works.values()]
            found = which_target(index, named, f"run {self._record.name}")
            return self._works[found]
        if work is None:
            raise BadInput(
                f"run {self._record.name} searches no target {index!r}; it searches "
                f"{', '.join(map(str, self._works)) or 'none'}"
            )
        return work

    @staticmethod
    def _require_open(work: Work) -> None:
        if not work.open:
            why = f": {work.reason}" if work.reason else ""
            raise BadInput(f"the search of target {work.index} has ended ({work.state}{why})")
