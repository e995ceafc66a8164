"""One thread that alone writes what the kernel shows: coalesced, changed values only, bounded.

Widget traits have no locks, and the notebook server drops messages above a rate. So everything that
is to be shown is put here under a name; the newest value of each name goes out at most four times a
second, and more slowly when values are large.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kforge_nb.view.payload import size

__all__ = ["Outbox"]

INTERVAL_S = 0.25
BYTES_PER_S = 400_000

_log = logging.getLogger("kforge_nb.view")


class Outbox:
    """Sends the newest value of each name from a thread of its own.

    ``send`` gets a mapping of the names whose values changed. A value may be a function: it is
    called on the outbox thread just before sending, so that building a document for each event
    costs nothing. Errors of such a function or of ``send`` are logged; later values still go out.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], None],
        interval: float = INTERVAL_S,
        bytes_per_s: float = BYTES_PER_S,
    ) -> None:
        self._send = send
        self._interval = interval
        self._bytes_per_s = bytes_per_s
        self._pending: dict[str, Any] = {}
        self._sent: dict[str, Any] = {}
        self._wake = threading.Condition()
        self._busy = False
        self._hurry = False
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="kforge-outbox", daemon=True)
        self._thread.start()

    def put(self, name: str, value: Any) -> None:
        """Replaces what waits under a name; returns at once, from any thread. No-op once closed."""
        with self._wake:
            if not self._closing:
                self._pending[name] = value
                self._wake.notify_all()

    def put_if_empty(self, name: str, value: Any) -> None:
        """For a value function that has more to say: goes next, unless something newer waits."""
        with self._wake:
            self._pending.setdefault(name, value)

    def flush(self, timeout: float = 10.0) -> bool:
        """Sends what waits without further delay; False if it took longer than ``timeout`` s."""
        with self._wake:
            self._hurry = True
            self._wake.notify_all()
            done = self._wake.wait_for(lambda: not self._pending and not self._busy, timeout)
            self._hurry = False
            return done

    def close(self, timeout: float = 10.0) -> bool:
        """Flushes and ends the thread; False if that took too long. May be called twice."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                pending, self._pending = self._pending, {}
                self._busy = True
            sent = self._deliver(pending)
            self._pause(sent)

    def _deliver(self, pending: Mapping[str, Any]) -> int:
        """Sends what changed; returns its size in bytes."""
        changed = {}
        for name, value in pending.items():
            try:
                made = value() if callable(value) else value
            except Exception:  # noqa: BLE001  a broken view must never end a run
                _log.exception("making %r for the view failed", name)
                continue
            if name not in self._sent or self._sent[name] != made:
                changed[name] = made
        if not changed:
            return 0
        try:
            self._send(changed)
        except Exception:  # noqa: BLE001  nor may a closed browser
            _log.exception("showing %s failed", ", ".join(changed))
            return 0
        self._sent.update(changed)
        return size(changed)

    def _pause(self, sent_bytes: int) -> None:
        """Waits until the next message may go; a flush or a close cuts it short."""
        wait = max(self._interval, sent_bytes / self._bytes_per_s)
        with self._wake:
            self._busy = False
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._closing or self._hurry, timeout=wait)
