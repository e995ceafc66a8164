"""The live view in the notebook: an anywidget whose traits flow one way each.

``doc``, ``changes``, ``prompts`` and ``detail`` are written by the kernel, and there only by the
outbox thread. ``doc`` is the whole document, made when a page asks for the widget's state, so that
one opened late has everything; after that only ``changes`` travel (:mod:`kforge_nb.view.deltas`).
``detail_request``, ``whole_request`` and ``command`` are written by the browser (a command comes as
a message too, since a change of a trait waits until the one before is dealt with); their callbacks,
which may run on any thread, only put on a queue: what a command does, such as to write to the
store, is done on a thread for commands, one after the other. Imported only where a widget is really
shown, since it needs anywidget and the built ``static/widget.js``.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets

from kforge_nb.view import BUNDLE
from kforge_nb.view.deltas import Encoder
from kforge_nb.view.outbox import Outbox
from kforge_nb.view.payload import for_widget, size

__all__ = ["COMMANDS", "Publisher", "RunWidget"]

COMMANDS = frozenset({"stop", "pause", "resume", "answer"})
FROM_PAGE = frozenset({"detail_request", "whole_request", "command"})
MESSAGES: dict[str, dict[str, type]] = {
    "update": {"state": dict, "buffer_paths": list},
    "request_state": {},
    "custom": {"content": dict},
}
"""The messages of the widget protocol, and what each of them holds."""

KEPT_ANSWERS = 8
KEPT_BYTES = 400_000
"""Answers go out together: older ones are dropped where the newest would wait for them."""
KEPT_PAGES = 8
"""An answer names the requests of so many pages."""
HEEDED = 64
"""So many commands are remembered, by their numbers."""
OPENED = "opened"
"""Name under which the outbox is told that a page has asked for the state; no trait."""

_log = logging.getLogger("kforge_nb.view")


def _whole(_: Any, widget: RunWidget) -> dict[str, Any]:
    """What ``doc`` says whenever it is asked for."""
    widget.opened()
    return widget.encoder.whole()


class RunWidget(anywidget.AnyWidget):
    """One run on screen; every view of the widget shows the same traits."""

    _esm = BUNDLE

    doc = traitlets.Dict().tag(sync=True, to_json=_whole)
    changes = traitlets.Dict().tag(sync=True)
    whole_request = traitlets.Dict().tag(sync=True, echo_update=False)
    prompts: Any = traitlets.List().tag(sync=True)
    detail = traitlets.Dict().tag(sync=True)
    detail_request = traitlets.Dict().tag(sync=True, echo_update=False)
    command = traitlets.Dict().tag(sync=True, echo_update=False)

    def __init__(self) -> None:
        self.encoder = Encoder()  # before the first state is sent
        self.lock = threading.RLock()
        self.opened: Callable[[], None] = lambda: None
        super().__init__()
        # From ipykernel 7.4 a message of the page is taken by the subshell that a message to the
        # page came from last, not by the one that it names. Ours come from a thread that has none:
        # they would name whatever asked last, a subshell that is gone (the kernel then drops what
        # the page says) or the main one (a button then waits for the cell that runs).
        self.comm._reply_subshell_for = None

    def _handle_msg(self, msg: Any) -> None:
        """A message of a page; one of no known shape is dropped, not told in the user's cells."""
        data = msg["content"].get("data")
        needs = MESSAGES.get(str(data.get("method"))) if isinstance(data, dict) else None
        if needs is not None and all(isinstance(data.get(k), t) for k, t in needs.items()):
            super()._handle_msg(msg)

    def set_state(self, sync_data: Any) -> None:
        """What a page sends; only its own traits are taken, and of those only mappings.

        Widgets hold no locks of their own, and a message may come on any thread, so it is taken in
        while the outbox writes nothing.
        """
        given = sync_data if isinstance(sync_data, dict) else {}
        mine = {k: v for k, v in given.items() if k in FROM_PAGE and isinstance(v, dict)}
        with self.lock:
            super().set_state(mine)


def _newest(numbers: list[str]) -> list[str]:
    """The last number of each page (``page.count``), of so many pages as are kept."""
    by_page: dict[str, str] = {}
    for number in numbers:
        page = number.rpartition(".")[0]
        by_page.pop(page, None)
        by_page[page] = number
    return list(by_page.values())[-KEPT_PAGES:]


class Publisher:
    """Feeds one widget from one outbox and hands its requests on.

    ``details(node_id)`` gives the ``details`` entry of one node or None; it is called on the outbox
    thread, and so is ``prompts()``, what waits for an answer of the user. ``command(given)`` gets
    ``{"name": "stop"}``, ``pause``, or ``answer`` with ``id`` and ``text``, each with its number
    ``n``, once and in order, on a thread of its own, so that no message of a page waits for it.
    """

    def __init__(
        self,
        details: Callable[[str], Mapping[str, Any] | None],
        command: Callable[[Mapping[str, Any]], None],
        prompts: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self.widget = RunWidget()
        self._prompts = prompts
        self._details = details
        self._command = command
        self._wanted: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._answers: dict[str, Any] = {}
        self._opened = 0
        self._act: Callable[[], None] = lambda: None
        self._outbox = Outbox(self._write)
        self._told: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._hands = threading.Thread(target=self._work, name="kforge-commands", daemon=True)
        self._hands.start()
        self.widget.observe(self._asked, "detail_request")
        self.widget.observe(self._missed, "whole_request")
        self._heeded: deque[str] = deque(maxlen=HEEDED)
        self.widget.observe(lambda change: self._obey(change["new"]), "command")
        self.widget.on_msg(self._said)

    def publish(self, document: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        """Shows a document soon; a function is called on the outbox thread when it is due."""
        make = document if callable(document) else lambda: document
        self._outbox.put("changes", lambda: self._changes(make))
        self._outbox.put("prompts", self._prompts)

    def _changes(self, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The next message to readers; the last one again where nothing is new."""
        encoder = self.widget.encoder
        message = encoder.advance(for_widget(make()))
        if encoder.behind:
            self._outbox.put_if_empty("changes", lambda: self._changes(make))
        return self.widget.changes if message is None else message

    def on_open(self, act: Callable[[], None]) -> None:
        """Has ``act`` called on the outbox thread whenever a page asks for the widget's state."""

        def opened() -> None:
            self._opened += 1
            self._outbox.put(OPENED, self._opened)

        self._act = act
        self.widget.opened = opened

    def flush(self, timeout: float = 10.0) -> None:
        """Sends what still waits. The widget stays open and goes on answering requests."""
        self._outbox.flush(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Does and sends what still waits and ends both threads; the last picture stays."""
        self._told.put(None)
        self._hands.join(timeout)
        self._outbox.close(timeout)

    def _write(self, values: Mapping[str, Any]) -> None:
        if OPENED in values:
            self._act()
        with self.widget.lock:
            with self.widget.hold_sync():
                for name, value in values.items():
                    if name not in ("doc", OPENED):
                        setattr(self.widget, name, value)
            if "doc" in values:
                self.widget.send_state("doc")

    def _missed(self, change: Mapping[str, Any]) -> None:
        """A page lacks a message: it gets the whole document once more."""
        self._outbox.put("doc", str(change["new"].get("n"))[:80])

    def _asked(self, change: Mapping[str, Any]) -> None:
        node_id = change["new"].get("id")
        if isinstance(node_id, str):
            self._wanted.put((node_id, str(change["new"].get("n"))[:80]))
            self._outbox.put("detail", self._answer)

    def _answer(self) -> dict[str, Any]:
        """The newest answers by node id; a request repeated is an answer renewed.

        ``n`` has the numbers of the requests that ``details`` is at least as new as, the last one
        of each page: by it a page tells its own answer from one that was there before it asked.
        """
        while not self._wanted.empty():
            node_id, number = self._wanted.get()
            before = self._answers.pop(node_id, {"n": []})["n"]
            found = self._details(node_id)
            self._answers[node_id] = {
                "n": _newest([*before, number]),
                "details": None if found is None else dict(found),
            }
        while len(self._answers) > KEPT_ANSWERS or (
            len(self._answers) > 1 and size(self._answers) > KEPT_BYTES
        ):
            del self._answers[next(iter(self._answers))]
        return dict(self._answers)

    def _said(self, _widget: Any, content: Mapping[str, Any], _buffers: Any) -> None:
        """A command as a message: front ends hold changes of traits back, these they do not."""
        given = content.get("command")
        if isinstance(given, dict):
            self._obey(given)

    def _obey(self, given: Mapping[str, Any]) -> None:
        """Hands a command on, once: it comes as a message and as a change of a trait.

        One without a number cannot have come before.
        """
        number = given.get("n")
        if not isinstance(given.get("name"), str) or given["name"] not in COMMANDS:
            return
        with self.widget.lock:
            if number is not None and str(number)[:80] in self._heeded:
                return
            if number is not None:
                self._heeded.append(str(number)[:80])
        self._told.put(given)

    def _work(self) -> None:
        """Does what was commanded, until ``close``."""
        while (given := self._told.get()) is not None:
            try:
                self._command(given)
            except Exception:  # noqa: BLE001  the next command must still be heard
                _log.exception("the command %r of the view failed", given["name"])
