"""The handle that users hold: what a run found, how it stands, and what to do with it.

A handle reads documents and passes wishes on; it owns nothing. The same class serves a run that is
live in this process, one that another session left in the store, and one opened from a file (which
can be looked at but not applied).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import BadInput, StoreError
from kforge_nb.run import live
from kforge_nb.run.installing import choose
from kforge_nb.run.looking import RunView
from kforge_nb.run.wishes import held
from kforge_nb.store.counters import with_counters
from kforge_nb.store.records import ACTIVE
from kforge_nb.view import words

if TYPE_CHECKING:
    import torch

    from kforge_nb.guard.apply import Applied
    from kforge_nb.run.conductor import Conductor
    from kforge_nb.run.hand_in import KernelVerdict
    from kforge_nb.run.prompts import Prompts
    from kforge_nb.run.record import Record
    from kforge_nb.run.source import Source
    from kforge_nb.workload.capture import Workload

__all__ = ["Run"]

_log = logging.getLogger("kforge_nb.run")

STOP_PATIENCE_S = 20.0
AWAIT_S = 0.05

_applied: dict[str, Applied] = {}
"""What is applied in this process, by run id, so that every handle of a run can take it back."""


class Run(RunView):
    """One optimize run. ``kforge_nb.optimize`` and ``kforge_nb.load_run`` make it."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._seen: Conductor | None = None

    def status(self) -> str:
        """What the run is doing, in one line."""
        data = self._brief()
        progress = data["progress"]
        parts = [f"run {data['name']}: {words.doing(data)}"]
        if self._alive and self._live.control.paused:
            parts[0] += " (paused)"
        if data["state"] in ACTIVE:
            judged, budget = progress.get("judged", 0), progress.get("budget")
            of_all = f"{judged} of {words.count(budget or 0, 'candidate')} judged"
            parts.append(of_all if budget else f"{words.count(judged, 'candidate')} judged")
            parts.append(progress.get("message") or "")
            parts += self._left()
            parts += [*self._held(), *self._asked()]
            return ", ".join(part for part in parts if part)
        return f"run {data['name']}: {words.ended(data, ', ')}"

    def _left(self) -> list[str]:
        """How long the guard may still measure, in words."""
        left = self._live.guard_left if self._alive else None
        return [f"at most about {left:.0f} s left"] if left is not None else []

    def _held(self) -> list[str]:
        """Targets that are paused, in words."""
        indices = held(self._live.works) if self._alive else []
        return [f"target {', '.join(map(str, indices))} paused"] if indices else []

    def _asked(self) -> list[str]:
        """What was spent so far, and what waits for the user."""
        record = self._source.record
        spent = record.spent() if record is not None else 0.0
        waiting = len(self.prompts)
        return [
            *([f"{words.money(spent)} spent"] if spent else []),
            *([f"{words.count(waiting, 'prompt')} to answer (run.prompts)"] if waiting else []),
        ]

    # -- holding it ------------------------------------------------------------------------

    def stop(self, target: int | str | None = None) -> None:
        """Ends the run soon, or the search of one ``target`` of it; what was found stays.

        While winners are confirmed or the model is measured it ends that too, and nothing is
        installed yet: ``resume`` goes on from there.
        A target is meant by its index, name (or its beginning), family or fingerprint's beginning.
        A target ends with the best it has once what is under way for it has been judged, and the
        run goes on with the others. BadInput if another process works on the run, or the target is
        not searched (any more).
        """
        if target is not None:
            self._require_live("stopped").wishes.stop(target)
            self._live.changed()
            return
        if not self._alive:
            self._refuse_foreign("stopped")
            return
        self._live.control.request_stop("stopped by the user")
        self._live.join(STOP_PATIENCE_S)

    def pause(self, target: int | str | None = None) -> None:
        """Holds the run after the step it is in, or one ``target``: it gets no more proposals.

        A target stays held when the run is stopped and resumed. BadInput where the run, or that
        target's search, has ended.
        """
        conductor = self._require_live("paused")
        if target is not None:
            conductor.wishes.pause(target)
        else:
            conductor.control.pause()
        conductor.changed()

    def resume(self, target: int | str | None = None) -> None:
        """Lets a paused run go on, or a paused ``target`` of it.

        To go on with an ended run use ``kforge_nb.resume``.
        """
        conductor = self._require_live("resumed; to go on with it use kforge_nb.resume(name, fn)")
        if target is not None:
            conductor.wishes.resume(target)
        else:
            conductor.control.resume()
        conductor.changed()

    def wait(self, timeout: float | None = None) -> Run:
        """Blocks until the run has ended and returns it; an interrupt ends only the waiting.

        Raises TimeoutError after ``timeout`` seconds.
        """
        if self._alive and not self._live.join(timeout):
            raise TimeoutError(f"run {self.name} has not ended within {timeout} s")
        if not self._alive:
            self._refuse_foreign("waited for")
        return self

    def __await__(self) -> Generator[Any, None, Run]:
        """``await run`` waits without blocking the event loop; a cancelled wait leaves nothing."""
        return self._end().__await__()

    async def _end(self) -> Run:
        while self._alive and not self._live.join(0):
            await asyncio.sleep(AWAIT_S)
        return self.wait()

    @property
    def prompts(self) -> Prompts:
        """Prompts that wait for an answer from a chat window (``--proposer paste``)."""
        from kforge_nb.run.prompts import Prompts

        return Prompts(self._live.prompts if self._alive else (), self.name)

    def answer(self, prompt_id: str, text: str) -> str:
        """Brings the answer to a prompt back; what becomes of it, in words.

        An answer that cannot be read leaves a shorter prompt under the same id, once. BadInput when
        no such prompt waits (in this process).
        """
        answer = getattr(self._require_live("answered").proposer, "answer", None)
        if answer is None:
            raise BadInput(f"run {self.name} asks no prompts; begin one with --proposer paste")
        return str(answer(str(prompt_id), text))

    def judge_kernel(
        self,
        target: int | str,
        source: str,
        *,
        parent: str | None = None,
        backend: str = "auto",
        allow_host_code: bool = False,
    ) -> KernelVerdict:
        """Judges a source like any candidate of ``target`` and adds it to the tree.

        ``parent`` is the id of the node that it was made from; without one it is a draft.
        ``backend`` says what the source is: ``cpp``, ``cupy_raw`` (CUDA with a plan) or
        ``cuda_extension``, which needs ``allow_host_code``; ``auto`` follows the target's device.
        Blocks until the verdict is there. BadInput when the run has no such target or the source
        breaks the contract in a way that can be said beforehand.
        """
        from kforge_nb.run.hand_in import judge_source

        return judge_source(
            self.record,
            self._conductor,
            target,
            source,
            parent=parent,
            backend=backend,
            allow_host_code=allow_host_code,
        )

    # -- using what it found ---------------------------------------------------------------

    def apply(
        self,
        modules: torch.nn.Module | Iterable[torch.nn.Module] | None = None,
        *,
        rest: str = "auto",
    ) -> Applied:
        """Puts the installed kernels into the modules of the workload, in place.

        ``modules`` is only needed after a kernel restart, when the workload is gone. ``rest`` is
        how the remaining graph runs; ``auto`` takes the guard's recommendation. ``undo`` brings
        back the very objects of before.

        Each rest gets the kernels that were decided for it. One that the run did not measure gets
        those of the nearest rest that it did, with a warning, which ``report()`` repeats.

        Raises BadInput, with the reason, when no kernel won with this rest, when nothing is decided
        yet, and with ``rest="auto"`` when the guard recommends ``none``: no rest is surely faster
        than the untouched model.
        """
        from kforge_nb.guard import apply as guard_apply

        choice = choose(self, rest)
        chosen = self._modules(modules)
        self.undo()
        applied = guard_apply.apply(chosen, choice.kernels, choice.rest, **choice.known(self))
        _applied[self.id] = applied
        return applied

    def undo(self) -> None:
        """Takes back what ``apply`` did; does nothing where nothing was applied.

        What the kernels did until then stays in the run's store, and so in its document; where it
        cannot be written there, that is logged as a warning.
        """
        applied = _applied.get(self.id)
        if applied is None:
            return
        try:
            counted = applied.counters()
        finally:
            applied.undo()
            _applied.pop(self.id, None)
        if self._source.record is None:
            return
        try:
            self._source.record.store.update_run(self.id, counters=counted)
        except StoreError as error:
            _log.warning("what the kernels did up to undo() could not be stored: %s", error)

    def counters(self) -> dict[str, Any]:
        """Launches and fallbacks with their reasons since ``apply``, which begins them anew.

        Empty where nothing is applied (what a copy of :meth:`compile` does is not counted here); of
        a run opened from a file what was counted when it was saved, without single kernels.
        """
        applied = _applied.get(self.id)
        if applied is not None:
            return applied.counters()
        saved = super()._document(details=False) if self._source.record is None else {}
        return dict(saved.get("counters") or {})

    def compile(self, model: torch.nn.Module, *, rest: str = "auto") -> Any:
        """A compiled copy of ``model`` with the kernels of that rest; the model is not touched."""
        from kforge_nb.guard import apply as guard_apply

        choice = choose(self, rest)
        return guard_apply.compiled_copy(model, choice.kernels, choice.rest, **choice.known(self))

    # -- showing it ------------------------------------------------------------------------

    def show(self) -> None:
        """Displays the run: live while it goes on, the saved view afterwards; text in a script."""
        if self._alive and self._live.show():
            return
        try:
            from IPython.display import display
        except ModuleNotFoundError:
            from kforge_nb.view.text import summary

            print(summary(self.document))
        else:
            display(self)

    def __repr__(self) -> str:
        notes = self._brief()["workload"].get("notes", [])
        return "\n".join([f"<kforge {self.status()}>", *(f"  note: {note}" for note in notes)])

    # -- inside ----------------------------------------------------------------------------

    def _document(self, *, details: bool = True) -> dict[str, Any]:
        """The document, with what applied kernels have done up to now."""
        return with_counters(super()._document(details=details), self.counters())

    @property
    def _conductor(self) -> Conductor | None:
        """The conductor in this process, also after its end (it holds the workload)."""
        if self._source.record is not None:
            self._seen = live.remembered(self._source.record.id) or self._seen
        return self._seen

    @property
    def _alive(self) -> bool:
        return self._conductor is not None and self._conductor.alive

    @property
    def _live(self) -> Conductor:
        if self._conductor is None:
            raise BadInput(f"run {self.name} is not live in this process")
        return self._conductor

    @property
    def workload(self) -> Workload | None:
        """The workload, where this process has run it."""
        return self._conductor.workload if self._conductor else None

    @property
    def record(self) -> Record:
        """The run's records in its store; BadInput when it was opened from a file."""
        if self._source.record is None:
            raise BadInput(
                f"run {self.name} was opened from a file, which can only be looked at; open it "
                "from its store by kforge_nb.load_run(name)"
            )
        return self._source.record

    def _require_live(self, verb: str) -> Conductor:
        if not self._alive:
            self._refuse_foreign(verb)
            raise BadInput(f"run {self.name} has ended ({self.state}), so it cannot be {verb}")
        return self._live

    def _refuse_foreign(self, verb: str) -> None:
        """BadInput where another process works on the run."""
        data = self._brief()
        if data["state"] in ACTIVE and data.get("pid") is not None:
            raise BadInput(
                f"process {data['pid']} works on run {self.name}; it can only be {verb} there"
            )

    def _modules(
        self, given: torch.nn.Module | Iterable[torch.nn.Module] | None
    ) -> list[torch.nn.Module]:
        from torch import nn

        if isinstance(given, nn.Module):
            return [given]
        if given is not None:
            return list(given)
        workload = self.workload
        if workload is None:
            raise BadInput(
                f"run {self.name} has no workload in this process; give the model: run.apply(model)"
            )
        return list(workload.modules)
