"""The conductor of one run: its thread, its stages, and how it ends.

The thread takes the stages in order (search, then guard), writes each transition to the store with
its reason, and ends in exactly one of done, stopped, failed or interrupted, whatever happens. What
happens is shown through a view that only ever reads documents built from the store.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kforge_nb.errors import KForgeError, StoreError
from kforge_nb.run import live
from kforge_nb.run.benches import Benches, Opener
from kforge_nb.run.callbook import CallBook
from kforge_nb.run.control import Control, Handed, Stopped
from kforge_nb.run.ending import guard_words
from kforge_nb.run.heap import give_back_heap
from kforge_nb.run.searching import Search
from kforge_nb.run.wishes import BY_BUTTON, Wishes
from kforge_nb.store import document
from kforge_nb.store.remembered import Remembered
from kforge_nb.view.live import NoView, open_view

if TYPE_CHECKING:
    from kforge_nb.judge.evaluation import Evaluation
    from kforge_nb.options import OptimizeOptions
    from kforge_nb.proposers.paste import Pending
    from kforge_nb.proposers.protocol import Proposer
    from kforge_nb.run.paying import Purse
    from kforge_nb.run.record import Record
    from kforge_nb.run.work import Work
    from kforge_nb.view.live import LiveView
    from kforge_nb.workload.capture import Workload

__all__ = ["Conductor", "Tools"]

WAITING = (
    "searched, waiting for the workload: put `%%kforge resume {name}` over the cell that calls the "
    "model, or call kforge_nb.resume({name!r}, fn)"
)

_ENDED = {"stopped": "was stopped", "failed": "failed"}
KEPT = "what was found is kept, and %kforge resume {name} goes on"

_log = logging.getLogger("kforge_nb.run")


@dataclass(frozen=True, slots=True)
class Tools:
    """The rooms that a conductor calls on, so that tests can bring their own.

    ``judge(record)`` is a context manager that opens benches; ``guard`` decides in the model and
    stores its decisions (:mod:`kforge_nb.run.guarding`); ``device`` holds plain facts. ``parallel``
    proposals are asked for at once; 0 is for proposers that answer at once. ``opened(conductor)``
    makes the proposer of one search, where it needs something of the run: its calls are written
    down and end with Stop.
    """

    judge: Callable[[Record], AbstractContextManager[Opener]]
    proposer: Proposer
    guard: Callable[[Conductor], str]
    device: dict[str, Any] = field(default_factory=dict)
    parallel: int = 0
    opened: Callable[[Conductor], Proposer] | None = None


class Conductor:
    """Runs one run on a thread of its own; ``start`` returns at once."""

    def __init__(
        self,
        record: Record,
        works: list[Work],
        options: OptimizeOptions,
        workload: Workload | None,
        tools: Tools,
        seconds_before: float = 0.0,
    ) -> None:
        self.record, self.works, self.options = record, works, options
        self.workload, self.tools = workload, tools
        self.control = Control()
        self.wishes = Wishes(works, record, self.control)
        self.book = CallBook(record, self.changed)
        self.proposer = tools.proposer
        self.purse: Purse | None = None
        self._at_work: Search | None = None
        self._views: list[LiveView] = []
        self._views_lock = threading.Lock()
        self.failure: BaseException | None = None
        self._seconds_before = seconds_before
        self._memory = Remembered()
        self._guard_ends = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._main, name=f"kforge-run-{record.name}", daemon=True
        )

    @property
    def alive(self) -> bool:
        """Whether the run thread is still at work."""
        return not self._ended.is_set()

    def start(self) -> None:
        """Starts the thread."""
        live.add(self)
        self._thread.start()

    def show(self) -> bool:
        """Displays a live view in the running cell; False where none is needed any more."""
        view = open_view(self._details, self._command, lambda: [asdict(p) for p in self.prompts])
        with self._views_lock:
            if not self.alive:
                return False
            self._views.append(view)
        view.display(self.compact())
        view.publish(self.compact)
        return not isinstance(view, NoView)

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end; False if it did not come in time. An interrupt only ends the wait."""
        return self._ended.wait(timeout)

    def compact(self) -> dict[str, Any]:
        """The run document without details but with what is under way, for the live view."""
        found = document.build(
            self.record.store, self.record.id, details=False, memory=self._memory
        )
        if not self.alive:
            return found
        searching = self._at_work
        found["progress"] |= {
            "paused": self.control.paused,
            "stopping": self.control.stop.is_set(),
            "calls": self.book.live,
            "judging": searching.judging if searching is not None else [],
            "prompts": len(self.prompts),
        }
        return found

    @property
    def guard_left(self) -> float | None:
        """Seconds that the guard has left, None where it does not measure or its time is over."""
        left = self._guard_ends - time.monotonic()
        return left if left > 0 else None

    @property
    def prompts(self) -> list[Pending]:
        """Prompts that wait for an answer of the user, where the proposer is ``paste``."""
        return list(getattr(self.proposer, "prompts", ())) if self.alive else []

    def changed(self) -> None:
        """Something worth showing is in the store."""
        for view in list(self._views):
            view.publish(self.compact)

    def say(self, phase: str, message: str, **figures: Any) -> None:
        """Progress of a stage, stored and shown; figures not given stay as they were."""
        judged = sum(len(work.tree) for work in self.works)
        before = {"budget": self.options.budget, **self.record.run["progress"], "eta_s": None}
        now: dict[str, Any] = {"phase": phase, "judged": judged, "message": message}
        if phase == "guarding":
            now["eta_s"] = self.guard_left
        self.record.set_progress(**{**before, **now, **figures})
        self.changed()

    # -- the thread ------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            state, reason = self._stages()
        except Stopped as signal:
            state, reason = "stopped", f"{signal}; {KEPT.format(name=self.record.name)}"
        except KForgeError as error:
            state, reason, self.failure = "failed", str(error), error
        except BaseException as error:  # noqa: BLE001  a thread has nobody else to tell
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
            state, self.failure = "failed", error
            _log.debug("run %s failed", self.record.id, exc_info=error)
        try:
            self._end(state, reason)
        finally:
            live.remove(self)
            self._ended.set()

    def _stages(self) -> tuple[str, str]:
        """Search, then guard; the final state and its reason."""
        why = self._search()
        if self.workload is None:
            return "interrupted", WAITING.format(name=self.record.name)
        self.control.checkpoint()
        self.record.set_state("guarding", why)
        self._guard_ends = time.monotonic() + self.options.guard_time
        self.say("guarding", guard_words(self.options))
        summary = self.tools.guard(self)
        give_back_heap()
        return "done", f"{summary}; the search ended because {why}"

    def _search(self) -> str:
        if not any(work.open for work in self.works):
            return "every target is done"
        self.record.set_state("searching")
        self._count_lost_calls()
        if self.tools.opened is not None:
            self.proposer = self.tools.opened(self)
        self.say("searching", "starting the judge")
        with self._searching() as search:
            return search.run()

    @contextmanager
    def _searching(self) -> Iterator[Search]:
        """The search with its judge open; what it freed goes back to the system at the end."""
        try:
            with self._with_judge() as search:
                yield search
        finally:
            give_back_heap()

    @contextmanager
    def _with_judge(self) -> Iterator[Search]:
        """The search with its judge open; seconds are kept for a resume."""
        with self.tools.judge(self.record) as judge:
            benches = Benches(judge)
            search = Search(
                self.works,
                self.options,
                self.record,
                self.control,
                benches,
                self.proposer,
                self.tools.device,
                self.changed,
                self._seconds_before,
                self.tools.parallel,
                self.purse,
            )
            self._at_work = search
            try:
                yield search
            finally:
                self._at_work = None
                search.close()
                benches.close()
                self.record.store.put_entry(self.record.id, "seconds", search.seconds)

    def _count_lost_calls(self) -> None:
        """Calls that a killed session left open are told; they count at the most they may cost."""
        lost = self.record.store.lose_calls(self.record.id)
        if lost:
            words = "a call was" if lost == 1 else f"{lost} calls were"
            self.record.add_note(
                f"{words} under way when an earlier session of this run was killed; nobody knows "
                "what was answered, so the most that may have been paid is counted as spent"
            )

    def judge_one(self, handed: Handed, state: str, reason: str) -> Evaluation:
        """Judges one candidate on the calling thread, without a search; then ``state`` again."""
        self.record.set_state("searching", "judging a kernel from a cell")
        try:
            with self._searching() as search:
                search.judge_handed(handed)
        finally:
            self.record.set_state(state, reason)
            self.record.store.release(self.record.id)
        return handed.result.result()

    def _end(self, state: str, reason: str) -> None:
        """Writes the last state and leaves the saved view behind, even when the disk is full."""
        for left in self.control.close_inbox():
            left.result.set_exception(KForgeError(f"the run ended before its turn came: {reason}"))
        try:
            self._close_targets(state)
            self.record.set_state(state, reason)
            self.say(state, reason)
            self.record.store.release(self.record.id)
        except KForgeError as error:
            self.failure = self.failure or error
            reason = f"{reason}. Its last state could not be stored: {error}"
        with self._views_lock:
            self._ended.set()
            views, self._views = self._views, []
        self._finish(views, state, reason)

    def _close_targets(self, state: str) -> None:
        """Targets that the run did not finish are stopped, not left as if somebody were at work."""
        for work in self.works:
            if work.open and work.state != "stopped":
                untried = "" if len(work.tree) else " before a candidate was judged"
                work.set("stopped", f"the run {_ENDED.get(state, 'ended')}{untried}")

    def _finish(self, views: list[LiveView], state: str, reason: str) -> None:
        """The live views become saved ones."""
        if not views:
            return
        try:
            whole = document.build(self.record.store, self.record.id)
            whole |= {"state": state, "state_reason": reason[:8000]}
            for view in views:
                view.finish(whole)
        except Exception:  # noqa: BLE001  a broken view must not hide how the run ended
            _log.exception("the last view of run %s could not be shown", self.record.id)

    # -- what the view asks ------------------------------------------------------------------

    def _details(self, node_id: str) -> dict[str, Any] | None:
        try:
            return document.details_of(self.record.store, self.record.id, node_id)
        except KForgeError:
            return None

    def _command(self, given: Mapping[str, Any]) -> None:
        """What a button or a box asks for; after the end of the run there is nothing to do."""
        if not self.alive:
            return
        name, target = given.get("name"), given.get("target")
        if name == "answer":
            self._answer(str(given.get("id")), str(given.get("text")))
        elif target is not None:
            self._wish(str(name), target)
        elif name == "stop":
            self.control.request_stop(BY_BUTTON)
        elif name == "pause":
            self.control.pause()
        elif name == "resume":
            self.control.resume()
        self.changed()

    def _wish(self, name: str, target: Any) -> None:
        """A button of one target; one that comes too late finds it ended."""
        if type(target) is not int:  # words are for people; a view knows its rows by their index
            _log.info("a button of the view did nothing: target %.80r is no index", target)
            return
        asked = {"pause": self.wishes.pause, "resume": self.wishes.resume}
        try:
            if name == "stop":
                self.wishes.stop(target, BY_BUTTON)
            elif name in asked:
                asked[name](target)
        except StoreError as error:
            _log.warning("a button of the view did nothing: %s", error)
        except KForgeError as error:
            _log.info("a button of the view did nothing: %s", error)

    def _answer(self, prompt_id: str, text: str) -> None:
        """An answer from a box of the view; one that comes too late has no prompt any more."""
        answer = getattr(self.proposer, "answer", None)
        try:
            if answer is not None:
                answer(prompt_id, text)
        except StoreError as error:
            _log.warning("an answer from the view was not taken: %s", error)
        except KForgeError as error:
            _log.info("an answer from the view was not taken: %s", error)
