"""The live view in the notebook: an anywidget whose traits flow one way each.

``doc``, ``changes``, ``prompts`` and ``detail`` are written by the kernel, and there only by the
outbox thread. ``doc`` is the whole document, made when a page asks for the widget's state, so that
one opened late has everything; after that only ``changes`` travel (:mod:`kforge_nb.view.deltas`).
``detail_request``, ``whole_request`` and ``command`` are written by the browser (a command comes as
a message too, since a change of a trait waits until the one before is dealt with); their callbacks,
which may run on any thread, only put on a queue or call a function that sets an event. Imported
only where a widget is really shown, since it needs anywidget and the built ``static/widget.js``.
"""

from __future__ import annotations

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
HEEDED = 64
"""So many commands are remembered, by their numbers."""
OPENED = "opened"
"""Name under which the outbox is told that a page has asked for the state; no trait."""


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


class Publisher:
    """Feeds one widget from one outbox and hands its requests on.

    ``details(node_id)`` gives the ``details`` entry of one node or None; it is called on the outbox
    thread, and so is ``prompts()``, what waits for an answer of the user. ``command(given)`` gets
    ``{"name": "stop"}``, ``pause``, or ``answer`` with ``id`` and ``text``, each with its number
    ``n``, once; it must return at once and be thread-safe.
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
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers: dict[str, Any] = {}
        self._opened = 0
        self._act: Callable[[], None] = lambda: None
        self._outbox = Outbox(self._write)
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
        """Sends what still waits and ends the outbox thread; the last picture stays."""
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
            self._wanted.put(node_id)
            self._outbox.put("detail", self._answer)

    def _answer(self) -> dict[str, Any]:
        """The newest answers by node id; a request repeated is an answer renewed."""
        while not self._wanted.empty():
            node_id = self._wanted.get()
            self._answers.pop(node_id, None)
            found = self._details(node_id)
            self._answers[node_id] = None if found is None else dict(found)
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
        """Hands a command on, once: it comes as a message and as a change of a trait."""
        number = str(given.get("n"))[:80]
        if not isinstance(given.get("name"), str) or given["name"] not in COMMANDS:
            return
        with self.widget.lock:
            if number in self._heeded:
                return
            self._heeded.append(number)
        self._command(given)
